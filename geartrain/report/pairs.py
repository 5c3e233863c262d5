"""The same cell on two engines: which runs belong together, how far they are apart, both timelines on one time axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from geartrain.report.reading import Object, Run, read_trace
from geartrain.report.timeline import Row, Timeline, timeline
from geartrain.report.words import workers_text

PREDICTING = "simulated"
"""The engine that predicts; what others say is measured."""

PHASES = ("step time", "compute", "exposed communication", "wait")


@dataclass(frozen=True)
class Pair:
    """A prediction and a measurement of the same cell."""

    predicted: Run
    measured: Run

    @property
    def name(self) -> str:
        """What tells the cell from others."""
        run = self.measured
        subject = f", {run.subject}" if run.subject else ""
        return f"{run.strategy}, {run.cluster}, {workers_text(run.workers)}{subject}"

    def phases(self) -> dict[str, tuple[float, float]]:
        """Kind of time -> seconds predicted and measured, of the mean step."""
        first, second = (
            (run.step_time or 0.0, run.compute, run.exposed, run.wait) for run in (self.predicted, self.measured)
        )
        return dict(zip(PHASES, zip(first, second, strict=True), strict=True))


def pairs(runs: Sequence[Run]) -> list[Pair]:
    """Each cell that was both predicted and measured, once for each engine that measured it, in the runs' order.

    Of several runs of a cell on one engine, the one with the median step time stands for them.
    """
    groups: dict[tuple[object, ...], dict[str, list[Run]]] = {}
    for run in runs:
        if run.step_time and not run.error:
            key = (run.strategy, run.cluster, run.workers, run.subject, run.batch)
            groups.setdefault(key, {}).setdefault(run.engine, []).append(run)
    found = []
    for engines in groups.values():
        predicted = engines.pop(PREDICTING, None)
        if predicted:
            found += [Pair(_median(predicted), _median(measured)) for measured in engines.values()]
    return found


def _median(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda run: run.step_time or 0.0)[(len(runs) - 1) // 2]


def both_timelines(pair: Pair, budget: int) -> Timeline | None:
    """The same steps of both runs, each from the begin of the first of them; None where a run left no trace."""
    runs = (pair.predicted, pair.measured)
    traces = [read_trace(run) for run in runs]
    lines = _lines(runs, traces, budget // 2, None)
    if lines and len({line.steps for line in lines}) > 1:  # the other run has more in flight, so fewer steps fit
        lines = _lines(runs, traces, budget // 2, min(line.steps for line in lines))
    if not lines:
        return None
    rows: list[Row] = []
    for run, line in zip(runs, lines, strict=True):
        rows.append(Row(run.engine, label=run.engine))
        rows += [replace(row, name=f"{run.engine}, {row.name}", label=row.name) for row in line.rows]
    return Timeline(0, max(line.length for line in lines), rows, lines[0].note, lines[0].steps)


def _lines(runs: Sequence[Run], traces: Sequence[Object | None], budget: int, most_steps: int | None) -> list[Timeline]:
    """One timeline for each run; none at all where one cannot be drawn."""
    lines = []
    for run, trace in zip(runs, traces, strict=True):
        line = None if trace is None else timeline(trace, run.ranks, budget, most_steps)
        if line is None:
            return []
        lines.append(line)
    return lines
