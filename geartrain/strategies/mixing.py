"""Mixing graphs of decentralised methods: who averages with whom, the matrix of it, and how fast models agree.

    X <- X T        X = [x_1 .. x_n], T doubly stochastic, T_ji > 0 only where j = i or i receives from j
    T_ji = 1 / (number of workers that i receives from + 1)

    ring          i receives from i - 1 and i + 1
    random_ring   the same on a ring in an order drawn anew for every step, alike on all workers
    exponential   i receives from i - 1, i - 2, i - 4, ..., i - 2^k, 2^k < n (directed; T is a circulant, not symmetric)
    uniform       everybody receives from everybody

The consensus distance is the mean over i of ||x_i - mean x||. Without gradients its square falls, per step, by a
*contraction* of at most

    fixed graphs     s^2, s the second largest singular value of T; |lambda_2|^2 where T is symmetric or a circulant
    relabelled ones  (||T||_F^2 - 1) / (n - 1), the mean over all orders: E[T T'] is a scalar off the all-ones direction

    spectral gap     1 - |lambda_2| of T, or of E[T] where T is drawn

Only numpy is used here. Draws depend on (seed, step) and nothing else: there is no state to save.

Source: the facts are derived; ring with weights 1/3 and random rings as in Lian et al. 2017 (arXiv 1705.09056) and
Zhang et al. 2020 (arXiv 2002.01119); the exponential graph as it is known in the field.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal

import numpy as np

from geartrain.errors import StrategyError, UnknownName

Graph = Literal["ring", "random_ring", "exponential", "uniform"]
Matrix = np.ndarray[Any, np.dtype[np.float64]]
Sources = tuple[tuple[int, ...], ...]
"""For each worker, those that it receives from, in a fixed order."""

_RING, _PARTNER, _MATCHING = 1, 2, 3


def ring(order: Sequence[int]) -> Sources:
    """Neighbours on a ring in this order; with two workers both sides are the same one, which counts once.

    Example:
        >>> ring([0, 2, 1, 3])
        ((3, 2), (2, 3), (0, 1), (1, 0))
    """
    size = len(order)
    found: list[tuple[int, ...]] = [()] * size
    for place, worker in enumerate(order):
        sides = (order[place - 1], order[(place + 1) % size])
        found[worker] = tuple(dict.fromkeys(side for side in sides if side != worker))
    return tuple(found)


def random_order(size: int, seed: int, step: int) -> tuple[int, ...]:
    """A permutation that belongs to (seed, step)."""
    return tuple(np.random.default_rng([_RING, seed, step]).permutation(size).tolist())


def sources(graph: Graph, size: int, seed: int = 0, step: int = 0) -> Sources:
    """Whom each of `size` workers receives from in a step; only `random_ring` looks at seed and step."""
    match graph:
        case "ring":
            return ring(range(size))
        case "random_ring":
            return ring(random_order(size, seed, step))
        case "exponential":
            hops = [1 << k for k in range((size - 1).bit_length())]
            return tuple(tuple((worker - hop) % size for hop in hops) for worker in range(size))
        case "uniform":
            return tuple(tuple(other for other in range(size) if other != worker) for worker in range(size))
    raise UnknownName("mixing graph", graph, ("ring", "random_ring", "exponential", "uniform"))


def targets(received: Sources) -> Sources:
    """For each worker, those that receive from it, in the order of rank."""
    return tuple(tuple(i for i, those in enumerate(received) if worker in those) for worker in range(len(received)))


def mixing_matrix(received: Sources) -> Matrix:
    """T as in the module: column i holds the weights with which worker i averages."""
    matrix = np.zeros((len(received), len(received)))
    for worker, those in enumerate(received):
        matrix[[worker, *those], worker] = 1 / (len(those) + 1)
    return matrix


# AD-PSGD: pairs


def partners(graph: Literal["ring", "random"], size: int) -> Sources:
    """Bipartite roles: for each worker, the passive ones that it may ask, if it is active; () for a passive one.

    Even workers are active and odd ones passive, so that nobody waits for somebody who waits. On a ring of an odd
    number the first and the last worker are both active, and that one edge is left out.
    """
    passive = range(1, size, 2)
    if graph == "random":
        return tuple(() if worker % 2 else tuple(passive) for worker in range(size))
    return tuple(
        () if worker % 2 else tuple(side for side in ring(range(size))[worker] if side % 2) for worker in range(size)
    )


def draw(among: Sequence[int], seed: int, worker: int, count: int) -> int:
    """The partner of a worker's exchange number `count`, each as likely as the others."""
    return among[int(np.random.default_rng([_PARTNER, seed, worker, count]).integers(len(among)))]


def matching(size: int, seed: int, step: int) -> tuple[tuple[int, int], ...]:
    """A random perfect matching; with an odd number, one worker idles."""
    order = np.random.default_rng([_MATCHING, seed, step]).permutation(size).tolist()
    return tuple(zip(order[0 : size - 1 : 2], order[1::2], strict=True))


def pair_matrix(pairs: Sequence[tuple[int, int]], size: int) -> Matrix:
    """T of workers that average in pairs; who is in none keeps its model."""
    matrix = np.eye(size)
    for i, j in pairs:
        matrix[np.ix_((i, j), (i, j))] = 0.5
    return matrix


@cache
def mean_exchange(graph: Literal["ring", "random"], size: int) -> Matrix:
    """E[T] of one pair exchange of AD-PSGD: each active worker as likely, each of its partners as likely."""
    asked = partners(graph, size)
    active = [worker for worker in range(size) if asked[worker]]
    whole = np.eye(size) if not active else np.zeros((size, size))
    for worker in active:
        for other in asked[worker]:
            whole += pair_matrix([(worker, other)], size) / (len(active) * len(asked[worker]))
    whole.setflags(write=False)  # whoever asks again gets the same one
    return whole


# How fast models agree


def spectral_gap(matrix: Matrix) -> float:
    """1 - |lambda_2|; 1 for a worker alone."""
    sizes = np.sort(np.abs(np.linalg.eigvals(matrix)))
    return float(1 - sizes[-2]) if len(sizes) > 1 else 1.0


def contraction(matrix: Matrix) -> float:
    """Bound of the squared consensus distance after a step over that before, for a fixed T; 0 for a worker alone."""
    size = len(matrix)
    return float(np.linalg.norm(matrix - 1 / size, 2) ** 2)


def relabelled_contraction(matrix: Matrix) -> float:
    """Its mean where the workers are put on T's places in a random order for every step; exact, not a bound."""
    size = len(matrix)
    return max(0.0, float((np.sum(matrix**2) - 1) / (size - 1))) if size > 1 else 0.0


def gap(*, graph: Graph, ranks: int) -> float:
    """Spectral gap of a graph's T, or E[T] for a random ring.

    Example:
        >>> round(gap(graph="ring", ranks=16), 4), round(gap(graph="exponential", ranks=16), 4)
        (0.0507, 0.4)
    """
    matrix = mixing_matrix(sources(graph, _size(ranks)))
    if graph == "random_ring":
        share = (np.trace(matrix) - 1) / (ranks - 1) if ranks > 1 else 0.0  # its eigenvalue off the all-ones direction
        return 1 - abs(float(share))
    return spectral_gap(matrix)


def squared_contraction(*, graph: Graph | Literal["matching", "pair"], ranks: int) -> float:
    """What a step leaves of the squared consensus distance: at most for fixed graphs, on average for drawn ones.

    Args:
        graph: besides the graphs, "matching": a random perfect matching; "pair": one random pair.
        ranks: workers.

    Example:
        >>> round(squared_contraction(graph="random_ring", ranks=16), 4)
        0.2889
    """
    size = _size(ranks)
    match graph:
        case "random_ring":
            return relabelled_contraction(mixing_matrix(ring(range(size))))
        case "matching":
            return relabelled_contraction(pair_matrix(matching(size, 0, 0), size))
        case "pair":
            return relabelled_contraction(pair_matrix([(0, 1)] if size > 1 else [], size))
        case _:
            return contraction(mixing_matrix(sources(graph, size)))


def told(graph: Graph, size: int) -> str:
    """Gap and contraction in words, for notes."""
    left = squared_contraction(graph=graph, ranks=size)
    words = "on average" if graph == "random_ring" else "at most"
    rounds = "1 step" if left < 1e-12 else f"{math.log(0.01) / math.log(left):.1f} steps"
    return (
        f"spectral gap {gap(graph=graph, ranks=size):.4g} for {size} learner(s) on {graph}: a step leaves {words} "
        f"{left:.4g} of the squared consensus distance, {rounds} a hundredth"
    )


def _size(ranks: int) -> int:
    if ranks < 1:
        raise StrategyError(f"a mixing graph of {ranks} workers cannot be; give 1 or more")
    return ranks
