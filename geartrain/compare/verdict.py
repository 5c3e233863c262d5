"""Who wins and why, in one sentence computed from the results."""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.compare.cell import Result
from geartrain.record.text import time_text
from geartrain.units import format_size, format_time

_CLEAR = 1.05
"""Two numbers whose ratio is below this are called equal."""


def verdict(results: Sequence[Result]) -> str:
    """One sentence on each cluster's largest number of workers: the fastest strategy, the next and the slowest.

    Speed is step time. The reason is the kind of time that differs most; for communication, the first of these that
    differs: what the busiest rank sends, what is hidden behind compute, the number of messages. Where a target was
    reached, who came there first is said, too.
    """
    parts = []
    for cluster in dict.fromkeys(result.cell.cluster.name for result in results):
        here = [
            result for result in results if result.cell.cluster.name == cluster and result.mean and not result.error
        ]
        if not here:
            continue
        most = max(result.cell.ranks for result in here)
        rivals = sorted((r for r in here if r.cell.ranks == most), key=_step_time)
        parts.append(f"on {cluster} with {most} workers {_contest(rivals)}")
    if not parts:
        return "No run came far enough to compare."
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "." + _first_at_target(results)


def _first_at_target(results: Sequence[Result]) -> str:
    there = [(result.time_to_target, i) for i, result in enumerate(results) if result.time_to_target is not None]
    if not there:
        return ""
    time, first = min(there)
    return f" The target is reached first by {results[first].cell}, in {format_time(time)}."


def _contest(rivals: Sequence[Result]) -> str:
    first = rivals[0]
    name, time = first.cell.strategy, format_time(_step_time(first))
    if len(rivals) == 1:
        return f"{name} takes {time} a step"
    if _step_time(rivals[-1]) < _CLEAR * _step_time(first):
        return f"all strategies take about {time} a step"
    equals = [r for r in rivals[1:] if _step_time(r) < _CLEAR * _step_time(first)]
    text = f"{name} wins with {time} a step"
    if equals:
        text += " (no clear lead over " + ", ".join(str(r.cell.strategy) for r in equals) + ")"
        rivals = [first, rivals[-1]]
    others = rivals[1:2] if len(rivals) == 2 else [rivals[1], rivals[-1]]
    return f"{text}, " + " and ".join(_lead(first, other) for other in others)


def _lead(winner: Result, loser: Result) -> str:
    ratio = _step_time(loser) / _step_time(winner)
    return f"{ratio:.3g} times as fast as {loser.cell.strategy} ({_reason(winner, loser)})"


def _reason(winner: Result, loser: Result) -> str:
    """What explains the greatest part of the difference in step time."""
    fast, slow = winner.mean, loser.mean
    assert fast is not None and slow is not None
    parts = ("compute", "exposed_communication", "wait")
    most = max(parts, key=lambda part: float(getattr(slow, part) - getattr(fast, part)))
    if most == "compute":
        return f"it computes {format_time(fast.compute)} a step instead of {format_time(slow.compute)}"
    if most == "wait":
        return f"it waits {time_text(fast.wait)} a step instead of {time_text(slow.wait)}"
    exposed = slow.exposed_communication - fast.exposed_communication
    if loser.busiest > _CLEAR * winner.busiest:
        return f"its busiest rank sends {format_size(winner.busiest)} a step instead of {format_size(loser.busiest)}"
    if fast.hidden_communication - slow.hidden_communication > exposed / 2:
        return f"it hides {format_time(fast.hidden_communication)} of communication behind compute"
    if slow.messages > _CLEAR * fast.messages:
        return f"a worker sends {fast.messages:.4g} message(s) a step instead of {slow.messages:.4g}"
    return (
        f"it stands still {format_time(fast.exposed_communication)} a step for communication instead of "
        f"{format_time(slow.exposed_communication)}"
    )


def _step_time(result: Result) -> float:
    return result.mean.step_time if result.mean else float("inf")
