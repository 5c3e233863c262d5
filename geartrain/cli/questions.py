"""From texts of the command line to the questions that `predict` and `sweep` ask."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geartrain.cluster import load_cluster
from geartrain.cost.compute import ComputeModel, parse_compute
from geartrain.cost.table import Table
from geartrain.errors import ConfigurationError
from geartrain.workload.spec import Workload

if TYPE_CHECKING:
    from geartrain.predict.question import Question
    from geartrain.runtime.strategy import Strategy

SAMPLES_PER_WORKER = 32
"""The default batch: this many for each worker of each cell."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What stood on the command line."""

    workload: str | None
    task: str | None
    cluster: str
    strategies: str | None
    ranks: str
    batch: int | None
    batch_per_rank: int | None
    compute: str


def questions(asked: Asked) -> list[Question]:
    """One question per cluster, number of workers and strategy, in this order; ConfigurationError when one cannot be.

    Without strategies: synchronous, and one worker alone as `single`.
    """
    from geartrain.predict.question import Question
    from geartrain.strategies import parse, parse_list

    _check(asked)
    ranks = numbers(asked.ranks)
    named = None if asked.strategies is None else parse_list(asked.strategies)
    clusters = [load_cluster(text.strip()) for text in asked.cluster.split(",")]
    workload, model = _workload(asked), _model(asked, ranks)

    def chosen(workers: int) -> Sequence[Strategy]:
        return named or [parse("single" if workers == 1 else "synchronous")]

    return [
        Question(
            workload=workload,
            cluster=cluster,
            strategy=strategy,
            ranks=workers,
            batch=batch_of(asked, workers),
            model=model,
        )
        for cluster in clusters
        for workers in ranks
        for strategy in chosen(workers)
    ]


def batch_of(asked: Asked, workers: int) -> int:
    """The global batch of a cell."""
    if asked.batch is not None:
        return asked.batch
    return workers * (SAMPLES_PER_WORKER if asked.batch_per_rank is None else asked.batch_per_rank)


def numbers(text: str) -> list[int]:
    """Numbers of workers from "2,4,8", the order kept."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"--ranks {text!r} is no list of whole numbers; write it like --ranks 2,4,8") from None
    if min(found) < 1:
        raise ConfigurationError(f"--ranks {text!r}: a run needs at least 1 worker")
    return list(dict.fromkeys(found))


def _check(asked: Asked) -> None:
    if (asked.task is None) == (asked.workload is None):
        raise ConfigurationError("give one of --workload and --task, e.g. --workload resnet50 or --task digits")
    if asked.batch is not None and asked.batch_per_rank is not None:
        raise ConfigurationError("--batch is of all workers and --batch-per-rank of each: give one of them")
    for flag, value in (("--batch", asked.batch), ("--batch-per-rank", asked.batch_per_rank)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{flag} {value}: a step needs at least 1 sample")


def _workload(asked: Asked) -> Workload:
    from geartrain.models import WORKLOADS, get_workload
    from geartrain.runtime.tracing import task_workload
    from geartrain.tasks import get_task

    if asked.workload is not None:
        return get_workload(asked.workload)
    assert asked.task is not None, "one of them was given"
    if asked.task in WORKLOADS:
        raise ConfigurationError(f"{asked.task!r} is a workload: give --workload {asked.task}")
    return task_workload(get_task(asked.task))


def _model(asked: Asked, ranks: Iterable[int]) -> ComputeModel:
    """The model that prices computing; measured on this host where that was asked for."""

    def measure() -> Table:
        from geartrain.runtime.measure import measure_table
        from geartrain.tasks import get_task

        assert asked.task is not None, "a workload has nothing that could be measured"
        batches = [(batch_of(asked, workers), workers) for workers in ranks]
        sizes = {size for batch, workers in batches for size in (batch // workers, -(-batch // workers)) if size}
        return measure_table(get_task(asked.task), sorted(sizes))

    return parse_compute(asked.compute, measure if asked.task else None)
