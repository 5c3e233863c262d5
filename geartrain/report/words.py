"""The report in words, computed from its numbers: who wins and why, and what bounds the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from geartrain.record.text import time_text
from geartrain.report.reading import Run
from geartrain.units import format_size

_CLEAR = 0.05
"""Speeds closer than this share are called equal, and so is a closed form."""

_NAMED = 3  # strategies that a sentence names at most

_BOUND = 0.5
"""A kind of time with more than this share of the step bounds it."""


@dataclass(frozen=True)
class Facet:
    """Runs that may be compared with each other: the same subject, cluster and engine."""

    title: str
    runs: list[Run]

    @property
    def done(self) -> list[Run]:
        """Those that have a step time."""
        return [run for run in self.runs if run.step_time]

    @property
    def rivals(self) -> list[Run]:
        """Those that went to their end, which is what a verdict may be on."""
        return [run for run in self.done if not run.error]


def facets(runs: Sequence[Run]) -> list[Facet]:
    """The runs by subject, cluster and engine, in the order in which they come."""
    groups: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.subject, run.cluster, run.engine), []).append(run)
    # A cell that left nothing does not know its subject: it goes where its cluster and engine are.
    for key in [key for key in groups if not key[0]]:
        home = next((other for other in groups if other[0] and other[1:] == key[1:]), None)
        if home:
            groups[home] += groups.pop(key)
    several = [len({key[i] for key in groups}) > 1 for i in range(3)]
    made = []
    for (subject, cluster, engine), members in groups.items():
        named = [part for part, varies in zip((subject, cluster, engine), several, strict=True) if varies and part]
        made.append(Facet(", ".join(named), members))
    return made


def about(runs: Sequence[Run]) -> str:
    """One line on what was run."""
    subjects, clusters, engines = (
        ", ".join(dict.fromkeys(getattr(run, name) for run in runs if getattr(run, name)))
        for name in ("subject", "cluster", "engine")
    )
    virtual = any(run.raw.get("virtual") for run in runs)
    clock = " (virtual time)" if virtual and "," not in engines else ""
    return f"{subjects or 'a run'} on {clusters or 'unknown machines'}, {engines or 'unknown'} engine{clock}"


def headline(runs: Sequence[Run]) -> list[list[str]]:
    """Groups of sentences, the most important first in each: one for every facet, then what concerns all runs."""
    groups = [_contest(facet) for facet in facets(runs) if facet.rivals] or [["No run came far enough to compare."]]
    groups[-1] += [sentence for sentence in (_failures(runs), _agreement(runs)) if sentence]
    return groups


def _contest(facet: Facet) -> list[str]:
    """The winner at the largest number of workers, its lead, what bounds it, and who reaches the target first."""
    most = max(run.workers for run in facet.rivals)
    rivals = sorted((run for run in facet.rivals if run.workers == most), key=_pace)
    first, where = rivals[0], f"On {facet.title or rivals[0].cluster or 'this machine'} with {workers_text(most)}"
    speed = f"{time_text(first.step_time or 0.0)} a step" + _rate(first)
    equals = [run for run in rivals[1:] if _pace(run) < (1 + _CLEAR) * _pace(first)]
    slower = [run for run in rivals[1:] if run not in equals]
    if len(rivals) == 1:
        sentences = [f"{where}, {first.strategy} takes {speed}."]
    elif equals:
        names = " and ".join(run.strategy for run in equals[:_NAMED])
        names += f" and {len(equals) - _NAMED} more" if len(equals) > _NAMED else ""
        sentences = [f"{where}, {first.strategy} is fastest with {speed}, with no clear lead over {names}."]
    else:
        sentences = [f"{where}, {first.strategy} wins with {speed}."]
    for run in slower[:1] + slower[1:][-1:]:
        sentences.append(_lead(first, run))
    sentences.append(_bound(first))
    reached = [run for run in facet.done if run.time_to_target is not None]
    if reached:
        best = min(reached, key=lambda run: run.time_to_target or 0.0)
        sentences.append(
            f"{best.strategy} with {workers_text(best.workers)} is the first at the target, "
            f"after {time_text(best.time_to_target or 0.0)}; {len(reached)} of {len(facet.runs)} runs reach it."
        )
    return sentences


def _pace(run: Run) -> float:
    """Seconds per sample where the batch is known, else per step."""
    return 1 / run.throughput if run.throughput else run.step_time or float("inf")


def _rate(run: Run) -> str:
    return f" ({count_text(run.throughput)} samples per second)" if run.throughput else ""


def count_text(value: float) -> str:
    """A count or rate for people: whole from a hundred on, with commas."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def workers_text(count: int) -> str:
    """`1 worker`, `4 workers`."""
    return "1 worker" if count == 1 else f"{count} workers"


def _lead(first: Run, other: Run) -> str:
    """How much slower the other is, and which kind of time the difference consists of."""
    ratio = _pace(other) / _pace(first)
    sentence = f"{other.strategy} takes {ratio:.3g} times as long"
    difference = (other.step_time or 0.0) - (first.step_time or 0.0)
    if difference <= 0:  # another batch: the steps are not comparable, the paces are
        return sentence + " for a sample."
    more = {
        "computing": other.compute - first.compute,
        "exposed communication": other.exposed - first.exposed,
        "waiting": other.wait - first.wait,
    }
    kind = max(more, key=lambda name: more[name])
    sentence += f": {min(more[kind] / difference, 1):.0%} of the difference of {time_text(difference)} is {kind}"
    if kind != "computing" and first.busiest and other.busiest and other.busiest > (1 + _CLEAR) * first.busiest:
        sent = f"{format_size(other.busiest)} a step instead of {format_size(first.busiest)}"
        return f"{sentence}; its busiest rank sends {sent}."
    if kind != "computing" and first.messages and other.messages and other.messages > (1 + _CLEAR) * first.messages:
        return f"{sentence}; a worker sends {other.messages:.4g} messages a step instead of {first.messages:.4g}."
    return sentence + "."


def _bound(run: Run) -> str:
    whole = run.step_time or 1.0
    parts = {
        "communication that nothing hides": run.exposed,
        "computing": run.compute,
        "waiting for other ranks": run.wait,
    }
    kind = max(parts, key=lambda name: parts[name])
    share = parts[kind] / whole
    rest = ", ".join(f"{name} {length / whole:.1%}" for name, length in parts.items() if name != kind)
    if share > _BOUND:
        return f"What bounds the step of {run.strategy} is {kind}: {share:.1%} of it ({rest})."
    return f"Nothing bounds the step of {run.strategy} alone: {kind} {share:.1%}, {rest}."


def _failures(runs: Sequence[Run]) -> str:
    failed = [run for run in runs if run.error]
    if not failed:
        return ""
    counts = Counter(run.strategy for run in failed)
    names = ", ".join(name if count == 1 else f"{name} ({count} times)" for name, count in counts.items())
    return f"{len(failed)} of {len(runs)} runs failed or ended early: {names} (reasons below the table)."


def _agreement(runs: Sequence[Run]) -> str:
    known = [(abs(run.deviation), run) for run in runs if run.deviation is not None]
    if not known:
        return ""
    worst, run = max(known, key=lambda pair: pair[0])
    if worst < 0.0005:
        return "All step times equal their closed forms to within 0.05 %."
    name = f"{run.strategy}, {run.engine}, {run.cluster}, {workers_text(run.workers)}"
    return f"Step times differ from their closed forms by at most {worst:.1%} ({name})."
