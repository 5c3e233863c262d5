"""The figures of the report: which data goes into which drawing, and one sentence on how to read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geartrain.report.bars import (
    MOST_SQUARES,
    Bar,
    kinds_key,
    link_bars,
    note_on_links,
    split_bars,
    wait_matrix,
)
from geartrain.report.drawing import draw
from geartrain.report.plot import Axis, Series, axis_of, key, line_plot
from geartrain.report.reading import Object, Point, Run, read_trace
from geartrain.report.svg import element, text
from geartrain.report.timeline import rank_names, shown_ranks, timeline
from geartrain.report.words import Facet, workers_text

MOST_POINTS = 240
"""Points of a loss curve; of a longer one, means over equal numbers of steps."""


@dataclass(frozen=True)
class Looks:
    """The same colour and shape for a strategy, and the same dashes for a number of workers, in all figures."""

    strategies: Sequence[str]
    workers: Sequence[int]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Looks:
        return cls(list(dict.fromkeys(run.strategy for run in runs)), sorted({run.workers for run in runs}))

    def key(self, runs: Sequence[Run]) -> str:
        """The legend: a line for each strategy and, where there are several, one for each number of workers."""
        here = [name for name in self.strategies if any(run.strategy == name for run in runs)]
        lines = [
            Series(name=name, points=(), colour=self.strategies.index(name), shape=self.strategies.index(name))
            for name in here
        ]
        counts = [count for count in self.workers if any(run.workers == count for run in runs)]
        return key(lines, dashes=[(workers_text(n), self.workers.index(n)) for n in counts] if len(counts) > 1 else [])

    def series(self, run: Run, points: Sequence[tuple[float, float]]) -> Series:
        """The line of one run."""
        index = self.strategies.index(run.strategy)
        name = run.strategy if len(self.workers) == 1 else f"{run.strategy}, {workers_text(run.workers)}"
        dash = self.workers.index(run.workers)
        return Series(name=name, points=points, colour=index, shape=index, dash=dash)


def card(title: str, body: str, how: str, width: str | None = None) -> str:
    """A figure with its title above and how to read it below; `width`: None for one column, "double" or "wide"."""
    inside = element("h3", text(title)) + body + element("figcaption", text(how))
    return element("figure", inside, cls=width)


def absent(title: str, why: str) -> str:
    """What stands where a figure cannot."""
    return element("figure", element("h3", text(title)) + element("p", text(why), cls="absent"), cls="missing")


def _titled(name: str, facet: Facet) -> str:
    return f"{name}: {facet.title}" if facet.title else name


def step_split(facet: Facet) -> str:
    """Where the time of a step goes, a bar for each run."""
    title = _titled("Where a step's time goes", facet)
    bars = [
        Bar(
            name=run.strategy,
            suffix=f", {workers_text(run.workers)}",
            parts=(max(run.compute, 0.0), max(run.exposed, 0.0), max(run.wait, 0.0)),
            form=run.closed_form,
        )
        for run in sorted(facet.done, key=lambda run: run.workers)
    ]
    if not bars:
        return absent(title, "No run has finished a step.")
    form = any(bar.form is not None for bar in bars)
    how = (
        "Each bar is the mean step of the slowest worker: computing, standing still while bytes fly, waiting for others"
    )
    how += "; the diamond is the strategy's closed form." if form else "."
    return card(title, split_bars(bars, title) + kinds_key(form), how)


def scaling(facet: Facet, looks: Looks) -> str:
    """Step time and throughput against the number of workers, closed forms dashed."""
    title = _titled("Step time against workers", facet)
    counts = {
        strategy: {run.workers for run in facet.done if run.strategy == strategy} for strategy in looks.strategies
    }
    if max(map(len, counts.values())) < 2:
        return absent(title, "Scaling needs a strategy with at least two numbers of workers.")
    measured, forms = _scaling_series(facet, looks, rate=False)
    how = "Lower is better; where the dashed line leaves the pale one of its colour, run and closed form differ."
    first = _scaling_plot(title, measured, forms, "time of a step", "time", how)
    title = _titled("Throughput against workers", facet)
    measured, forms = _scaling_series(facet, looks, rate=True)
    if not measured:
        return first + absent(title, "The batch is not recorded, so samples per second are unknown.")
    how = (
        "Higher is better, and a line through the origin would be perfect scaling; dashed is what the closed form says."
    )
    return first + _scaling_plot(title, measured, forms, "samples per second", "count", how)


def _scaling_series(facet: Facet, looks: Looks, rate: bool) -> tuple[list[Series], list[Series]]:
    measured, forms = [], []
    for strategy in looks.strategies:
        runs = sorted((run for run in facet.done if run.strategy == strategy), key=lambda run: run.workers)
        index = looks.strategies.index(strategy)
        points = [(float(r.workers), _value(r, r.step_time, rate)) for r in runs]
        points = [point for point in points if point[1] > 0]
        form = [(float(r.workers), _value(r, r.closed_form, rate)) for r in runs]
        form = [point for point in form if point[1] > 0]
        if points:
            measured.append(Series(name=strategy, points=points, colour=index, shape=index, broad=True))
        if form:
            name = f"{strategy}, closed form"
            forms.append(Series(name=name, points=form, colour=index, shape=index, dash=1, bare=True))
    return measured, forms


def _value(run: Run, step_time: float | None, rate: bool) -> float:
    if not step_time:
        return 0.0
    if not rate:
        return step_time
    return run.batch / step_time if run.batch else 0.0


def _scaling_plot(
    title: str, measured: Sequence[Series], forms: Sequence[Series], name: str, kind: str, how: str
) -> str:
    series = [*measured, *forms]
    workers = sorted({point[0] for one in series for point in one.points})
    wide = workers[-1] > 4 * workers[0]
    x = Axis(title="workers" + (", logarithmic" if wide else ""), log=wide, zero=False, marks=workers)
    y = axis_of([point[1] for one in series for point in one.points], name, kind)
    return card(
        title, line_plot(series, x, y, title) + key(measured, dashes=[("closed form", 1)] if forms else []), how
    )


def losses(facet: Facet, looks: Looks) -> str:
    """Loss against time and against steps."""
    runs = [run for run in facet.runs if len(run.curve) > 1]
    title = _titled("Loss against time", facet)
    if not runs:
        return absent(_titled("Loss", facet), "These runs recorded no loss: they went through the motions of shapes.")
    curves = [(run, thinned(run.curve)) for run in runs]
    against_time = [looks.series(run, [(p.time, p.loss) for p in curve]) for run, curve in curves]
    against_steps = [looks.series(run, [(float(p.step), p.loss) for p in curve]) for run, curve in curves]
    longest = max(len(run.curve) for run in runs)
    means = "" if longest <= MOST_POINTS else f" Each point is a mean over up to {-(-longest // MOST_POINTS)} steps."
    y = Axis(title="loss", zero=False)
    time = "virtual time" if any(run.raw.get("virtual") for run in runs) else "time"
    first = card(
        title,
        line_plot(against_time, Axis(title=time, kind="time"), y, title) + looks.key(runs),
        f"The line that falls first learns most per second of {time}, counted from the first step.{means}",
    )
    title = _titled("Loss against steps", facet)
    return first + card(
        title,
        line_plot(against_steps, Axis(title="step"), y, title) + looks.key(runs),
        f"Lines that lie on each other learn the same per step, and differ in speed only.{means}",
    )


def thinned(curve: Sequence[Point]) -> list[Point]:
    """At most MOST_POINTS points: means of the loss over equal numbers of steps, at the last step of each."""
    each = -(-len(curve) // MOST_POINTS)
    if each <= 1:
        return list(curve)
    parts = [curve[i : i + each] for i in range(0, len(curve), each)]
    return [Point(part[-1].step, part[-1].time, sum(p.loss for p in part) / len(part)) for part in parts]


def run_timeline(run: Run, budget: int) -> str:
    """The timeline of a window of steps."""
    trace = read_trace(run)
    if trace is None:
        return absent("Timeline", "The folder has no trace that can be read.")
    line = timeline(trace, run.ranks, budget)
    if line is None:
        return absent("Timeline", "The trace holds no times to draw.")
    title = f"Timeline of {line.note}"
    bar = '<div class="zoom"></div>'
    how = (
        "For each rank, the thick band is what it did and the thin one below it the bytes in flight, "
        "with its lanes below that if it has any; point at a piece for its name and bytes."
    )
    thin = [("wire", "bytes in flight")] + ([("lane", "lanes")] if any(row.lanes for row in line.rows) else [])
    return card(title, bar + draw(line, title) + kinds_key(thin=thin), how, width="wide")


def run_ranks(run: Run) -> str:
    """Where the time of each rank goes over the whole run."""
    title = "Where each rank's time goes"
    by_number = {int(rank.get("rank", i)): rank for i, rank in enumerate(run.ranks)}
    if not by_number:
        return absent(title, "The folder does not say what each rank did.")
    shown, names = shown_ranks(run.ranks), rank_names(run.ranks)
    if len(shown) > 16:
        shown = sorted(shown, key=lambda number: (by_number[number].get("wait") or 0.0, number))
        shown = sorted({*shown[:4], *shown[len(shown) // 2 - 2 : len(shown) // 2 + 2], *shown[-4:]})
    bars = [
        Bar(
            name=names[number],
            parts=(_seconds(rank, "compute"), _seconds(rank, "exposed_communication"), _seconds(rank, "wait")),
        )
        for number, rank in ((number, by_number[number]) for number in shown)
    ]
    how = "The whole run of each rank; one whose bar is mostly computing is what others wait for."
    if len(shown) < len(by_number):
        how += f" {len(shown)} of {len(by_number)} ranks: those that waited least, about the median, and most."
    return card(title, split_bars(bars, title) + kinds_key(), how)


def _seconds(rank: Object, name: str) -> float:
    return max(float(rank.get(name) or 0.0), 0.0)


def run_links(run: Run) -> str:
    """Bytes on each link."""
    title = "Bytes per link and step"
    if not any(run.link_bytes.values()):
        return absent(title, f"The {run.engine or 'run'} engine does not see single links, or nothing crossed one.")
    how = "A link that stands out carries most and bounds what the others can do."
    how += " Payload bytes of the whole run, shared out over its steps."
    return card(title, link_bars(run.link_bytes, run.steps, title), how + note_on_links(run.link_bytes))


def run_waits(run: Run) -> str:
    """Who waited for whom."""
    title = "Who waited for whom"
    waits = {(rank, other): seconds for rank, other, seconds in run.waits if seconds > 0}
    if not waits:
        return absent(title, "No rank waited for another one.")
    names = rank_names(run.ranks)
    ranks = shown_ranks(run.ranks) or sorted({rank for rank, _ in waits})
    body = wait_matrix(waits, ranks, names, title)
    how = "Row waited for column, darker is longer, over the whole run; a dark column is a rank that holds others up."
    drawn = sum(rank in ranks for rank, _ in waits)
    how += f" Shown are the {MOST_SQUARES} longest of {drawn} waits." if drawn > MOST_SQUARES else ""
    return card(title, body, how)
