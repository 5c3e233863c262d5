"""Simulated against real step time on this machine: two workers, one core each, taking turns.

    python benchmarks/simulated_vs_real.py [--tasks characters,digits] [--pairs 5] [--steps 20]

Computing is priced by a table measured with both cores loaded (two processes measure at once, as two ranks compute at
once), each pair with a table of its own. The bar, 15 % on the median pair, is for `characters` (over 50 ms of compute
per step); `digits`, whose steps take a few milliseconds, is reported without one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from multiprocessing.queues import Queue

from geartrain.cluster import load_cluster
from geartrain.cost.compute import Measured, Roofline
from geartrain.cost.table import Table
from geartrain.engines.base import Engine
from geartrain.engines.real import RealEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.loop import Training
from geartrain.runtime.measure import measure_table
from geartrain.strategies import parse
from geartrain.tasks import get_task

BATCH = {"characters": 32, "digits": 128}
BAR = 0.15


def measure(name: str, repeats: int, tables: Queue[Table]) -> None:
    tables.put(measure_table(get_task(name), [BATCH[name] // 2], repeats))


def loaded_table(name: str, repeats: int) -> Table:
    """A table measured while the other core measures the same."""
    spawn = multiprocessing.get_context("spawn")
    tables: Queue[Table] = spawn.Queue()
    both = [spawn.Process(target=measure, args=(name, repeats, tables)) for _ in range(2)]
    for process in both:
        process.start()
    measured = [tables.get(timeout=600) for _ in both]
    for process in both:
        process.join()
    return measured[0]


def step_time(engine: Engine, name: str, steps: int) -> tuple[float, float]:
    """Median step time over ranks and steps after the first two, and the loss of the last step on worker 0."""
    training = Training(
        strategy=parse("synchronous"), task=get_task(name), steps=steps, batch=BATCH[name], evaluate=False
    )
    record = engine.run(training, load_cluster("local"), workers=2)
    times = [mark.end - mark.begin for log in record.logs for mark in log.steps[2:]]
    return statistics.median(times), record.results[0]["final_loss"]


def compare(name: str, pairs: int, steps: int) -> float:
    errors, reals, simulated = [], [], []
    for pair in range(pairs):
        real, loss = step_time(RealEngine(), name, steps)
        model = Measured(loaded_table(name, steps), Roofline())
        virtual, same = step_time(SimulatedEngine(model), name, steps)
        assert loss == same, f"the losses differ: {loss} for real, {same} simulated"
        errors.append(virtual / real - 1.0)
        reals.append(real)
        simulated.append(virtual)
        print(
            f"{name} {pair + 1}: real {real * 1e3:.2f} ms, simulated {virtual * 1e3:.2f} ms, {errors[-1]:+.1%}",
            flush=True,
        )
    for kind, values in (("real", reals), ("simulated", simulated)):
        spread = (max(values) - min(values)) / statistics.median(values)
        print(f"{name}: {kind} {statistics.median(values) * 1e3:.2f} ms, from run to run {spread:.0%} of it")
    return statistics.median(errors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="characters,digits")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    missed = False
    for name in options.tasks.split(","):
        median = compare(name, options.pairs, options.steps)
        bar = f" (bar {BAR:.0%})" if name == "characters" else ""
        here = name == "characters" and abs(median) > BAR
        missed = missed or here
        print(f"{name}: median error {median:+.1%}{bar}{'   MISSED' if here else ''}\n", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
