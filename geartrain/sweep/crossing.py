"""Where the order of strategies, or of a strategy and one node, changes along the first axis of a sweep."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

from geartrain.errors import GeartrainError
from geartrain.predict.closed import predict
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.predict.words import one_node
from geartrain.sweep.axis import Axis, Value
from geartrain.sweep.points import ONE_NODE, Crossing, Point, Swept, at_point

_HALVINGS = 20

_CLOSE = 1.0005
"""Ratio of two values between which a crossing is told."""

Contender = Callable[[Value], Prediction]
"""What is predicted of a strategy, or of one node, at a value of the first axis."""


def crossings(swept: Swept, base: Sequence[Question], weak: bool) -> Iterator[Crossing]:
    """All of them, between neighbours of the first axis, looked for by closed form; none where it has words.

    Args:
        base, weak: as for `geartrain.sweep.run.sweep`.
    """
    axis = swept.axes[0]
    if not axis.numeric:
        return
    for where, points in swept.lines():
        rivals = [_strategy(question, swept.axes, where, weak) for question in base]
        for before, after in pairwise(points):
            yield from _of_winners(swept, axis, where, before, after, rivals)
        alone = _one_node(base[0], swept.axes, where, weak)
        for index, name in enumerate(swept.strategies):
            for before, after in pairwise(points):
                yield from _of_one_node(axis, where, (before, after), (index, name), (alone, rivals[index]))


def _of_winners(
    swept: Swept, axis: Axis, where: Mapping[str, Value], before: Point, after: Point, rivals: Sequence[Contender]
) -> Iterator[Crossing]:
    first, second = before.winner, after.winner
    if first is None or second is None or first == second:
        return

    def still(value: Value) -> bool:
        return _rank(rivals[first](value)) >= _rank(rivals[second](value))

    at = _halved(axis, before, after, still)
    yield Crossing(axis.key, at, swept.strategies[first], swept.strategies[second], where)


def _of_one_node(
    axis: Axis,
    where: Mapping[str, Value],
    sides: tuple[Point, Point],
    strategy: tuple[int, str],
    contenders: tuple[Contender, Contender],
) -> Iterator[Crossing]:
    index, name = strategy
    ahead = [_ahead(point, index) for point in sides]
    if None in ahead or ahead[0] == ahead[1]:
        return
    alone, rival = contenders

    def still(value: Value) -> bool:
        return (rival(value).throughput > alone(value).throughput) == ahead[0]

    names = (name, ONE_NODE) if ahead[0] else (ONE_NODE, name)
    yield Crossing(axis.key, _halved(axis, *sides, still), *names, where)


def _ahead(point: Point, index: int) -> bool | None:
    """Whether a strategy is faster than one node; None where one of them is not known."""
    one = point.predictions[index]
    if isinstance(one, str) or point.one_node is None:
        return None
    return one.throughput > point.one_node.throughput


def _rank(prediction: Prediction) -> tuple[bool, float]:
    """What fits is before what does not, then what is faster."""
    return prediction.fits, prediction.throughput


def _strategy(question: Question, axes: Sequence[Axis], where: Mapping[str, Value], weak: bool) -> Contender:
    return lambda value: predict(at_point(question, axes, {axes[0].key: value, **where}, weak))


def _one_node(question: Question, axes: Sequence[Axis], where: Mapping[str, Value], weak: bool) -> Contender:
    def ask(value: Value) -> Prediction:
        moved = at_point(question, axes, {axes[0].key: value, **where}, weak)
        return predict(one_node(moved) or moved)

    return ask


def _halved(axis: Axis, before: Point, after: Point, still: Callable[[Value], bool]) -> float:
    """The value at which something ceases to hold; of whole numbers, the first at which it does not."""
    low, high = (float(point.at[axis.key]) for point in (before, after))
    try:
        for _ in range(_HALVINGS):
            if high - low <= 1 if axis.whole else 0 < high < low * _CLOSE:
                break
            middle = _between(axis, low, high)
            low, high = (middle, high) if still(int(middle) if axis.whole else middle) else (low, middle)
    except GeartrainError:  # some values between are impossible, as too few samples for so many workers
        return high
    return high if axis.whole else _between(axis, low, high)


def _between(axis: Axis, low: float, high: float) -> float:
    if axis.whole:
        return float((int(low) + int(high)) // 2)
    return math.sqrt(low * high) if low > 0 else (low + high) / 2
