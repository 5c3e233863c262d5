"""Text for people: times in tables, and tables that look the same in every terminal."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from geartrain.units import format_time

_WIDEST = 1000


def time_text(seconds: float) -> str:
    """A time for tables; what is less than a tenth of a nanosecond is rounding and shows as zero."""
    return format_time(seconds) if seconds >= 1e-10 else "0 s"


def print_whole(console: Console, table: Table) -> None:
    """Print a table in its own width, so that no terminal, pipe or file cuts or folds it differently."""
    width = console.width
    console.width = max(width, Measurement.get(console, console.options.update(max_width=_WIDEST), table).maximum)
    with console.capture() as capture:
        console.print(table)
    console.width = width
    lines = [line.rstrip() for line in capture.get().splitlines()]
    console.file.write("\n".join(lines) + "\n")
