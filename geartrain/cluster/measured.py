"""Where a cluster's constants come from, and what was measured of it beside them.

    origins     a constant's place in the file -> "measured: ...", "given: ..." or "default: ..."
    measured    times of collectives and pairs, which are no constants: what a fit can be held against

`geartrain calibrate` writes both; a file written by hand may have them too.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from geartrain.cluster.fields import Count, Index, MemoryRate, Size, Spec, Text, Time, WireRate
from geartrain.errors import nearest

ORIGINS = ("measured", "given", "default")
"""What the text of an origin begins with: by this run, by whoever wrote the file or the system, by nobody."""

CollectiveKind = Literal["all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all"]


def _origin(text: str) -> str:
    word = text.partition(":")[0].partition(" ")[0]
    if word in ORIGINS:
        return text
    near = nearest(word, ORIGINS)
    hint = f"; did you mean {near!r}?" if near else ""
    raise ValueError(f"{text!r} is no origin: it begins with {', '.join(ORIGINS[:-1])} or {ORIGINS[-1]}{hint}")


Origin = Annotated[str, AfterValidator(_origin)]


def bus_factor(kind: str, num_ranks: int) -> float:
    """What a link of the busiest rank carries, as a multiple of a collective's size, by the best algorithm.

        all_reduce                                 2 (n - 1) / n
        all_gather, reduce_scatter, all_to_all     (n - 1) / n
        broadcast, reduce                          1

    Source: the convention of NCCL's tests, as used by Ren, Yoo and Hoisie (2019, arXiv 1905.08764); the factors are
    recalled, not read there.
    """
    if kind in ("broadcast", "reduce"):
        return 1.0
    share = (num_ranks - 1) / num_ranks
    return 2 * share if kind == "all_reduce" else share


class CollectiveTime(Spec):
    """What a collective of one size took; `size` as `geartrain.cost.collectives` counts it.

    Args:
        kind: which collective.
        size: bytes.
        time: median over the repeats, of the slowest rank of each.
        least: the least over the repeats.
    """

    kind: CollectiveKind
    size: Size
    time: Time
    least: Time

    def algorithm_bandwidth(self) -> float:
        """Bytes per second: size / time."""
        return self.size / self.time if self.time else float("inf")

    def bus_bandwidth(self, num_ranks: int) -> float:
        """Bytes per second through the busiest rank's link: comparable with the rate of a wire, whatever the kind."""
        return self.algorithm_bandwidth() * bus_factor(self.kind, num_ranks)


class PairTime(Spec):
    """One way from a rank to another: half of the least ping-pong, and the rate of a large message alone."""

    source: Index
    target: Index
    latency: Time
    rate: WireRate


class CollectiveCurve(Spec):
    """The time of one kind of collective among so many ranks, in three pieces over its size s.

        s <= size_flat    overhead
        between           f s / 10^(a / (1 + exp(-k (x - x0))) + b)      x = log2 s
        size_full <= s    f s / rate + overhead

    with f of `bus_factor`. The piece between is kept between the others, so that more bytes never take less time.

    Args:
        kind, ranks: of the collective.
        overhead: of a size up to `size_flat`.
        size_flat: up to here the time is the overhead.
        size_full: from here on the rate is full.
        rate: bytes per second of large sizes, through the busiest rank's link.
        sigmoid: (a, x0, k, b), of the logarithm of the rate in bytes per second.

    Source: Lin et al. (2024, arXiv 2404.12674), the collectives of the authors' code.
    """

    kind: CollectiveKind
    ranks: Count
    overhead: Time
    size_flat: Size
    size_full: Size
    rate: WireRate
    sigmoid: tuple[float, float, float, float]

    def seconds(self, nbytes: int) -> float:
        """What a collective of this size takes."""
        if nbytes <= self.size_flat:
            return self.overhead
        if nbytes >= self.size_full:
            return self._full(nbytes)
        height, middle, steepness, low = self.sigmoid
        grown = height / (1 + math.exp(-steepness * (math.log2(nbytes) - middle))) + low
        between: float = bus_factor(self.kind, self.ranks) * nbytes / 10**grown
        return min(max(between, self.overhead), self._full(self.size_full))

    def _full(self, nbytes: int) -> float:
        return bus_factor(self.kind, self.ranks) * nbytes / self.rate + self.overhead


class Sharing(Spec):
    """What ranks of one host take from each other.

    Args:
        ranks: that many compute at once.
        slowdown: how many times as long each of them takes as alone.
        steals: the share of hidden communication that computing loses to it.
    """

    ranks: Count
    slowdown: Annotated[float, Field(ge=1)]
    steals: Annotated[float, Field(ge=0, le=1)] = 0.0


class Measurements(Spec):
    """What was measured of a cluster and is no constant of it.

    Args:
        ranks: how many took part.
        backend: library of the collectives, e.g. "gloo".
        tiny_all_reduce: median time of an all-reduce of 4 bytes; left out for one rank.
        reduction_rate: bytes per second of a tensor that a rank adds to another of its own.
        pairs: between ranks.
        collectives: by kind and size.
        curves: of collectives, fitted to such times.
        sharing: what ranks of one host take from each other.
    """

    ranks: Count
    backend: Text
    tiny_all_reduce: Time | None = None
    reduction_rate: MemoryRate | None = None
    pairs: tuple[PairTime, ...] = ()
    collectives: tuple[CollectiveTime, ...] = ()
    curves: tuple[CollectiveCurve, ...] = ()
    sharing: tuple[Sharing, ...] = ()

    def curve_of(self, kind: str, ranks: int) -> CollectiveCurve | None:
        """The curve of this kind of collective among so many ranks; None if there is none."""
        return next((one for one in self.curves if (one.kind, one.ranks) == (kind, ranks)), None)

    def sharing_of(self, ranks: int) -> Sharing | None:
        """What so many ranks take from each other; None if it was not measured."""
        return next((one for one in self.sharing if one.ranks == ranks), None)

    def time_of(self, kind: str, size: int) -> float | None:
        """What a collective of this kind and size took; None if it was not measured."""
        return next((one.time for one in self.collectives if (one.kind, one.size) == (kind, size)), None)


def places(data: Any, where: str = "") -> Iterator[str]:
    """Every place in a cluster's plain data, like `nodes[0].device.flops.fp32`; tables and lists are places too."""
    if where:
        yield where
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from places(value, f"{where}.{key}" if where else str(key))
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from places(value, f"{where}[{index}]")


def origin_of(place: str, origins: Mapping[str, str]) -> str | None:
    """The origin of a place: its own, else that of the table or list it stands in."""
    while place:
        if place in origins:
            return origins[place]
        place = place[: max(place.rfind("."), place.rfind("["), 0)]
    return None


def origin_problems(data: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """A line for every origin of something that the file does not have."""
    known = tuple(places(data))
    for key in origins:
        if key not in known:
            near = nearest(key, known)
            hint = f"; did you mean {near!r}?" if near else ""
            yield f"origins: {key!r} is no key of this file{hint}"
