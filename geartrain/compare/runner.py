"""Running a grid: run by run, with progress, and whatever goes wrong in one of them told and left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from geartrain.compare.cell import Result, run_cell, whole_batch_compute
from geartrain.compare.finished import read_result
from geartrain.compare.folder import GridFolder
from geartrain.compare.grid import Cell, Grid
from geartrain.runtime.targets import Targets
from geartrain.units import format_time


class Progress(Protocol):
    """Told what runs and what is done; a bar, lines, or nothing."""

    def start(self, what: str) -> None: ...

    def done(self, what: str) -> None: ...


@dataclass
class Comparison:
    """The results of a grid so far.

    Attributes:
        results: one per cell that was started, in the grid's order.
        baselines: cluster's name -> seconds that one worker alone computes for the whole batch.
        interrupted: the user stopped it; cells that have no result never ran.
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


@dataclass(frozen=True)
class Run:
    """A cell, or, before the first cell of each cluster, one worker alone on it; numbered in the grid's order."""

    number: int
    cell: Cell
    alone: bool = False

    def __str__(self) -> str:
        return f"one worker alone on {self.cell.cluster.name}" if self.alone else str(self.cell)


Outcome = Result | float | None
"""Of a cell its result; of one worker alone, the seconds it computes."""


def runs_of(grid: Grid) -> list[Run]:
    """All runs of a grid, in order."""
    runs: list[Run] = []
    clusters: set[str] = set()
    for cell in grid.cells:
        if grid.single and cell.cluster.name not in clusters:
            clusters.add(cell.cluster.name)
            runs.append(Run(len(runs), cell, alone=True))
        runs.append(Run(len(runs), cell))
    return runs


def num_runs(grid: Grid) -> int:
    """How often `Progress.done` is called when all goes well."""
    return len(runs_of(grid))


def perform(grid: Grid, run: Run) -> Outcome:
    """Do a run; where the grid goes on and the run is complete, read it."""
    if run.alone:
        return whole_batch_compute(grid, run.cell)
    known = read_result(grid, run.cell) if grid.resume else None
    return known or run_cell(grid, run.cell)


def run_grid(grid: Grid, progress: Progress) -> Comparison:
    """Check the grid, then do all of its runs; Ctrl-C ends it with what there is."""
    grid.check()
    folder = GridFolder(grid) if grid.out else None
    comparison = Comparison(grid)
    if folder:
        comparison.baselines.update(folder.baselines)
    runs = [run for run in runs_of(grid) if not (run.alone and run.cell.cluster.name in comparison.baselines)]
    for _ in range(num_runs(grid) - len(runs)):
        progress.done("")
    results: dict[int, Result] = {}
    try:
        for run, outcome in _outcomes(grid, runs, progress):
            if isinstance(outcome, Result):
                results[run.number] = outcome
                comparison.interrupted |= outcome.interrupted
            else:
                comparison.baselines[run.cell.cluster.name] = outcome
                if folder:
                    folder.keep_baseline(run.cell.cluster.name, outcome)
            progress.done(describe(run, outcome, grid.targets))
    except KeyboardInterrupt:
        comparison.interrupted = True
    comparison.results = [result for _, result in sorted(results.items())]
    if folder:
        folder.finish(
            [
                {**result.as_json(), "efficiency": comparison.efficiency(result), "error": result.error}
                for result in comparison.results
            ]
        )
    return comparison


def _outcomes(grid: Grid, runs: Sequence[Run], progress: Progress) -> Iterator[tuple[Run, Outcome]]:
    """Each run with its outcome as it ends; after a run that the user stopped, none is begun."""
    if grid.jobs > 1:
        from geartrain.compare.jobs import in_processes

        yield from in_processes(grid, runs, progress)
        return
    for run in runs:
        progress.start(str(run))
        outcome = perform(grid, run)
        yield run, outcome
        if isinstance(outcome, Result) and outcome.interrupted:
            return


def describe(run: Run, outcome: Outcome, targets: Targets | None = None) -> str:
    """A run and what came of it, in one line."""
    if not isinstance(outcome, Result):
        return f"{run}: {'failed' if outcome is None else format_time(outcome) + ' of computing a step'}"
    if outcome.interrupted:
        return f"{run}: stopped after {outcome.steps} steps"
    if outcome.error:
        return f"{run}: failed: {outcome.error.splitlines()[0]}"
    parts = [] if outcome.mean is None else [f"{format_time(outcome.mean.step_time)} a step"]
    parts += [] if outcome.final_loss is None else [f"loss {outcome.final_loss:.4g} after {outcome.steps} steps"]
    if outcome.time_to_target is not None:
        parts.append(f"target reached in {format_time(outcome.time_to_target)}")
    elif targets and (targets.loss, targets.metric) != (None, None):
        parts.append("target not reached")
    return f"{run}: {', '.join(parts) or 'done'}{' (read)' if outcome.read else ''}"
