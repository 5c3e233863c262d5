"""What is odd along an axis: a change without effect, or with the wrong one, and why, read off the steps' parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from geartrain.cost.compute import Roofline
from geartrain.predict.prediction import Prediction
from geartrain.strategies.text import written
from geartrain.sweep.axis import RUN_KEYS, SETTING, Axis, Value
from geartrain.sweep.points import Point, Swept

_SAME = 1e-9
"""Relative difference of step times that are equal but for rounding."""

_FLAT = 0.005
"""Relative difference of step times that nobody would notice."""

_WRONG = 1e-3
"""Relative change in the wrong direction that is told: planners round."""

_RISES: Mapping[str, int] = {
    "links.rate": -1,
    "links.latency": 1,
    "inner.rate": -1,
    "inner.latency": 1,
    "device.flops": -1,
    "device.memory_rate": -1,
    "device.launch_overhead": 1,
    "core.oversubscription": 1,
    "batch": 1,
    "batch_per_rank": 1,
}
"""Which way a step time goes when a value rises."""

_PARTS = ("compute", "exposed_communication", "wait", "bubble", "codec")


def warnings(swept: Swept) -> Iterator[str]:
    """A line for each strategy and axis on which something is odd, the same for all values of the other axis once."""
    for place, axis in enumerate(swept.axes):
        found: dict[str, list[Mapping[str, Value]]] = {}
        for where, points in _along(swept, place):
            for index, name in enumerate(swept.strategies):
                line = [(p.at[axis.key], p.predictions[index]) for p in points]
                known = [(value, one) for value, one in line if isinstance(one, Prediction)]
                for message in _line(axis, name, known, flat=len(swept.axes) == 1):
                    found.setdefault(message, []).append(where)
        for message, places in found.items():
            yield message + _places(swept, place, places)


def _along(swept: Swept, place: int) -> Iterator[tuple[Mapping[str, Value], list[Point]]]:
    """The points along one axis, for each value of the other one."""
    others = [axis for index, axis in enumerate(swept.axes) if index != place]
    if not others:
        yield {}, list(swept.points)
        return
    for value in others[0].values:
        yield {others[0].key: value}, [point for point in swept.points if point.at[others[0].key] == value]


def _places(swept: Swept, place: int, places: Sequence[Mapping[str, Value]]) -> str:
    if len(swept.axes) == 1:
        return ""
    other = swept.axes[1 - place]
    if len(places) == len(other.values):
        return f" (at every {other.key})"
    return f" (at {other.key} {', '.join(other.text(where[other.key]) for where in places)})"


def _line(axis: Axis, name: str, line: Sequence[tuple[Value, Prediction]], flat: bool) -> Iterator[str]:
    """What is odd of one strategy along an axis; with `flat`, also from where on it has hardly any effect."""
    if len(line) < 2:
        return
    times = [one.step_time for _, one in line]
    if axis.key not in RUN_KEYS and _spread(times) < _SAME:
        yield f"changing {axis.key} had no effect on {name}: {_why_none(axis, [one for _, one in line])}"
        return
    if not axis.numeric:
        return
    start = _flat_from(times) if flat and axis.key not in RUN_KEYS else None
    if start is not None:
        value, one = line[start]
        yield f"from {axis.key} {axis.text(value)} on it hardly changes {name}: {_why_flat(axis, one)}"
    way = _RISES.get(axis.key)
    if way is not None:
        yield from _wrong_way(axis, name, line, way)


def _spread(times: Sequence[float]) -> float:
    return (max(times) - min(times)) / max(times)


def _flat_from(times: Sequence[float]) -> int | None:
    """Where the last third of an axis, or more, begins to be flat; None where it is not."""
    index = len(times)
    while index > 0 and _spread(times[index - 1 :]) < _FLAT:
        index -= 1
    return index if 0 < index <= len(times) - max(2, -(-len(times) // 3)) else None


def _wrong_way(axis: Axis, name: str, line: Sequence[tuple[Value, Prediction]], way: int) -> Iterator[str]:
    """The worst step in the wrong direction, with the part of it that moved most."""
    pairs = [(line[index], line[index + 1]) for index in range(len(line) - 1)]
    (low, before), (high, after) = max(pairs, key=lambda pair: -way * _change(pair[0][1], pair[1][1]))
    change = _change(before, after)
    if -way * change < _WRONG:
        return
    grown = max(_PARTS, key=lambda part: -way * (getattr(after, part) - getattr(before, part)))
    verb, part = ("longer", "grows") if change > 0 else ("shorter", "shrinks")
    yield (
        f"with {axis.key} from {axis.text(low)} to {axis.text(high)} the step of {name} is {abs(change):.1%} {verb}, "
        f"against what one expects: its {grown.replace('_', ' ')} {part}"
    )


def _change(before: Prediction, after: Prediction) -> float:
    return after.step_time / before.step_time - 1


def _why_none(axis: Axis, line: Sequence[Prediction]) -> str:
    one, key = line[0], axis.key
    place = one.question.place()
    if key.startswith(SETTING):
        if key.removeprefix(SETTING) not in written(one.question.strategy):
            return "it has no such setting"
        return "its closed form does not depend on it here"
    if key.startswith(("links", "inner", "core", "topology")):
        if key.startswith(("links", "core", "topology.wire")) and place.num_nodes == 1:
            return "all ranks are on one node"
        if not one.bytes_per_rank and not one.busiest:
            return "it sends nothing"
        if not any(each.exposed_communication for each in line):
            return "exposed communication is 0 on the whole axis: computing hides it"
        return "the ranks that it slows down are not on such wires, or another wire bounds them"
    if key in ("device.flops", "device.memory_rate", "device.launch_overhead"):
        if not isinstance(one.question.model, Roofline):
            return f"computing is priced by {one.question.model}, which does not ask the device"
        if one.exposed_communication > one.compute:
            return "communication bounds the step, and computing hides behind it"
        return "something else bounds every layer"
    if key == "device.memory":
        return "it decides only whether a run fits"
    return "nothing in its step depends on it"


def _why_flat(axis: Axis, one: Prediction) -> str:
    shares = {part: getattr(one, part) / one.step_time for part in _PARTS}
    largest = max(shares, key=lambda part: shares[part])
    exposed = shares["exposed_communication"]
    tail = f", and {exposed:.1%} is exposed" if largest != "exposed_communication" else ""
    return f"{shares[largest]:.0%} of the step is {largest.replace('_', ' ')} there{tail}"
