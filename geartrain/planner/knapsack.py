"""One choice for each layer, so that all together take least time within a budget of memory: an integer programme.

    minimise  sum_k sum_l x_kl T_kl    subject to  sum_k sum_l x_kl M_kl <= budget,  sum_l x_kl = 1 for every k

A multiple-choice knapsack, solved exactly: layer by layer, of all partial choices those are kept that no other one
beats in both time and memory, and that can still become the best by Lagrange's bound

    time + sum over the layers left of min_l (T_kl + u M_kl) - u * (budget left) < best known

where u, the price of a byte, is the smallest at which the cheapest choices fit; these are also the first best known.

Source: Zou and others, 2017, arXiv 1709.06622, step 1; the solution is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

_HALVINGS = 60
"""Of the price of a byte, until it is known."""

_ROUNDING = 1e-12
"""Relative error of sums of floats."""


@dataclass(frozen=True)
class Choice:
    """One way of computing a layer.

    Attributes:
        name: what it is called.
        seconds: that it takes.
        memory: bytes that it needs, beyond what all ways need.
    """

    name: str
    seconds: float
    memory: int


@dataclass(frozen=True)
class Chosen:
    """The best choices, one per layer, in order."""

    choices: tuple[Choice, ...]
    seconds: float
    memory: int


@dataclass(frozen=True, slots=True)
class _Partial:
    """Choices of the first layers, the last one first in a chain."""

    seconds: float
    memory: int
    choice: Choice | None = None
    before: _Partial | None = None

    def choices(self) -> tuple[Choice, ...]:
        found, here = [], self
        while here.before is not None:
            assert here.choice is not None, "what has a choice before it is one"
            found.append(here.choice)
            here = here.before
        return tuple(reversed(found))


def choose(layers: Sequence[Sequence[Choice]], budget: int, *, shared: bool = False) -> Chosen | None:
    """The fastest choices within the budget, of least memory among equally fast ones; None where none fit.

    Args:
        layers: what there is to choose from, for each layer.
        budget: bytes for all layers.
        shared: layers use the same bytes one after another, so that the largest need counts and not the sum.
    """
    if shared:
        return _choose_shared(layers, budget)
    if sum(min(choice.memory for choice in layer) for layer in layers) > budget:
        return None
    price = _price(layers, budget)
    known = _cheapest(layers, price)
    best = sum(choice.seconds for choice in known)
    limit = best + _ROUNDING * (best + price * budget)
    bounds = _suffix_sums(min(c.seconds + price * c.memory for c in layer) for layer in layers)
    least = _suffix_sums(min(c.memory for c in layer) for layer in layers)
    front = [_Partial(0.0, 0)]
    for place, layer in enumerate(layers, start=1):
        grown = (
            _Partial(one.seconds + choice.seconds, one.memory + choice.memory, choice, one)
            for one in front
            for choice in layer
        )
        front = _undominated(
            one
            for one in grown
            if one.memory + least[place] <= budget
            and one.seconds + bounds[place] - price * (budget - one.memory) <= limit
        )
    winner = min(front, key=lambda one: (one.seconds, one.memory))
    return Chosen(winner.choices(), winner.seconds, winner.memory)


def _choose_shared(layers: Sequence[Sequence[Choice]], budget: int) -> Chosen | None:
    found = []
    for layer in layers:
        fitting = [choice for choice in layer if choice.memory <= budget]
        if not fitting:
            return None
        found.append(min(fitting, key=lambda choice: (choice.seconds, choice.memory)))
    memory = max((choice.memory for choice in found), default=0)
    return Chosen(tuple(found), sum(choice.seconds for choice in found), memory)


def _price(layers: Sequence[Sequence[Choice]], budget: int) -> float:
    """The smallest price of a byte, in seconds, at which the cheapest choices fit, to rounding."""

    def fits(price: float) -> bool:
        return sum(choice.memory for choice in _cheapest(layers, price)) <= budget

    if fits(0.0):
        return 0.0
    # At this price a byte costs more than all time there is, so each layer takes its least memory.
    low, high = 0.0, 1.0 + sum(max(choice.seconds for choice in layer) for layer in layers)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _cheapest(layers: Sequence[Sequence[Choice]], price: float) -> list[Choice]:
    return [min(layer, key=lambda choice: (choice.seconds + price * choice.memory, choice.memory)) for layer in layers]


def _suffix_sums(values: Iterable[float]) -> list[float]:
    """Entry k is the sum from place k on; one more entry than values, the last zero."""
    return [*accumulate(reversed(list(values)), initial=0.0)][::-1]


def _undominated(partials: Iterable[_Partial]) -> list[_Partial]:
    """Those that no other one beats in time and memory, by rising memory."""
    kept: list[_Partial] = []
    for one in sorted(partials, key=lambda one: (one.memory, one.seconds)):
        if not kept or one.seconds < kept[-1].seconds:
            kept.append(one)
    return kept
