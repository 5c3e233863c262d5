"""Curves and fits of kernels from measured times; the error is told of kernels that were held out.

    curve      per doubling of bytes the geometric mean over the operations of the class; what falls is pooled
    product    seconds = overhead + x / rate,   x = 2 m n k (1 + h0 / m) (1 + h1 / n) (1 + h2 / k) times count
               overhead and rate by least squares of relative errors, halves by coordinate descent on a grid

Source: kernels by class of Lin et al. (2024, arXiv 2404.12674). Differs from the paper: it trains a small network
for products and convolutions; a form of five constants is told in a line, and fitted to thirty kernels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from geartrain.cost.curves import ProductFit, TimeCurve

Error = tuple[int, float, float]
"""How many kernels were held out, and their mean and worst relative error."""

_HALVES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
_ROUNDS = 4


@dataclass(frozen=True)
class Product:
    """A measured product of (m, k) and (k, n), `count` at once."""

    m: float
    n: float
    k: float
    count: float
    seconds: float


def fit_curve(points: Iterable[tuple[float, float]]) -> TimeCurve:
    """The curve through measured (bytes, seconds).

    What lies within a factor of two in bytes is one point; neighbours that fall are pooled until the times rise.
    """
    groups: dict[int, list[tuple[float, float]]] = {}
    for nbytes, seconds in points:
        groups.setdefault(round(math.log2(nbytes)), []).append((math.log(nbytes), math.log(seconds)))
    pools: list[list[tuple[float, float]]] = []
    for key in sorted(groups):
        pools.append(groups[key])
        while len(pools) > 1 and _center(pools[-2])[1] >= _center(pools[-1])[1]:
            pools[-2:] = [pools[-2] + pools[-1]]
    return TimeCurve(tuple((math.exp(x), math.exp(y)) for x, y in map(_center, pools)))


def _center(pool: Sequence[tuple[float, float]]) -> tuple[float, float]:
    xs, ys = zip(*pool, strict=True)
    return statistics.fmean(xs), statistics.fmean(ys)


def fit_product(products: Sequence[Product]) -> ProductFit:
    """The constants with the least mean square of relative errors."""
    halves = [0.0, 0.0, 0.0]
    best = _line(products, halves)
    for _ in range(_ROUNDS):
        before = best[0]
        for place in range(3):
            for half in _HALVES:
                tried = [*halves[:place], half, *halves[place + 1 :]]
                found = _line(products, tried)
                if found[0] < best[0]:
                    best, halves = found, tried
        if best[0] == before:
            break
    _, overhead, per_flop = best
    return ProductFit(rate=1 / per_flop, halves=(halves[0], halves[1], halves[2]), overhead=overhead)


def _line(products: Sequence[Product], halves: Sequence[float]) -> tuple[float, float, float]:
    """(mean square of relative errors, overhead, seconds per operation) for given halves."""
    rows = []
    for one in products:
        slow = (1 + halves[0] / one.m) * (1 + halves[1] / one.n) * (1 + halves[2] / one.k)
        rows.append((1 / one.seconds, 2 * one.m * one.n * one.k * one.count * slow / one.seconds))
    # Least squares of overhead * u + per_flop * v = 1, both of them not negative.
    uu, uv, vv = (sum(a[i] * a[j] for a in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    u, v = sum(a[0] for a in rows), sum(a[1] for a in rows)
    determinant = uu * vv - uv * uv
    overhead = (u * vv - v * uv) / determinant if determinant > 1e-12 * uu * vv else 0.0
    overhead = max(overhead, 0.0)
    per_flop = max((v - overhead * uv) / vv, 1e-18)
    error = sum((overhead * a + per_flop * b - 1) ** 2 for a, b in rows) / len(rows)
    return error, overhead, per_flop


def error_of(pairs: Iterable[tuple[float, float]]) -> Error:
    """Of (predicted, measured) seconds."""
    errors = [abs(predicted / measured - 1) for predicted, measured in pairs]
    return (len(errors), statistics.fmean(errors), max(errors)) if errors else (0, 0.0, 0.0)
