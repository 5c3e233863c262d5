"""Where the command line writes: results on standard output, progress and complaints on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from geartrain.record.files import plain


def results() -> Console:
    """Standard output, for people."""
    return Console(highlight=False)


def notices() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False)


def complain(error: Exception) -> None:
    """One message in red, named after the error's class; text of the user's is never read as markup."""
    notices().print(f"{type(error).__name__}: {error}", style="red", markup=False, soft_wrap=True)


def tell(*lines: str) -> None:
    """Lines on standard error that a reader of the results should know."""
    for line in lines:
        notices().print(line, style="dim", markup=False, soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON on standard output and nothing else there."""
    json.dump(plain(value), sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


class Bar:
    """A bar over the runs of a grid, with the time that is left, told by the runs so far."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def start(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def done(self, what: str) -> None:
        self._progress.advance(self._task)


class Lines:
    """A line for each run that has ended, where standard error is no terminal."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def start(self, what: str) -> None:
        return

    def done(self, what: str) -> None:
        self._done += 1
        if what:
            tell(f"{self._done}/{self._total} {what}")


@contextmanager
def told(total: int) -> Iterator[Bar | Lines]:
    """Tells on standard error how a grid of so many runs goes on: a bar on a terminal, else lines."""
    if not notices().is_terminal:
        yield Lines(total)
        return
    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=notices(), transient=True) as progress:
        yield Bar(progress, progress.add_task("", total=total))
