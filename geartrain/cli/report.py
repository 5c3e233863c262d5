"""`geartrain report`: from folders of runs to one page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from geartrain.cli.output import results
from geartrain.report.page import write_report


def report(folders: Sequence[Path], out: Path | None) -> int:
    """Write the page and say where it stands; the exit code."""
    path = write_report(folders, out)
    results().print(str(path), markup=False, soft_wrap=True)
    return 0
