"""The points of a sweep: a prediction for every strategy at every value of one or two axes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from geartrain.errors import GeartrainError
from geartrain.predict.change import changed
from geartrain.predict.closed import predict
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.predict.words import one_node
from geartrain.strategies.text import build, written
from geartrain.sweep.axis import SETTING, Axis, Value

ONE_NODE = "one node"
"""What stands for the devices of a single node among strategies."""

Ask = Callable[[Question], Prediction]


@dataclass(frozen=True)
class Point:
    """One point of a sweep.

    Attributes:
        at: the value of each axis, by key.
        predictions: of each strategy; a text where there is none, which says why.
        one_node: of the devices of one node with their share of the batch; None where no more are used.
    """

    at: Mapping[str, Value]
    predictions: tuple[Prediction | str, ...]
    one_node: Prediction | None = None

    @property
    def winner(self) -> int | None:
        """The strategy with the shortest step among those that fit; of all, if none fits."""
        known = [(one, index) for index, one in enumerate(self.predictions) if isinstance(one, Prediction)]
        fitting = [(one, index) for one, index in known if one.fits] or known
        return min(fitting, key=lambda pair: pair[0].step_time)[1] if fitting else None


@dataclass(frozen=True)
class Crossing:
    """Where the order of two changes along an axis.

    Attributes:
        key: of the axis.
        at: the value; of whole numbers, the first at which `after` is faster.
        before, after: who is faster below and above: a strategy, or one node.
        where: the value of the other axis.
    """

    key: str
    at: float
    before: str
    after: str
    where: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Swept:
    """A whole sweep; points in the order of the first axis, then of the second."""

    axes: tuple[Axis, ...]
    strategies: tuple[str, ...]
    points: tuple[Point, ...]
    crossings: tuple[Crossing, ...] = ()
    warnings: tuple[str, ...] = ()

    def lines(self) -> Iterator[tuple[Mapping[str, Value], list[Point]]]:
        """The points along the first axis, for each value of the second."""
        if len(self.axes) == 1:
            yield {}, list(self.points)
            return
        other = self.axes[1]
        for value in other.values:
            yield {other.key: value}, [point for point in self.points if point.at[other.key] == value]


def ask_all(base: Sequence[Question], axes: Sequence[Axis], *, by: Ask, weak: bool, told: Callable[[], None]) -> Swept:
    """Ask everything at every point, without crossings and warnings; arguments as for `geartrain.sweep.run.sweep`."""
    points = []
    for values in product(*(axis.values for axis in axes)):
        at = {axis.key: value for axis, value in zip(axes, values, strict=True)}
        points.append(_point(base, axes, at, by, weak))
        told()
    return Swept(tuple(axes), tuple(str(question.strategy) for question in base), tuple(points))


def at_point(question: Question, axes: Sequence[Axis], at: Mapping[str, Value], weak: bool) -> Question:
    """The question at a point; ranks first, since what each rank is given counts on how many there are."""
    for axis in sorted(axes, key=lambda axis: axis.key != "ranks"):
        question = _moved(question, axis, at[axis.key], weak)
    return question


def _moved(question: Question, axis: Axis, value: Value, weak: bool) -> Question:
    """The question at a value of an axis; a strategy that has no such setting stays as it is."""
    if axis.key == "ranks":
        batch = question.batch * int(value) // question.ranks if weak else question.batch
        return replace(question, ranks=int(value), batch=batch)
    if axis.key == "batch":
        return replace(question, batch=int(value))
    if axis.key == "batch_per_rank":
        return replace(question, batch=int(value) * question.ranks)
    if axis.key.startswith(SETTING):
        return _with_setting(question, axis, value)
    return replace(question, cluster=changed(question.cluster, axis.key, value))


def _with_setting(question: Question, axis: Axis, value: Value) -> Question:
    name, settings = axis.key.removeprefix(SETTING), written(question.strategy)
    if name not in settings:
        return question
    return replace(question, strategy=build(type(question.strategy), {**settings, name: axis.setting(value)}))


def _point(base: Sequence[Question], axes: Sequence[Axis], at: Mapping[str, Value], by: Ask, weak: bool) -> Point:
    predictions: list[Prediction | str] = []
    alone: Prediction | None = None
    for question in base:
        try:
            moved = at_point(question, axes, at, weak)
            predictions.append(by(moved))
            alone = alone or _alone(moved)
        except GeartrainError as error:
            predictions.append(str(error))
    return Point(at, tuple(predictions), alone)


def _alone(question: Question) -> Prediction | None:
    found = one_node(question)
    return predict(found) if found else None
