"""A sweep in words: who wins where, and where more machines begin to pay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from geartrain.sweep.axis import Axis, Value
from geartrain.sweep.points import ONE_NODE, Crossing, Point, Swept

MOST_LINES = 6
"""Values of the second axis that are told one by one."""


def verdict(swept: Swept) -> list[str]:
    """Sentences: the fastest strategy along the first axis, then where one node is as fast."""
    lines = list(swept.lines())
    shown = lines if len(lines) <= MOST_LINES else [lines[0], lines[len(lines) // 2], lines[-1]]
    return [sentence for where, points in shown for sentence in _line(swept, where, points)]


def _line(swept: Swept, where: Mapping[str, Value], points: Sequence[Point]) -> Iterator[str]:
    axis = swept.axes[0]
    head = "".join(f"At {other.key} {other.text(where[other.key])}: " for other in swept.axes[1:])
    found = [one for one in swept.crossings if one.where == where]
    yield head + _winners(swept, axis, points, [one for one in found if ONE_NODE not in (one.before, one.after)])
    evens = [one for one in found if ONE_NODE in (one.before, one.after)]
    if evens:
        told = ", ".join(f"{_other(one)} at {axis.key} {axis.text(_value(axis, one.at))}" for one in evens)
        yield f"{head}as fast as one node: {told}."


def _winners(swept: Swept, axis: Axis, points: Sequence[Point], crossings: Sequence[Crossing]) -> str:
    winners = [winner for winner, _ in groupby(points, key=lambda point: point.winner)]
    if winners == [None]:
        return "nothing could be predicted."
    names = ["nothing that can be predicted" if one is None else swept.strategies[one] for one in winners]
    if len(winners) == 1:
        return f"fastest at every value of {axis.key}: {names[0]}."
    if len(crossings) != len(winners) - 1:  # words have no order, and what cannot be predicted no crossing
        told = [f"{name} at {axis.text(value)}" for name, value in _by_value(swept, axis, points)]
        return f"fastest: {', '.join(told)}."
    told = [f"{names[0]} up to {axis.key} {axis.text(_value(axis, crossings[0].at))}"]
    told += [f"{n} up to {axis.text(_value(axis, c.at))}" for n, c in zip(names[1:], crossings[1:], strict=False)]
    return f"fastest: {', '.join(told)}, {names[-1]} beyond."


def _by_value(swept: Swept, axis: Axis, points: Sequence[Point]) -> Iterator[tuple[str, Value]]:
    for point in points:
        name = "nothing" if point.winner is None else swept.strategies[point.winner]
        yield name, point.at[axis.key]


def _other(crossing: Crossing) -> str:
    return crossing.after if crossing.before == ONE_NODE else crossing.before


def _value(axis: Axis, at: float) -> Value:
    return int(at) if axis.whole else at


def crossing_text(swept: Swept, one: Crossing) -> str:
    """ "below 35 Gbit/s dear, above synchronous"."""
    axis = swept.axes[0]
    where = "".join(f", {other.key} {other.text(one.where[other.key])}" for other in swept.axes[1:])
    at = f"{axis.key} {axis.text(_value(axis, one.at))}{where}"
    return f"{at}: below it {one.before} is faster, from it on {one.after}"
