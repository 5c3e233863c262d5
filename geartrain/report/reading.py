"""Folders of runs and grids, read back into plain values for the report.

A run folder holds run.json; a grid is any folder with run folders below it and, at its root, compare.json, which also
names the cells that left nothing. What a file does not say is None here, never an error: an older or shorter run still
makes a report. Only a folder without any run is refused.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from geartrain.errors import TaskError
from geartrain.record.files import RUN, STEPS, TRACE

GRID, VALIDATION = "compare.json", "validation.json"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One training step of the whole run: the loss of its global batch, and when its last worker ended it.

    `time` counts from the begin of the first step: what comes before (starting ranks, loading data) is no training.
    """

    step: int
    time: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """One cell as its folder tells it. SI units; None where the folder does not say.

    Attributes:
        subject: the task or workload.
        metric: the task's main quality on held-out data, called `metric_name`.
        step_time, compute, exposed, wait: of the mean step; the last three add up to the first.
        bytes_sent, messages: mean per worker and step.
        busiest: bytes per step of the rank, services included, that sends most.
        closed_form: the strategy's own step time, its parts in `form_parts` (compute, exposed, wait).
        curve: the loss, step by step.
        ranks, waits, link_bytes: as in run.json.
        raw: all of run.json.
        folder: where it was found; None for a cell that left nothing.
    """

    strategy: str
    engine: str
    cluster: str
    workers: int
    subject: str = ""
    batch: float | None = None
    steps: int = 0
    step_time: float | None = None
    compute: float = 0.0
    exposed: float = 0.0
    wait: float = 0.0
    bytes_sent: float | None = None
    messages: float | None = None
    busiest: float | None = None
    efficiency: float | None = None
    final_loss: float | None = None
    metric: float | None = None
    metric_name: str = "metric"
    time_to_target: float | None = None
    closed_form: float | None = None
    error: str | None = None
    curve: Sequence[Point] = ()
    ranks: Sequence[Object] = ()
    waits: Sequence[tuple[int, int | None, float]] = ()
    link_bytes: Mapping[str, float] = field(default_factory=dict)
    raw: Object = field(default_factory=dict)
    folder: Path | None = None

    @property
    def throughput(self) -> float | None:
        """Samples per second."""
        return self.batch / self.step_time if self.batch and self.step_time else None

    @property
    def deviation(self) -> float | None:
        """Step time against the closed form: 0.1 is 10 percent longer."""
        return self.step_time / self.closed_form - 1 if self.step_time and self.closed_form else None

    @property
    def key(self) -> tuple[str, str, str, int]:
        return self.strategy, self.engine, self.cluster, self.workers


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs of all folders, each folder once, grids in their own order.

    TaskError where a folder has neither runs nor the results of a validation.
    """
    found: dict[Path, Run] = {}
    lost: list[Run] = []
    for folder in folders:
        runs = [read_run(path.parent) for path in sorted(folder.rglob(RUN))]
        listed = list(_listed(folder))
        if not runs and not listed and not (folder / VALIDATION).is_file():
            raise TaskError(
                f"there is no run in {str(folder)!r}: neither it nor a folder below holds {RUN}\n"
                "  give a folder that `geartrain compare --out` or `geartrain validate --out` wrote"
            )
        order = {run.key: i for i, run in enumerate(listed)}
        # What only the whole grid knows of a run.
        efficiency = {run.key: run.efficiency for run in listed}
        runs = [replace(run, efficiency=run.efficiency or efficiency.get(run.key)) for run in runs]
        for run in sorted(runs, key=lambda run: order.get(run.key, len(order))):
            assert run.folder is not None
            found.setdefault(run.folder.resolve(), run)
        there = {run.key for run in runs}
        lost.extend(run for run in listed if run.key not in there)
    return [*found.values(), *lost]


def read_run(folder: Path) -> Run:
    """One run folder."""
    raw = _load(folder / RUN)
    summary, config = _object(raw.get("summary")), _object(raw.get("config"))
    form = _object(raw.get("closed_form"))
    ranks = [_object(rank) for rank in _list(raw.get("ranks"))]
    rows = list(_rows(folder / STEPS))
    metrics = _object(summary.get("metrics"))
    return Run(
        **_common(summary),
        subject=str(config.get("subject") or ""),
        batch=_number(config.get("batch")),
        busiest=_busiest(ranks, rows, int(_number(summary.get("steps")) or 0)),
        metric_name=str(next(iter(metrics), "metric")),
        error=_text(summary.get("error")) or _text(raw.get("interrupted")),
        curve=_curve(ranks, rows),
        ranks=ranks,
        waits=[
            (int(rank), None if other is None else int(other), float(seconds))
            for rank, other, seconds in _list(raw.get("waits"))
        ],
        link_bytes={str(name): float(carried) for name, carried in _object(raw.get("link_bytes")).items()},
        raw={**raw, "closed_form": form},
        folder=folder,
    )


def read_trace(run: Run) -> Object | None:
    """The run's trace as Chrome's format has it; None where there is none, or none that can be read."""
    import gzip

    if run.folder is None:
        return None
    try:
        with gzip.open(run.folder / TRACE, "rt", encoding="utf-8") as file:
            return _object(json.load(file))
    except (OSError, EOFError, ValueError):
        return None


def _common(summary: Object) -> dict[str, Any]:
    """The fields that run.json's summary and compare.json share."""
    return {
        "strategy": str(summary.get("strategy") or "run"),
        "engine": str(summary.get("engine") or ""),
        "cluster": str(summary.get("cluster") or ""),
        "workers": int(_number(summary.get("ranks")) or 0),
        "steps": int(_number(summary.get("steps")) or 0),
        "step_time": _number(summary.get("step_time")),
        "compute": _number(summary.get("compute")) or 0.0,
        "exposed": _number(summary.get("exposed_communication")) or 0.0,
        "wait": _number(summary.get("wait")) or 0.0,
        "bytes_sent": _number(summary.get("bytes_sent_per_rank")),
        "messages": _number(summary.get("messages_per_rank")),
        "efficiency": _number(summary.get("efficiency")),
        "final_loss": _number(summary.get("final_loss")),
        "metric": _number(summary.get("metric")),
        "time_to_target": _number(summary.get("time_to_target")),
        "closed_form": _number(summary.get("closed_form_step_time")),
    }


def _listed(folder: Path) -> Iterator[Run]:
    """The cells that compare.json names, in the grid's order."""
    path = folder / GRID
    if not path.is_file():
        return
    content = read_json(path)
    cells = content.get("cells") if isinstance(content, Mapping) else content
    for cell in map(_object, _list(cells)):
        error = _text(cell.get("error")) or "it left no files: it failed at its start, or never ran"
        yield Run(**_common(cell), error=error)


def _curve(ranks: Sequence[Object], rows: Sequence[Object]) -> list[Point]:
    """Loss of each step's global batch: the workers' means, weighted by their samples."""
    services = {rank.get("rank") for rank in ranks if rank.get("role", "worker") != "worker"}
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    trained = [row for row in rows if row.get("rank") not in services]
    origin = min((_number(row.get("begin")) or 0.0 for row in trained), default=0.0)
    for row in trained:
        loss, step = _number(row.get("loss")), _number(row.get("step"))
        if loss is None or step is None:
            continue
        samples = _number(row.get("samples"))
        one = sums[int(step)]
        one[0] += loss * (1.0 if samples is None else samples)
        one[1] += 1.0 if samples is None else samples
        one[2] = max(one[2], _number(row.get("end")) or 0.0)
    return [Point(step, end - origin, loss / n) for step, (loss, n, end) in sorted(sums.items()) if n > 0]


def _busiest(ranks: Sequence[Object], rows: Sequence[Object], steps: int) -> float | None:
    """Bytes per step of the rank that sends most; of a rank that counts no steps, its total over the run's steps."""
    sent: dict[Any, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        sent[row.get("rank")][0] += _number(row.get("bytes")) or 0.0
        sent[row.get("rank")][1] += 1
    means = [total / count for total, count in sent.values()]
    if steps:
        means += [(_number(r.get("bytes_sent")) or 0.0) / steps for r in ranks if r.get("rank") not in sent]
    return max(means, default=None)


def _rows(path: Path) -> Iterator[Object]:
    """The lines of steps.jsonl; a line that is cut off ends them."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield _object(json.loads(line))
    except (OSError, ValueError):
        return


def _load(path: Path) -> Object:
    content = read_json(path)
    if not isinstance(content, Mapping):
        raise TaskError(f"{str(path)!r} is no run of geartrain: expected an object, found {type(content).__name__}")
    return content


def read_json(path: Path) -> Any:
    """The content of a file; TaskError when it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TaskError(
            f"{str(path)!r} cannot be read as JSON: {error}\n  remove it, or run that cell again"
        ) from error


def _object(value: Any) -> Object:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _text(value: Any) -> str | None:
    return str(value) if value else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
