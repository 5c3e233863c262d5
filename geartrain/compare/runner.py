"""Running a grid: cell by cell, with progress, and whatever goes wrong in one cell told and left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from geartrain.compare.cell import Result, run_cell, whole_batch_compute
from geartrain.compare.grid import Grid
from geartrain.record.files import RunFolder, readable, write_together


class Progress(Protocol):
    """Told what runs and what is done; a bar, or nothing."""

    def start(self, what: str) -> None: ...

    def done(self) -> None: ...


@dataclass
class Comparison:
    """The results of a grid so far.

    Attributes:
        results: one per cell that was started, in the grid's order.
        baselines: cluster's name -> seconds that one worker alone computes for the whole batch.
        interrupted: the user stopped it; the cells after the last result never ran.
    """

    grid: Grid
    results: list[Result] = field(default_factory=list)
    baselines: dict[str, float | None] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def failed(self) -> Sequence[Result]:
        return [result for result in self.results if result.error and not result.interrupted]

    def efficiency(self, result: Result) -> float | None:
        """compute of the whole batch on one worker / (workers * step time)."""
        alone = self.baselines.get(result.cell.cluster.name)
        if alone is None or result.mean is None or result.mean.step_time <= 0:
            return None
        return alone / (result.cell.ranks * result.mean.step_time)


def num_runs(grid: Grid) -> int:
    """How often `Progress.done` is called when all goes well."""
    return len(grid.cells) + (len(grid.clusters) if grid.single else 0)


def run_grid(grid: Grid, progress: Progress) -> Comparison:
    """Check the grid, then run all of its cells; Ctrl-C ends it with what there is."""
    grid.check()
    folder = RunFolder(grid.out) if grid.out else None
    comparison = Comparison(grid)
    try:
        _run_cells(grid, comparison, progress)
    except KeyboardInterrupt:
        comparison.interrupted = True
    if folder:
        objects = [result.as_json() for result in comparison.results]
        write_together({folder.path / "compare.json": readable(objects)})
    return comparison


def _run_cells(grid: Grid, comparison: Comparison, progress: Progress) -> None:
    for cell in grid.cells:
        name = cell.cluster.name
        if grid.single and name not in comparison.baselines:
            progress.start(f"one worker alone on {name}")
            comparison.baselines[name] = whole_batch_compute(grid, cell)
            progress.done()
        progress.start(str(cell))
        result = run_cell(grid, cell)
        comparison.results.append(result)
        progress.done()
        if result.interrupted:
            comparison.interrupted = True
            return
