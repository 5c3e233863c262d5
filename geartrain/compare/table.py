"""The results of a grid as one table of fixed width, the same in every terminal and in a file."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from geartrain.compare.cell import Result
from geartrain.compare.grid import Grid
from geartrain.compare.runner import Comparison
from geartrain.record.text import print_whole
from geartrain.runtime.targets import SMOOTHED, Targets
from geartrain.units import format_size

STRATEGY_WIDTH = 32
"""Columns that a strategy's text may take before it is folded."""

NOTE = """\
Times: mean over the steps after the first, of the slowest worker of each step. Sent: payload, mean per worker and step.
Efficiency: compute of the whole batch on one worker / (workers x step time).
Closed form: the strategy's own account of a step; where computing is measured, with that in place of a roofline's."""
"""What the columns mean, to be printed below the table."""

CODEC_NOTE = "Codec: encoding and decoding what is sent; it is a part of compute."
"""What is added where some method compresses."""

TARGET_NOTE = """\
Time to target: from the begin of training until {targets}; "-": not reached. A run stops
when it is. Evaluations are {charged}."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def comparison_table(comparison: Comparison) -> Table:
    """One row per cell; a cell that failed says so, its message stands below the table."""
    results = comparison.results
    factor, unit = _unit(results)
    table = Table(
        title=_title(comparison), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    several = len({result.cell.cluster.name for result in results}) > 1
    table.add_column("strategy", max_width=STRATEGY_WIDTH, overflow="fold")
    if several:
        table.add_column("cluster", no_wrap=True)
    metric = next((name for result in results for name in result.metrics), "metric")
    times_to_target = [result.time_to_target for result in results if result.time_to_target is not None]
    target_unit = _unit_of(times_to_target)
    coding = _codes(results)
    target = [f"time to\ntarget {target_unit[1]}"] if _asked(comparison.grid.targets) else []
    for header in (
        "workers",
        f"step\n{unit}",
        f"compute\n{unit}",
        *([f"codec\n{unit}"] if coding else []),
        f"exposed\ncomm. {unit}",
        f"wait\n{unit}",
        "samples\nper s",
        "effi-\nciency",
        "sent per\nworker",
        "messages",
        "final\nloss",
        metric,
        *target,
        f"closed\nform {unit}",
        "differ-\nence",
    ):
        table.add_column(header, justify="right", no_wrap=True)
    for i, result in enumerate(results):
        ends = i + 1 < len(results) and _block(results[i + 1]) != _block(result)
        where = [result.cell.cluster.name] if several else []
        values = _values(comparison, result, factor)
        if coding:
            values.insert(3, _number(result.mean.codec / factor) if result.mean else "-")
        if target:
            time = result.time_to_target
            values.insert(-2, "-" if time is None else _number(time / target_unit[0]))
        table.add_row(str(result.cell.strategy), *where, *values, end_section=ends)
    return table


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the table, the failures and what the columns mean, never narrower than the table needs."""
    print_whole(console, comparison_table(comparison))
    for line in failures(comparison):
        console.print(line, style="red", markup=False, highlight=False, soft_wrap=True)
    notes = [NOTE, *([CODEC_NOTE] if _codes(comparison.results) else []), *target_notes(comparison.grid)]
    for note in notes:
        console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)


def target_notes(grid: Grid) -> list[str]:
    """What the targets mean and what evaluating cost, where there are targets or evaluations."""
    targets = grid.targets
    if targets is None:
        return []
    virtual = grid.engine_name == "simulated"
    charged = "charged" if targets.charge_evaluation else f"not charged{'' if virtual else ': all workers pause'}"
    asked = _asked(targets)
    if not asked:
        return [f"Evaluations on the way, every {targets.every} steps, are {charged}."]
    return [TARGET_NOTE.format(targets=" and ".join(asked), charged=charged)]


def _asked(targets: Targets | None) -> list[str]:
    """The targets in words."""
    if targets is None:
        return []
    loss = [] if targets.loss is None else [f"the mean loss of {SMOOTHED} steps is {targets.loss:g}"]
    metric = [] if targets.metric is None else [f"the metric, every {targets.every} steps, is {targets.metric:g}"]
    return loss + metric


def failures(comparison: Comparison) -> list[str]:
    """A message for every cell that failed or was cut short, and for those that never ran."""
    cells: dict[str, list[str]] = {}  # one mistake of the user's often fails many cells: told once
    for result in comparison.results:
        if result.interrupted:
            steps = f"{result.steps} of {comparison.grid.steps} steps"
            cells.setdefault(f"stopped after {steps} ({result.error})", []).append(str(result.cell))
        elif result.error:
            cells.setdefault(result.error, []).append(str(result.cell))
    lines = [f"{'; '.join(names)}: {error}" for error, names in cells.items()]
    missing = len(comparison.grid.cells) - len(comparison.results)
    if missing:
        lines.append(f"{missing} of {len(comparison.grid.cells)} cells did not run")
    return lines


def _title(comparison: Comparison) -> str:
    grid = comparison.grid
    clusters = ", ".join(dict.fromkeys(cluster.name for cluster in grid.clusters))
    clock = "virtual time" if grid.engine_name == "simulated" else "measured"
    most = "at most " if _asked(grid.targets) else ""
    steps = f"{most}{grid.steps} steps of {grid.batch} samples"
    return f"{grid.subject} on {clusters}, {grid.engine_name} ({clock}): {steps}"


def _codes(results: Sequence[Result]) -> bool:
    """Whether some cell encodes what it sends."""
    return any(result.mean is not None and result.mean.codec > 0 for result in results)


def _block(result: Result) -> tuple[str, int]:
    return result.cell.cluster.name, result.cell.ranks


def _unit(results: Sequence[Result]) -> tuple[float, str]:
    """The unit for all times of the table, fitting the median step."""
    times = sorted(result.mean.step_time for result in results if result.mean)
    return _unit_of(times or sorted(result.closed_form_time for result in results if result.closed_form_time))


def _unit_of(times: Sequence[float]) -> tuple[float, str]:
    times = sorted(times)
    middle = times[len(times) // 2] if times else 1.0
    return next((pair for pair in _UNITS if middle >= pair[0]), _UNITS[-1])


def _values(comparison: Comparison, result: Result, factor: float) -> list[str]:
    mean, form, cell = result.mean, result.closed_form_time, result.cell
    closed = "-" if form is None else _number(form / factor)
    if mean is None:
        return [str(cell.ranks), "failed", *["-"] * 10, closed, "-"]
    efficiency = comparison.efficiency(result)
    return [
        str(cell.ranks),
        _number(mean.step_time / factor),
        _number(mean.compute / factor),
        _number(mean.exposed_communication / factor),
        _number(mean.wait / factor),
        _number(comparison.grid.batch / mean.step_time) if mean.step_time else "-",
        "-" if efficiency is None else f"{efficiency:.0%}",
        format_size(mean.bytes_sent),
        _number(mean.messages),
        _quality(result.final_loss),
        _quality(result.metric),
        closed,
        _percent(mean.step_time / form - 1) if form else "-",
    ]


def _number(value: float) -> str:
    """Counts as they are; else four digits, and what would show as zero but is not is told as less than it."""
    if isinstance(value, int) or value == 0:
        return f"{value:.0f}"
    if value >= 1000:
        return f"{value:.0f}"
    if value < 0.001:
        return "<0.001"
    decimals = 3 if value < 10 else 2 if value < 100 else 1
    return f"{value:.{decimals}f}"


def _quality(value: float | None) -> str:
    """A loss or a metric."""
    if value is None:
        return "-"
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def _percent(share: float) -> str:
    text = f"{share:+.1%}"
    return "0.0%" if float(text[:-1]) == 0 else text
