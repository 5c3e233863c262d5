"""Predictions as one table of fixed width, the same in every terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from geartrain.predict.memory import RankMemory
from geartrain.predict.prediction import Prediction
from geartrain.units import format_size

NOTE = """\
Step: of the slowest worker; compute, exposed communication, wait and what stands beside them add up to it.
Efficiency: samples per second and worker over those of one worker alone. MFU: the model's operations per second over
the devices' peak. Memory: of the rank that needs most, and what its device has; "!": more than that.
Sent: payload, mean per worker and step."""
"""What the columns mean, to be printed below the table."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_STEPS = 1000
"""Steps that money is told for: that of one is a small fraction of a cent."""


def predictions_table(predictions: Sequence[Prediction]) -> Table:
    """One row per prediction; columns that are zero or unknown in all of them are left out."""
    factor, unit = _unit([one.step_time for one in predictions])
    table = Table(
        title=_title(predictions), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    columns: dict[str, list[str]] = {
        "workers": [str(one.question.ranks) for one in predictions],
        "batch": [str(one.question.batch) for one in predictions],
        f"step\n{unit}": [number(one.step_time / factor) for one in predictions],
        f"compute\n{unit}": [number(one.compute / factor) for one in predictions],
        f"exposed\ncomm. {unit}": [number(one.exposed_communication / factor) for one in predictions],
    }
    for name in ("wait", "bubble", "codec"):
        values = [float(getattr(one, name)) for one in predictions]
        if any(values):
            columns[f"{name}\n{unit}"] = [number(value / factor) for value in values]
    columns["samples\nper s"] = [number(one.throughput) for one in predictions]
    columns["effi-\nciency"] = [f"{one.efficiency:.0%}" for one in predictions]
    columns["MFU"] = ["-" if one.mfu is None else f"{one.mfu:.1%}" for one in predictions]
    columns["sent per\nworker"] = [format_size(one.bytes_per_rank) for one in predictions]
    columns["memory"] = [_memory(one.memory) for one in predictions]
    if any(one.energy is not None for one in predictions):
        columns["energy\nJ"] = ["-" if one.energy is None else number(one.energy) for one in predictions]
    if any(one.price is not None for one in predictions):
        costs = ["-" if one.price is None else number(one.price * _STEPS) for one in predictions]
        columns[f"USD per\n{_STEPS} steps"] = costs
    _fill(table, predictions, columns)
    return table


def _fill(table: Table, predictions: Sequence[Prediction], columns: dict[str, list[str]]) -> None:
    several = len({one.question.cluster.name for one in predictions}) > 1
    table.add_column("strategy", max_width=32, overflow="fold")
    if several:
        table.add_column("cluster", no_wrap=True)
    for header in columns:
        table.add_column(header, justify="right", no_wrap=True)
    rows = zip(predictions, zip(*columns.values(), strict=True), strict=True)
    grouped = len(set(map(_block, predictions))) < len(predictions)
    for index, (one, row) in enumerate(rows):
        where = [one.question.cluster.name] if several else []
        ends = grouped and index + 1 < len(predictions) and _block(predictions[index + 1]) != _block(one)
        table.add_row(str(one.question.strategy), *where, *row, end_section=ends)


def _block(one: Prediction) -> tuple[str, int]:
    return one.question.cluster.name, one.question.ranks


def _title(predictions: Sequence[Prediction]) -> str:
    question = predictions[0].question
    clusters = ", ".join(dict.fromkeys(one.question.cluster.name for one in predictions))
    return f"{question.workload.name} on {clusters}, {predictions[0].how}, computing priced by {question.model}"


def _memory(memory: Sequence[RankMemory]) -> str:
    """ "2.1 of 16 GB", of the rank that has least room left."""
    worst = max(memory, key=lambda one: one.total / one.limit if one.limit else 0.0)
    room = f" of {format_size(worst.limit)}" if worst.limit else ""
    return f"{format_size(worst.total)}{room}{'' if worst.fits else ' !'}"


def _unit(times: Sequence[float]) -> tuple[float, str]:
    """The unit for all times of the table, fitting the median step."""
    middle = sorted(times)[len(times) // 2]
    return next((pair for pair in _UNITS if middle >= pair[0]), _UNITS[-1])


def number(value: float) -> str:
    """Four digits; what would show as zero but is not is told as less than it."""
    if value == 0 or value >= 1000:
        return f"{value:.0f}"
    if value < 0.001:
        return "<0.001"
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f}"
