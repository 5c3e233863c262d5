"""How fast predictions are: a thousand mixed ones, and a sweep over two hundred points.

    python benchmarks/predictions.py

Prints one line per case with its bar and ends with status 1 when a bar is missed. Models are traced before the clock
starts, and told apart: that is done once per process. Real seconds; the second number is the processor time of that,
which other work on the machine disturbs less.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice, product

from geartrain.cluster import load_cluster
from geartrain.models import get_workload
from geartrain.predict.change import changed
from geartrain.predict.closed import predict
from geartrain.predict.question import Question
from geartrain.strategies import parse
from geartrain.sweep.axis import parse_vary
from geartrain.sweep.run import sweep

PREDICTIONS, POINTS = 1000, 200
PREDICTIONS_BAR, SWEEP_BAR = 10.0, 60.0

WORKLOADS = ("resnet50", "vgg16", "bert-large", "gpt2")
CLUSTERS = ("ethernet-1g", "ethernet-10g", "v100x8-25g")
RANKS = (2, 8, 16, 64)
STRATEGIES = (
    "synchronous",
    "dear",
    "parameter_server:servers=4",
    "peer_to_peer",
    "local_sgd:period=8",
    "mg_wfbp",
    "powersgd",
    "top_k",
)
SWEPT = ("synchronous", "parameter_server:servers=4", "dear")


def questions() -> Iterator[Question]:
    """Models, clusters, numbers of workers and strategies, every combination with a batch and a wire of its own."""
    cells = product(STRATEGIES, RANKS, CLUSTERS, WORKLOADS)
    for number, (strategy, ranks, cluster, workload) in enumerate(cycle(cells)):
        rate = 1e8 * (1 + number % 97)
        yield Question(
            workload=get_workload(workload),
            cluster=changed(load_cluster(cluster), "links.rate", rate),
            strategy=parse(strategy),
            ranks=ranks,
            batch=ranks * (4 + number % 13),
        )


def thousand() -> None:
    for question in asked:
        predict(question)


def two_hundred() -> None:
    base = [
        Question(
            workload=get_workload("vgg16"),
            cluster=load_cluster("ethernet-10g"),
            strategy=parse(strategy),
            ranks=16,
            batch=16 * 32,
        )
        for strategy in SWEPT
    ]
    axes = [parse_vary("links.rate=1Gbit/s..100Gbit/s:20"), parse_vary("ranks=2..1024")]
    found = sweep(base, axes)
    assert len(found.points) == POINTS, len(found.points)


def timed(name: str, bar: float, what: Callable[[], None]) -> bool:
    wall, busy = time.perf_counter(), time.process_time()
    what()
    wall, busy = time.perf_counter() - wall, time.process_time() - busy
    met = wall <= bar
    print(f"{name:60} {wall:8.2f} s {busy:8.2f} s of a processor   bar {bar:.0f} s   {'held' if met else 'MISSED'}")
    return met


if __name__ == "__main__":
    for model in (*WORKLOADS, "vgg16"):
        begin = time.perf_counter()
        get_workload(model)
        print(f"tracing {model:52} {time.perf_counter() - begin:8.2f} s")
    asked = list(islice(questions(), PREDICTIONS))
    met = [
        timed(
            f"{PREDICTIONS} predictions, {len(STRATEGIES)} methods, up to {max(RANKS)} workers",
            PREDICTIONS_BAR,
            thousand,
        ),
        timed(f"sweep of {POINTS} points, {len(SWEPT)} methods, up to 1024 workers", SWEEP_BAR, two_hundred),
    ]
    sys.exit(0 if all(met) else 1)
