"""`synchronous` against PyTorch's DDP on gloo: same model, data and bucket size, taking turns in one run.

    python benchmarks/synchronous_vs_ddp.py [--workers 2] [--steps 30] [--turns 8]

Prints the median time per step of each, the ratio of every pair of turns and its median; the bar is 1.05. Both end with
the same weights, which is checked. Memory: one extra copy of the gradients at most (the flat buckets), also checked.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.cluster import load_cluster
from geartrain.engines.real import RealEngine
from geartrain.engines.recording import RecordingGroup
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.strategies.synchronous import Synchronous
from geartrain.torch_private import enter_group

WIDTH, BATCH, BUCKET = 512, 32, 2**20
BAR = 1.05


class Mlp(Task):
    """Six layers of 512: 1.3 million parameters, 5.3 MB of gradients; random data."""

    name = "mlp"
    source = "made up"

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            layers: list[nn.Module] = []
            for _ in range(5):
                layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
            return nn.Sequential(*layers, nn.Linear(WIDTH, 10))

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.01, momentum=0.9)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return Fixed(rank, num_workers)


class Fixed:
    """The same samples at every step: data costs nothing here."""

    def __init__(self, rank: int, num_workers: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        self.batch = Batch(
            torch.randn(BATCH, WIDTH, generator=generator),
            torch.randint(0, 10, (BATCH,), generator=generator),
            1.0 / num_workers,
        )

    def take(self, num_samples: int | None = None) -> Batch:
        return self.batch

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


@dataclass(frozen=True)
class Turns:
    """What each rank runs."""

    steps: int
    turns: int

    def __call__(self, ctx: Context) -> tuple[list[float], list[float]]:
        torch.manual_seed(0)
        task, batches = Mlp(), Fixed(ctx.rank, ctx.num_workers)
        worker = Synchronous(bucket_size=BUCKET).bind(ctx, task)
        assert isinstance(ctx.workers, RecordingGroup)
        plain = ctx.workers.inner  # DDP runs on gloo itself, where nothing is recorded
        enter_group(plain, "plain", "gloo", range(ctx.num_workers))
        ddp = nn.parallel.DistributedDataParallel(
            task.model(ctx.seed), process_group=plain, bucket_cap_mb=BUCKET / 2**20
        )
        optimizer = task.optimizer(ddp.parameters())

        def ours() -> None:
            worker.step(batches)

        def theirs() -> float:
            optimizer.zero_grad()
            loss = task.loss(ddp, batches.batch)
            loss.backward()
            optimizer.step()
            return loss.item()

        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(-1, self.turns):  # the first turn of both only warms up
            for kept, step in zip(seconds, (ours, theirs), strict=True):
                plain.barrier().wait()
                began = time.perf_counter()
                for _ in range(self.steps):
                    step()
                if turn >= 0:
                    kept.append((time.perf_counter() - began) / self.steps)
        pairs = zip(worker.model.parameters(), ddp.module.parameters(), strict=True)
        assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in pairs), "the weights differ"
        storages = [p.grad.untyped_storage() for p in worker.model.parameters() if p.grad is not None]
        copies = {storage.data_ptr(): storage.nbytes() for storage in storages}
        size = sum(p.nbytes for p in worker.model.parameters())
        assert sum(copies.values()) <= size, "more than one copy of the gradients"
        worker.close()
        return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    record = RealEngine().run(Turns(options.steps, options.turns), load_cluster("local"), workers=options.workers)
    ours, theirs = record.results[0]
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    print(f"synchronous {statistics.median(ours) * 1e3:.2f} ms, DDP {statistics.median(theirs) * 1e3:.2f} ms per step")
    print("ratios of the turns:", ", ".join(f"{ratio:.3f}" for ratio in ratios))
    median = statistics.median(ratios)
    print(f"median ratio {median:.3f} (bar {BAR}){'' if median <= BAR else '   MISSED'}")
    return 0 if median <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
