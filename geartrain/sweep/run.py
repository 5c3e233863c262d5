"""A sweep: predictions along one or two axes, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from geartrain.predict.closed import predict
from geartrain.predict.question import Question
from geartrain.sweep.axis import Axis
from geartrain.sweep.check import warnings
from geartrain.sweep.crossing import crossings
from geartrain.sweep.points import Ask, Swept, ask_all


def sweep(
    base: Sequence[Question],
    axes: Sequence[Axis],
    *,
    by: Ask = predict,
    weak: bool = True,
    told: Callable[[], None] = lambda: None,
) -> Swept:
    """All points, where the order changes, and what is odd.

    Args:
        base: the same run with each strategy.
        axes: one or two.
        by: what answers at the points; where the order changes is looked for by closed form in any case.
        weak: more ranks have a larger batch, so that each keeps its samples; else the global batch stays.
        told: called after each point.
    """
    swept = ask_all(base, axes, by=by, weak=weak, told=told)
    found = tuple(crossings(swept, base, weak))
    return replace(swept, crossings=found, warnings=tuple(warnings(swept)))
