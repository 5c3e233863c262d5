"""How fast a workload's shape runs on many ranks: one recorded walk, replayed; each checked against its closed form.

    python benchmarks/shapes_depth.py

Prints one line per case with its bar and ends with status 1 when a bar is missed, or when the time of a step is more
than 1 % off the closed form where that is exact. Each case runs in a process of its own, so that peak memory is its
own. Real seconds include everything from an imported package to a finished record; the second number is the processor
time of that, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import dataclass

from geartrain.cluster import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.models import get_workload
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from geartrain.tasks.workload_task import WorkloadTask

SAMPLES = 32


@dataclass(frozen=True)
class Case:
    """ResNet-50, 32 samples per worker, on ethernet-100g.

    Attributes:
        bar: real seconds that it may take; None reports only.
        exact: whether the closed form leaves nothing out.
        recorded: False walks through the layers on every rank, to compare with.
    """

    strategy: str
    ranks: int
    steps: int = 2
    bar: float | None = None
    exact: bool = True
    recorded: bool = True

    def __str__(self) -> str:
        walk = "" if self.recorded else ", every rank walks"
        return f"{self.strategy} on {self.ranks:,} ranks, {self.steps} steps{walk}"


CASES = [
    Case("synchronous", 64, recorded=False),
    Case("synchronous", 64, bar=5.0),
    Case("synchronous", 1024, bar=60.0),
    Case("synchronous:exchange=ring,bucket_size=none,overlap=false", 64, exact=False),
    Case("parameter_server", 64),
    Case("parameter_server:servers=16", 64),
    Case("parameter_server:servers=64,placement=colocated", 64, exact=False),
    Case("peer_to_peer", 64),
    Case("peer_to_peer:sends=all_at_once", 64),
    Case("peer_to_peer:kind=broadcast", 64),
]


def run(case: Case) -> bool:
    """Run it, print its line; whether it is good."""
    cluster, strategy, workload = load_cluster("ethernet-100g"), parse(case.strategy), get_workload("resnet50")
    services = strategy.roles(case.ranks).services
    batch = SAMPLES * case.ranks
    began, computed = time.perf_counter(), time.process_time()
    task = WorkloadTask(workload, recorded=case.recorded)
    main = Training(strategy=strategy, task=task, steps=case.steps, batch=batch)
    engine = SimulatedEngine(Roofline())
    record = engine.run(main, cluster, workers=case.ranks, services=services, meta=True)
    taken, computed = time.perf_counter() - began, time.process_time() - computed
    workers = record.logs[: case.ranks]
    step = max(log.steps[-1].end - log.steps[-1].begin for log in workers)
    form = strategy.cost(workload, Placement(cluster, case.ranks, services), batch).step_time
    off = step / form - 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    good = (case.bar is None or taken <= case.bar) and (not case.exact or abs(off) <= 0.01)
    bar = f"bar {case.bar:g} s" if case.bar else "no bar"
    print(
        f"{case}: {taken:.2f} s ({bar}), processor {computed:.2f} s, peak memory {peak / 1e6:.0f} MB, "
        f"step {step * 1e3:.1f} ms, {off:+.2%} off the closed form{'' if good else '   MISSED'}",
        flush=True,
    )
    return good


def main() -> int:
    """All cases, or the one that is asked for in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", type=int, help="number of one case from 0, in this process")
    options = parser.parse_args()
    if options.case is not None:
        return 0 if run(CASES[options.case]) else 1
    return max(subprocess.run([sys.executable, __file__, "--case", str(k)]).returncode for k in range(len(CASES)))


if __name__ == "__main__":
    sys.exit(main())
