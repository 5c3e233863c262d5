"""Curves of collectives: time over size in three pieces, fitted to measured times.

    size_flat    the last size before the time first moves by more than a tenth from the smallest ones'
    size_full    the second size after the last one whose rate is below 95 % of the best
    overhead     the time at size_flat;   rate    the best
    between      a sigmoid of log2 size, least squares in the logarithm of the rate

Source: Lin et al. (2024, arXiv 2404.12674), the collectives of the authors' code. Differs from it: the sigmoid is
looked for on a grid of its middle and steepness, height and foot following from a line, and is never so steep that more
bytes would take less time; where the rate never comes to rest, the last size is the full one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from geartrain.cluster.measured import CollectiveCurve, CollectiveKind, CollectiveTime, bus_factor
from geartrain.errors import ConfigurationError

_MOVED, _RESTED = 0.1, 0.95
_AFTER = 2
_STEEPEST = math.log10(2)  # of log10 rate over log2 size: a rate that doubles with the size
_STEEPNESSES = (0.2, 0.3, 0.45, 0.7, 1.0, 1.5)
_FEWEST = 4


def fit_curve(kind: CollectiveKind, ranks: int, times: Sequence[CollectiveTime]) -> CollectiveCurve:
    """The curve that is nearest to the measured times of one kind of collective.

    Args:
        kind, ranks: of the collective.
        times: of at least four sizes, best each twice the one before; those of other kinds are left out.

    Raises ConfigurationError where there are fewer.
    """
    rows = sorted((one.size, one.time) for one in times if one.kind == kind and one.size and one.time)
    if len(rows) < _FEWEST or ranks < 2:
        raise ConfigurationError(
            f"a curve of {kind} among {ranks} rank(s) cannot be fitted to {len(rows)} size(s); measure at least "
            f"{_FEWEST} sizes among at least 2 ranks"
        )
    factor = bus_factor(kind, ranks)
    rates = [factor * size / time for size, time in rows]
    flat = _flat(rows)
    full = min(_last_slow(rates) + _AFTER, len(rows) - 1)
    overhead = rows[flat][1]
    between = range(flat + 1, max(full, flat + 2))
    points = [(math.log2(rows[i][0]), math.log10(rates[i])) for i in between if i < len(rows)]
    return CollectiveCurve(
        kind=kind,
        ranks=ranks,
        overhead=overhead,
        size_flat=rows[flat][0],
        size_full=max(rows[full][0], rows[flat][0] + 1),
        rate=max(_large_rate(rows, factor, overhead, full), rates[full]),
        sigmoid=_sigmoid(points) if points else (0.0, 0.0, 1.0, math.log10(rates[full])),
    )


def _flat(rows: Sequence[tuple[int, float]]) -> int:
    """Index of the last size whose time is that of the smallest."""
    for index in range(1, len(rows)):
        usual = min(time for _, time in rows[:index])
        if all(time > (1 + _MOVED) * usual for _, time in rows[index : index + 2]):
            return index - 1
    return len(rows) - 1


def _last_slow(rates: Sequence[float]) -> int:
    best = max(rates)
    return max((index for index, rate in enumerate(rates) if rate < _RESTED * best), default=0)


def _large_rate(rows: Sequence[tuple[int, float]], factor: float, overhead: float, full: int) -> float:
    """Bytes per second, so that the last size has its time."""
    size, time = rows[-1] if full < len(rows) - 1 else rows[full]
    return factor * size / max(time - overhead, 1e-3 * time)


def _sigmoid(points: Sequence[tuple[float, float]]) -> tuple[float, float, float, float]:
    """(a, x0, k, b) with the least squares of a / (1 + exp(-k (x - x0))) + b, nowhere steeper than `_STEEPEST`."""
    low, high = points[0][0], points[-1][0]
    found: tuple[float, tuple[float, float, float, float]] | None = None
    for steepness in _STEEPNESSES:
        for step in range(-8, 25):
            middle = low + (high - low + 1) * step / 16
            grown = [1 / (1 + math.exp(-steepness * (x - middle))) for x, _ in points]
            height, foot = _line(grown, [y for _, y in points])
            height = min(max(height, 0.0), 4 * _STEEPEST / steepness)
            foot = sum(y - height * g for g, (_, y) in zip(grown, points, strict=True)) / len(points)
            error = sum((height * g + foot - y) ** 2 for g, (_, y) in zip(grown, points, strict=True))
            if found is None or error < found[0]:
                found = error, (height, middle, steepness, foot)
    assert found is not None, "the grid is not empty"
    return found[1]


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Slope and foot of least squares; level where there is one point."""
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread if spread else 0.0
    return slope, mean_y - slope * mean_x
