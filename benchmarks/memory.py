"""Memory: the peak that a closed form predicts against the bytes of real tensors that live at a time.

    python benchmarks/memory.py [CASE ...]      all cases unless some are named; `--list` names them

Each case trains in fresh processes of the real engine for a few steps under PyTorch's profiler, which sees every
allocation of a worker's thread; the worker that needs most is told, as in the closed form. Beside it stands the
growth of its resident memory at its highest, which holds more: what kernels take for themselves, libraries loaded on
the way, what the allocator keeps. Data is loaded before. The bar is 10 % of the live bytes.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.cluster import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE
from geartrain.cost.memory import total
from geartrain.engines.real import RealEngine
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.models.resnet import resnet18
from geartrain.runtime.context import Context
from geartrain.runtime.loop import Training
from geartrain.runtime.memory import measured_peak
from geartrain.runtime.strategy import Strategy
from geartrain.runtime.tracing import task_workload
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.strategies import parse
from geartrain.tasks import get_task
from geartrain.units import format_size

BAR = 0.10
CLUSTER = load_cluster("ethernet-10g")


class Made(Task):
    """A model on the same random samples at every step; labels fit what it returns."""

    source = "made up"

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs).flatten(0, -2), batch.targets.flatten())

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        inputs, targets = self.example(batch // num_workers)
        return Fixed(Batch(inputs, targets, 1 / num_workers))


@dataclass(frozen=True)
class Fixed:
    """The same samples at every step."""

    batch: Batch

    def take(self, num_samples: int | None = None) -> Batch:
        return Batch(self.batch.inputs.clone(), self.batch.targets.clone(), self.batch.weight)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


@dataclass(frozen=True)
class ResNet18(Made):
    """Pictures of 224x224, SGD with momentum."""

    name = "resnet18"

    def model(self, seed: int) -> nn.Module:
        return resnet18()

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(samples, 3, 224, 224), torch.zeros(samples, dtype=torch.long)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.01, momentum=0.9)


@dataclass(frozen=True)
class GPT2Small(Made):
    """Windows of some tokens, AdamW."""

    length: int
    name = "gpt2"

    def model(self, seed: int) -> nn.Module:
        return gpt2(GPT2Size(width=768, depth=12, num_heads=12, length=self.length))

    def example(self, samples: int) -> tuple[Tensor, Tensor]:
        words = torch.zeros(samples, self.length, dtype=torch.long)
        return words, words.clone()

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-4, foreach=True)


@dataclass(frozen=True)
class Case:
    """One row: what is trained, how, in which global batch, by how many workers."""

    task: Task
    what: str
    batch: int
    strategy: str = "single"
    workers: int = 1
    steps: int = 6

    def __str__(self) -> str:
        return f"{self.what}/{self.strategy}"


WITH_TWO = ("synchronous", "dear", "local_sgd", "top_k", "powersgd", "parameter_server")
OTHERS = (
    "synchronous:exchange=ring", "peer_to_peer", "peer_to_peer:kind=broadcast", "parameter_server:servers=2",
    "cocod_sgd", "pipe_sgd", "dasgd", "diloco", "dpsgd", "adpsgd", "async_sgd", "apam", "adascale",
    "adascale:accumulate=2", "compressed", "gtop_k", "mg_wfbp", "qsgd", "terngrad", "sign_sgd", "abs_sgd:micro_batch=8",
    "spp", "gear",
)  # fmt: skip
_DIGITS, _CHARACTERS = get_task("digits"), get_task("characters")
CASES = [
    Case(_DIGITS, "digits, batch 64", 64),
    Case(_CHARACTERS, "characters, batch 16", 16),
    Case(get_task("packages-text"), "packages-text, batch 16", 16),
    Case(ResNet18(), "resnet18, batch 8", 8, steps=3),
    Case(GPT2Small(1024), "gpt2, batch 1 of 1,024 tokens", 1, steps=2),
    Case(GPT2Small(256), "gpt2, batch 8 of 256 tokens", 8, steps=2),
    *(Case(_CHARACTERS, "characters, batch 16", 16, name, 2) for name in WITH_TWO),
    *(Case(_DIGITS, "digits, batch 64", 64, name, 2) for name in WITH_TWO),
    *(Case(_CHARACTERS, "characters, batch 16", 16, name, 2) for name in OTHERS),
]


@dataclass(frozen=True)
class Watched:
    """What each rank runs: (live bytes at the peak, growth of resident memory).

    A server works in lanes, which the profiler does not see: of it, what lives at its end, without temporaries.
    """

    training: Training

    def __call__(self, ctx: Context) -> tuple[int, int]:
        training = self.training
        training.task.batches(0, ctx.num_workers, training.batch, 0).take()
        before = resident()
        peak = measured_peak(lambda: training(ctx)) if ctx.role == "worker" else _served(lambda: training(ctx))
        return peak, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def _served(run: Callable[[], object]) -> int:
    there = {t.untyped_storage()._cdata for t in _all_tensors()}
    run()
    found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in _all_tensors()}
    return sum(nbytes for key, nbytes in found.items() if key not in there)


def _all_tensors() -> list[Tensor]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) in (Tensor, nn.Parameter)]


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def predicted(case: Case) -> tuple[Strategy, Mapping[str, int], Sequence[Mapping[str, int]]]:
    """The strategy with all decided, and the memory of a worker and of each service, by closed form."""
    strategy, workload = parse(case.strategy), task_workload(case.task)
    place = Placement(CLUSTER, case.workers, strategy.roles(case.workers).services)
    given = (workload, place, case.batch, ROOFLINE)
    strategy = strategy.planned(*given)
    cost = strategy.cost(*given)
    return strategy, cost.memory, cost.services


def row(case: Case) -> tuple[str, float]:
    """A line of the table, and the error of the worker's peak."""
    strategy, kinds, services = predicted(case)
    training = Training(strategy=strategy, task=case.task, steps=case.steps, batch=case.batch, evaluate=False)
    record = RealEngine("cpu", patience=900).run(
        Watched(training), CLUSTER, workers=case.workers, services=strategy.roles(case.workers).services
    )
    peak, grown = max(record.results[: case.workers])
    error = total(kinds) / peak - 1
    told = ", ".join(f"{kind} {format_size(nbytes)}" for kind, nbytes in kinds.items() if nbytes)
    at = f"{case.workers} x `{case.strategy}`" if case.workers > 1 else f"`{case.strategy}`"
    sizes = " | ".join(format_size(nbytes) for nbytes in (peak, total(kinds)))
    text = f"| {case.what} | {at} | {sizes} | {error:+.1%} | {format_size(grown)} | {told} |"
    for service, (kept, more) in zip(services, record.results[case.workers :], strict=True):
        stays = total(service) - service.get("temporaries", 0)
        text += f"\n| | what stays on its server | {format_size(kept)} | {format_size(stays)} | "
        text += f"{stays / kept - 1:+.1%} | {format_size(more)} | |"
    return text, error


def main() -> int:
    """Prints the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="parts of names of cases")
    parser.add_argument("--list", action="store_true", help="name the cases")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.cases or any(part in str(case) for part in options.cases)]
    if options.list:
        print(*cases, sep="\n")
        return 0
    print("| trained | by | live bytes | predicted | error | resident grew by | predicted, by kind |")
    print("|---|---|---:|---:|---:|---:|---|")
    worst = 0.0
    for case in cases:
        text, error = row(case)
        print(text, flush=True)
        worst = max(worst, abs(error))
    print(f"\nLargest error {worst:.1%}; the bar is {BAR:.0%}.")
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main())
