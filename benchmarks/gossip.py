"""64 simulated AD-PSGD workers on digits: batch 32 each, 500 steps, evaluated twice; two runs with one history.

    python benchmarks/gossip.py

Prints the wall time of each run with its bar, what was learned and how often models were averaged, and ends with status
1 when the bar is missed or the histories differ.
"""

from __future__ import annotations

import argparse
import pickle
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from geartrain.cluster import load_cluster
from geartrain.cost.compute import Constant
from geartrain.engines.simulated import SimulatedEngine
from geartrain.record.log import RunRecord
from geartrain.runtime.loop import Training
from geartrain.runtime.targets import Targets
from geartrain.runtime.worker import Batch, Batches
from geartrain.strategies import parse
from geartrain.tasks.digits import Digits

BAR = 240.0
"""Seconds for a run."""


@dataclass(frozen=True, kw_only=True)
class Streams(Digits):
    """Digits, of which every worker takes 32 at a time from a stream of its own: 64 times 32 are more than all."""

    samples: int = 32

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return Own(super().batches(rank, num_workers, batch, seed), self.samples, num_workers)


@dataclass
class Own(Batches):
    """A worker's stream in equal batches, each with the weight of one worker."""

    stream: Batches
    samples: int
    num_workers: int

    def take(self, num_samples: int | None = None) -> Batch:
        return replace(self.stream.take(num_samples or self.samples), weight=1 / self.num_workers)

    def state_dict(self) -> dict[str, Any]:
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.stream.load_state_dict(state)


def run(strategy: str, workers: int, steps: int) -> RunRecord:
    """One run; a kernel takes 10 us, so that a gradient lasts about as long as an exchange on 10 Gbit/s."""
    targets = Targets(evaluate_every=steps // 2)
    main = Training(
        strategy=parse(strategy), task=Streams(), steps=steps, batch=workers, targets=targets, evaluate=False
    )
    return SimulatedEngine(Constant(10e-6)).run(main, load_cluster("ethernet-10g"), workers=workers)


def history(record: RunRecord) -> bytes:
    return pickle.dumps(([asdict(log) for log in record.logs], record.results, record.link_bytes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="adpsgd")
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=2, help="runs, whose histories are compared")
    options = parser.parse_args()
    first, good = b"", True
    for _ in range(options.repeats):
        began, computed = time.perf_counter(), time.process_time()
        record = run(options.strategy, options.workers, options.steps)
        taken, computed = time.perf_counter() - began, time.process_time() - computed
        same = not first or history(record) == first
        first = first or history(record)
        good = good and same and taken < BAR
        exchanges = sum(log.counts.get("exchanges", 0) for log in record.logs)
        print(
            f"{options.workers} workers, {options.steps} steps of {options.strategy}: {taken:.1f} s (bar {BAR:g} s), "
            f"{computed:.1f} s of them computing, "
            f"{exchanges:.0f} exchanges, {record.results[0]['evaluations']}"
            f"{'' if taken < BAR else '   MISSED'}{'' if same else '   ANOTHER HISTORY'}",
            flush=True,
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
