"""Looking vectors up in an embedding table, some of which are in the cache."""

from __future__ import annotations

from geartrain.workload.spec import Lookup


def hit_rate(lookup: Lookup, lookups: float, cache_rows: float) -> float:
    """The share of so many look-ups that finds its row in a cache of so many rows."""
    raise NotImplementedError("look-ups are not priced yet")


def lookup_seconds(lookup: Lookup, samples: float, *, cache: int, cache_rate: float, memory_rate: float) -> float:
    """What the look-ups of so many samples take.

    Args:
        cache: bytes.
        cache_rate, memory_rate: bytes per second.
    """
    raise NotImplementedError("look-ups are not priced yet")
