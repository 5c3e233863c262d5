"""An order of devices in which neighbours have fast wires, by recursive minimum cuts (the RDO of SPP).

    order(U) = U                                  if |U| <= 1 or all wires within U are equally fast
    (U1, U2) = minimum cut of the graph on U      weights: bytes per second between two devices
    order(U) = order(U1) ++ order(U2)             each possibly reversed, so that the ends that touch have a fast wire

Slow boundaries are crossed as few times as possible by stages that are stretches of this order. Paper: Luo and others,
2022, arXiv 2204.10562; recalled. Chosen here: the side with the smallest device comes first; among cuts of equal weight
the most balanced one; the order of equally fast devices stays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import networkx

_FEW = 10
"""Devices up to which all cuts are looked at (511), to find the most balanced of equal weight; chosen."""

_SAME = 1e-9
"""Relative difference below which two rates are the same."""

Rates = Sequence[Sequence[float]]
"""rates[a][b]: bytes per second between devices a and b, the same both ways; infinite if nothing is in between."""


def min_cut_order(rates: Rates) -> tuple[int, ...]:
    """All devices in an order in which slow wires are crossed seldom.

    Example: devices 0 and 2 in one place, 1 and 3 in another.
        >>> min_cut_order([[0, 1, 9, 1], [1, 0, 1, 9], [9, 1, 0, 1], [1, 9, 1, 0]])
        (0, 2, 1, 3)
    """
    return _order(_finite(rates), tuple(range(len(rates))))


def _finite(rates: Rates) -> list[list[float]]:
    """No wire at all is faster than all wires together."""
    known = [rate for row in rates for rate in row if math.isfinite(rate)]
    fastest = len(rates) ** 2 * max(known, default=1.0) or 1.0
    return [[rate if math.isfinite(rate) else fastest for rate in row] for row in rates]


def _order(rates: Rates, devices: tuple[int, ...]) -> tuple[int, ...]:
    between = [rates[a][b] for a, b in itertools.combinations(devices, 2)]
    if len(devices) <= 1 or max(between) - min(between) <= _SAME * max(between):
        return devices
    first, second = _cut(rates, devices)
    left, right = _order(rates, first), _order(rates, second)
    joined = [(a, b) for a in (left, left[::-1]) for b in (right, right[::-1])]
    a, b = max(joined, key=lambda pair: rates[pair[0][-1]][pair[1][0]])  # of equal ones the first: nothing reversed
    return a + b


def _cut(rates: Rates, devices: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both sides of a minimum cut, each ascending, the one with the smallest device first."""
    if len(devices) > _FEW:
        graph = networkx.Graph()
        graph.add_weighted_edges_from((a, b, rates[a][b]) for a, b in itertools.combinations(devices, 2))
        _, sides = networkx.stoer_wagner(graph)
        first, second = sorted(tuple(sorted(side)) for side in sides)
        return first, second
    rest = devices[1:]
    found = []
    for size in range(len(rest)):
        for more in itertools.combinations(rest, size):
            first = (devices[0], *more)
            second = tuple(device for device in devices if device not in first)
            found.append((sum(rates[a][b] for a in first for b in second), first, second))
    least = min(weight for weight, _, _ in found)
    equal = [(first, second) for weight, first, second in found if weight <= least * (1 + _SAME)]
    return min(equal, key=lambda sides: (abs(len(sides[0]) - len(sides[1])), sides))
