"""Max-min fair rates for given flows and links, in plain Python for a few flows and with arrays for many.

    sum_f weight[f, l] * rate[f] <= capacity[l]                     for every link l
    rate[f] = max over flows of l, on some full link l of f         for every flow f (its bottleneck)

All rates rise together; where a link is full, its flows stop. The level of a link is the rate at which it will be full.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Routed(Protocol):
    """What uses links."""

    @property
    def links(self) -> Sequence[int]:
        """Link ids, each once, at least one."""

    @property
    def weights(self) -> Sequence[float]:
        """Bytes on each of `links` per byte on the busiest: the largest is 1."""


def fair_rates(group: Sequence[Routed], capacities: Sequence[float]) -> list[float]:
    """Max-min fair rates of a few flows: again and again the tightest link freezes its flows."""
    if len(group) == 1:
        only = group[0]
        return [min([capacities[link] / weight for link, weight in zip(only.links, only.weights, strict=True)])]
    waiting: dict[int, dict[int, float]] = {}  # link -> flow without a rate -> its weight there
    for index, flow in enumerate(group):
        for link, weight in zip(flow.links, flow.weights, strict=True):
            waiting.setdefault(link, {})[index] = weight
    capacity_left = {link: capacities[link] for link in waiting}
    levels = {link: capacity_left[link] / sum(users.values()) for link, users in waiting.items()}
    rates = [0.0] * len(group)
    while levels:
        tightest = min(levels, key=levels.__getitem__)
        level = levels[tightest]
        changed: dict[int, None] = {}
        for index in list(waiting[tightest]):
            rates[index] = level
            for link in group[index].links:
                capacity_left[link] -= waiting[link].pop(index) * level
                changed[link] = None
        for link in changed:
            if waiting[link]:
                # Levels never fall; where rounding would have it so, the last one stands, and no rate becomes zero.
                levels[link] = max(level, capacity_left[link] / sum(waiting[link].values()))
            else:
                del levels[link]
    return rates


def fair_rates_arrays(
    links: NDArray[np.intp], weights: NDArray[np.float64], counts: NDArray[np.intp], capacities: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Max-min fair rates of many flows.

    Args:
        links: link id of each (flow, link) pair, those of a flow together. Shape (pairs,).
        weights: weight of each pair. Shape (pairs,).
        counts: number of pairs of each flow, at least 1. Shape (flows,).
        capacities: bytes per second. Shape (links,).
    """
    if not len(counts):
        return np.empty(0)
    # Links with a single user only bound that flow; leaving them out of the rounds halves the work.
    starts = np.cumsum(counts) - counts
    num_users = np.bincount(links, minlength=len(capacities))
    shared = num_users > 1
    keep = shared[links]
    bounds = np.minimum.reduceat(np.where(keep, np.inf, capacities[links] / weights), starts)
    counts = np.add.reduceat(keep, starts, dtype=np.intp)
    rates = bounds.copy()
    waiting = np.flatnonzero(counts)
    renumbered = (np.cumsum(shared) - 1)[links[keep]]
    rates[waiting] = _fill_rounds(renumbered, weights[keep], counts[waiting], capacities[shared], bounds[waiting])
    return rates


def _fill_rounds(
    links: NDArray[np.intp],
    weights: NDArray[np.float64],
    counts: NDArray[np.intp],
    capacities: NDArray[np.float64],
    bounds: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The same for flows with bounds: in each round, every link that is the tightest for all its flows freezes them."""
    num_links = len(capacities)
    rates = np.zeros(len(counts))
    waiting = np.arange(len(counts))
    level = np.zeros(num_links)
    while len(waiting):
        starts = np.cumsum(counts) - counts
        demand = np.bincount(links, weights, minlength=num_links)
        # As in the plain version, the level of a link never falls.
        np.maximum(level, np.divide(capacities, demand, where=demand > 0, out=np.zeros(num_links)), out=level)
        link_level = level[links]
        flow_level = np.minimum(np.minimum.reduceat(link_level, starts), bounds)
        tight = link_level == np.repeat(flow_level, counts)
        full = np.ones(num_links, dtype=np.bool_)
        full[links[~tight]] = False
        frozen = np.logical_or.reduceat(tight & full[links], starts) | (bounds == flow_level)
        rates[waiting[frozen]] = flow_level[frozen]
        stay = ~np.repeat(frozen, counts)
        spent = weights[~stay] * np.repeat(flow_level[frozen], counts[frozen])
        capacities = capacities - np.bincount(links[~stay], spent, minlength=num_links)
        links, weights = links[stay], weights[stay]
        counts, bounds, waiting = counts[~frozen], bounds[~frozen], waiting[~frozen]
    return rates
