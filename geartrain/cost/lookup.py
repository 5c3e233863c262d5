"""Looking vectors up in an embedding table, some of which are in the cache.

    N look-ups of E rows, of which X fit into the cache; row i is looked up with probability p_i

    touched   = sum_i 1 - (1 - p_i)^N                          rows that are looked up at all
    misses    = touched                                        if touched <= X
                X + (N - X) (1 - sum_{i <= X} p_i)             else: the X rows looked up most stay
    hit rate  = 1 - misses / N
    time      = f max(bytes from memory / memory rate, bytes from cache / cache rate)

For p_i = 1 / E these are the formulas of the source; here p_i is in proportion to i^-skew (Zipf's law). Sums over rows
are taken over stretches of rows whose numbers differ by less than 5 %.

Source: Lin et al., Towards Universal Performance Modeling (arXiv 2404.12674), and their earlier paper (arXiv
2201.07821): the analytic model in their code, where nine tenths of the cache count, rows move in 32 bytes, and f is for
narrow rows.
Differs from them: Zipf's law in place of histograms, which would need the data.
"""

from __future__ import annotations

import math
from functools import lru_cache

from geartrain.errors import ConfigurationError
from geartrain.workload.spec import Lookup

_ELEMENT = 4
_SECTOR = 32
_USABLE = 0.9
_EXACT = 1000  # rows that are stretches of their own


def hit_rate(lookup: Lookup, lookups: float, cache_rows: float) -> float:
    """The share of so many look-ups that finds its row in a cache of so many rows; in [0, 1]."""
    _check(lookup)
    if lookups <= 0:
        return 0.0
    room = min(max(cache_rows, 0.0), lookup.rows, lookups)
    stretches = _stretches(lookup.rows, lookup.skew)
    touched = sum(count * _touched(p, lookups) for count, p in stretches)
    if touched <= room:
        misses = touched
    else:
        misses = room + (lookups - room) * (1.0 - _most(stretches, room))
    return min(max(1.0 - misses / lookups, 0.0), 1.0)


def lookup_seconds(
    lookup: Lookup, samples: float, *, cache: int, cache_rate: float, memory_rate: float, rest: float = 0.0
) -> float:
    """What the look-ups of so many samples take, in a table of elements of four bytes.

    Args:
        cache: bytes.
        cache_rate, memory_rate: bytes per second.
        rest: bytes that move beside the rows: numbers of rows, and what is written.
    """
    lookups = samples * lookup.per_sample
    hits = hit_rate(lookup, lookups, _USABLE * cache / (_ELEMENT * lookup.width))
    rows = lookups * _SECTOR * math.ceil(_ELEMENT * lookup.width / _SECTOR)
    narrow = 1.0 if lookup.width > 64 else 1.1 if lookup.width > 32 else 1.55
    return narrow * max((rest + (1.0 - hits) * rows) / memory_rate, hits * rows / cache_rate)


def _check(lookup: Lookup) -> None:
    if lookup.rows < 1 or lookup.width < 1 or lookup.skew < 0:
        raise ConfigurationError(f"a table has at least one row and one element, and a skew of zero or more: {lookup}")


def _touched(p: float, lookups: float) -> float:
    """Probability that a row is looked up at all."""
    return 1.0 if p >= 1.0 else -math.expm1(lookups * math.log1p(-p))


@lru_cache(maxsize=256)
def _stretches(rows: int, skew: float) -> tuple[tuple[int, float], ...]:
    """(rows, probability of each) of stretches of rows that are looked up about as often, the most often first."""
    if skew == 0.0:
        return ((rows, 1.0 / rows),)
    found: list[tuple[int, float]] = []
    first = 1
    while first <= rows:
        last = first if first <= _EXACT else min(rows, int(first * 1.05))
        found.append((last - first + 1, math.sqrt(first * last) ** -skew))
        first = last + 1
    total = sum(count * weight for count, weight in found)
    return tuple((count, weight / total) for count, weight in found)


def _most(stretches: tuple[tuple[int, float], ...], rows: float) -> float:
    """Probability of the so many rows that are looked up most."""
    share, left = 0.0, rows
    for count, p in stretches:
        taken = min(count, left)
        share, left = share + taken * p, left - taken
        if left <= 0:
            break
    return min(share, 1.0)
