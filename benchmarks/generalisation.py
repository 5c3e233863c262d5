"""How well asynchronous SGD generalises against the delay of its gradients, with a fixed step and with a reduced one.

    delay        tau_max = W - 1 of W equal workers, in {0, 1, 4, 16, 64}; the same number of updates for all
    fixed        w <- w - rate * g
    reduced      w <- w - rate / (1 + tau_max) * g
    gap          test loss - training loss
    twin         |w_S - w_S'|: the same run on a training set in which one sample is another one

A small network on a part of `digits` with plain SGD, every gradient from samples drawn with replacement, under the
virtual clock: the numbers depend on the seed alone. A reduced step is stable, and it has also come less
far after as many updates; so every row shows the training loss beside the gap.

    python benchmarks/generalisation.py --out generalisation.json

Source: Regatti and others, 2019, arXiv 1909.13391, whose abstract says that the learning rate should be reduced as more
delay is allowed. Its data sets and figures were not read; these are our own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch, Batches, Service, Task
from geartrain.strategies.async_sgd import AsyncSGD
from geartrain.tasks.digits import Digits

DELAYS = (0, 1, 4, 16, 64)
UPDATES = 2210
"""A multiple of every number of workers."""


@dataclass(frozen=True, kw_only=True)
class Part(Task):
    """Part of the digits; drawn from with replacement.

    Args:
        samples: in the training set.
        twin: its first sample is another one.
        rate: of plain SGD.
        share: samples of a gradient.
    """

    name = "part-of-digits"
    source = Digits.source

    samples: int = 200
    twin: bool = False
    rate: float = 0.2
    share: int = 8

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.rate)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        inputs, targets = self.data()
        with torch.no_grad():
            training = F.cross_entropy(model(inputs), targets).item()
        test = Digits().metric(model)
        return {"training_loss": training, "test_loss": test["loss"], "accuracy": test["accuracy"]}

    def data(self) -> tuple[Tensor, Tensor]:
        """The training set."""
        whole = Digits().batches(0, 1, self.samples + 1, seed=0).take()
        order = torch.arange(self.samples)
        if self.twin:
            order[0] = self.samples
        return whole.inputs[order], whole.targets[order]

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return _Drawn(*self.data(), self.share, 1 / num_workers, seed * 1000 + rank)


class _Drawn:
    """Samples drawn with replacement, from a stream of the worker's own."""

    def __init__(self, inputs: Tensor, targets: Tensor, share: int, weight: float, seed: int) -> None:
        self._inputs, self._targets, self._share, self._weight = inputs, targets, share, weight
        self._generator = torch.Generator().manual_seed(seed)

    def take(self, num_samples: int | None = None) -> Batch:
        drawn = torch.randint(len(self._inputs), (num_samples or self._share,), generator=self._generator)
        return Batch(self._inputs[drawn], self._targets[drawn], self._weight)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._generator.set_state(state["generator"])


@dataclass(frozen=True)
class Trained:
    """`main(ctx)`: train, and hand back the model's measures and weights."""

    strategy: AsyncSGD
    task: Part
    updates: int
    seed: int

    def __call__(self, ctx: Context) -> tuple[dict[str, float], Tensor] | None:
        part = self.strategy.bind(ctx, self.task)
        if isinstance(part, Service):
            part.run()
            return None
        batches = self.task.batches(ctx.rank, ctx.num_workers, 0, self.seed)
        for step in range(self.updates // ctx.num_workers):
            ctx.mark_step(step, "begin")
            part.step(batches)
            ctx.mark_step(step, "end")
        part.finish()
        measured = self.task.metric(part.model) if ctx.rank == 0 else {}
        weights = torch.cat([parameter.detach().flatten() for parameter in part.model.parameters()])
        part.close()
        return measured, weights


@dataclass(frozen=True)
class Row:
    """One setting; means over the seeds."""

    delay: int
    mean_staleness: float
    step: str
    training_loss: float
    test_loss: float
    gap: float
    accuracy: float
    twin: float


def train(delay: int, step: str, task: Part, updates: int, seed: int) -> tuple[dict[str, float], Tensor, float]:
    """Measures, weights and the mean staleness of a run."""
    strategy = AsyncSGD(step="static" if step == "reduced" else "constant")
    workers, main = delay + 1, Trained(strategy, task, updates, seed)
    services = strategy.roles(workers).services
    record = SimulatedEngine().run(main, load_cluster("ethernet-1g"), workers=workers, services=services, seed=seed)
    ages = [age for mark in record.logs[-1].steps for age in mark.values["staleness"]]
    measured, weights = record.results[0]
    return measured, weights, statistics.fmean(ages)


def study(updates: int, seeds: int, delays: Iterable[int] = DELAYS, samples: int = 200) -> list[Row]:
    """All rows."""
    rows = []
    for delay in delays:
        for step in ("fixed", "reduced") if delay else ("fixed",):
            found = []
            for seed in range(seeds):
                measured, weights, age = train(delay, step, Part(samples=samples), updates, seed)
                _, other, _ = train(delay, step, Part(samples=samples, twin=True), updates, seed)
                found.append({**measured, "age": age, "twin": (weights - other).norm().item()})
            mean = {name: statistics.fmean(one[name] for one in found) for name in found[0]}
            gap = mean["test_loss"] - mean["training_loss"]
            losses = mean["training_loss"], mean["test_loss"], gap, mean["accuracy"], mean["twin"]
            rows.append(Row(delay, mean["age"], step, *losses))
    return rows


def table(rows: Iterable[Row]) -> str:
    """As Markdown."""
    lines = [
        "| delay | mean staleness | step | training loss | test loss | gap | test accuracy | twin distance |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        numbers = (row.training_loss, row.test_loss, row.gap, row.accuracy, row.twin)
        told = " | ".join(f"{number:.4g}" for number in numbers)
        lines.append(f"| {row.delay} | {row.mean_staleness:.2f} | {row.step} | {told} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=UPDATES, help="a multiple of 2210 is equal for all")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("generalisation.json"))
    given = parser.parse_args()
    begun = time.monotonic()
    rows = study(given.updates, given.seeds)
    print(table(rows))
    given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    print(f"\n{given.updates} updates, {given.seeds} seeds, {time.monotonic() - begun:.0f} s; written to {given.out}")


if __name__ == "__main__":
    main()
