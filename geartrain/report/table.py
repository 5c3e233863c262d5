"""The table of all cells, as HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from geartrain.record.text import time_text
from geartrain.report.reading import Run
from geartrain.report.svg import breakable, element, text
from geartrain.report.words import count_text, workers_text
from geartrain.units import format_size

Column = tuple[str, Callable[[Run], str | None]]


def _time(value: float | None) -> str | None:
    return None if value is None else time_text(max(value, 0.0))


def _percent(value: float | None, sign: str = "") -> str | None:
    if value is None:
        return None
    written = f"{value:{sign}.1%}"
    return "0.0%" if float(written[:-1]) == 0 else written


def _plain(value: float | None, form: str = ".4g") -> str | None:
    return None if value is None else f"{value:{form}}"


def _part(value: float, run: Run) -> str | None:
    return None if run.step_time is None else _time(value)


_PLACES: tuple[Column, ...] = (("engine", lambda run: run.engine or None), ("cluster", lambda run: run.cluster or None))


def _columns(runs: Sequence[Run]) -> list[Column]:
    """The strategy, where it ran, then numbers; a place that all runs share goes to the end, out of the way."""
    places = {name: len({value(run) for run in runs}) > 1 for name, value in _PLACES}
    metric = next((run.metric_name for run in runs if run.metric is not None), "metric")
    first = [column for column in _PLACES if places[column[0]]]
    last = [column for column in _PLACES if not places[column[0]]]
    return [("strategy", lambda run: run.strategy), *first, *_numbers(metric), *last]


def _numbers(metric: str) -> tuple[Column, ...]:
    return (
        ("workers", lambda run: str(run.workers)),
        ("step time", lambda run: _time(run.step_time)),
        ("compute", lambda run: _part(run.compute, run)),
        ("exposed comm.", lambda run: _part(run.exposed, run)),
        ("wait", lambda run: _part(run.wait, run)),
        ("samples per\u00a0s", lambda run: None if run.throughput is None else count_text(run.throughput)),
        ("efficiency", lambda run: _percent(run.efficiency)),
        ("sent per worker", lambda run: None if run.bytes_sent is None else format_size(run.bytes_sent)),
        ("messages", lambda run: _plain(run.messages)),
        ("final loss", lambda run: _plain(run.final_loss, ".4f")),
        (metric, lambda run: _plain(run.metric, ".4f")),
        ("time to target", lambda run: _time(run.time_to_target)),
        ("closed form", lambda run: _time(run.closed_form)),
        ("difference", lambda run: _percent(run.deviation, "+")),
    )


_ABSENT = {
    "efficiency": "no run on one worker alone is recorded to measure it against",
    "time to target": "no run has reached a target, or none was set",
    "closed form": "no strategy's account of a step is recorded",
    "final loss": "these runs have shapes and no numbers",
}
"""Why a column that nobody has a value for is left out; of the others it goes without saying."""


def cells_table(runs: Sequence[Run]) -> str:
    """A row per cell. Columns that no cell fills are left out, with a word why below."""
    columns = _columns(runs)
    classes = [None if name in ("strategy", "engine", "cluster") else "n" for name, _ in columns]
    values = [[value(run) for _, value in columns] for run in runs]
    filled = [any(row[j] is not None for row in values) for j in range(len(columns))]
    head = "".join(
        element("th", text(name), scope="col", cls=classes[j]) for j, (name, _) in enumerate(columns) if filled[j]
    )
    rows = []
    for run, row in zip(runs, values, strict=True):
        cells = [_cell(j, value, classes[j]) for j, value in enumerate(row) if filled[j]]
        rows.append(element("tr", "".join(cells), cls="failed" if run.error else None))
    table = element("table", element("thead", element("tr", head)) + element("tbody", "".join(rows)))
    words = [
        f"No {name} column: {_ABSENT[name]}."
        for (name, _), there in zip(columns, filled, strict=True)
        if not there and name in _ABSENT
    ]
    absent = element("p", text(" ".join(words)), cls="absent") if words else ""
    return element("div", table, cls="scroll", tabindex=0) + absent + failures(runs)


def _cell(j: int, value: str | None, cls: str | None) -> str:
    if j == 0:
        return element("th", breakable(value or ""), scope="row")
    return element("td", text("–" if value is None else value), cls=cls)


def failures(runs: Sequence[Run]) -> str:
    """What went wrong, each mistake once with the cells that it failed."""
    cells: dict[str, list[str]] = {}
    for run in runs:
        if run.error:
            cells.setdefault(run.error, []).append(f"{run.strategy} on {run.cluster}, {workers_text(run.workers)}")
    items = [
        element("li", element("b", text("; ".join(names))) + element("pre", text(error)))
        for error, names in cells.items()
    ]
    return element("ul", "".join(items), cls="errors") if items else ""
