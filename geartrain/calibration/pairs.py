"""Latency and rate between pairs of ranks, one message at a time while all others stand still.

    ping    a few bytes there and as many back                T0 = latency there + latency back + the bytes' own time
    large   `size` bytes there and a few back                 T  = T0 + (size - few) / rate there

    rate there    = (size - few) / (least T - least T0)
    latency there = (least T0 - few / rate there - few / rate back) / 2

The least, as a busy host delays a message and never speeds one up. The two ways of a pair are not told apart in their
latencies: clocks of different machines do not agree well enough to do so. Their rates are.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.calibration.effort import Effort, KiB, finish_device
from geartrain.runtime.context import Context

Pair = tuple[int, int]
"""Sender and receiver."""

FEW = 4
"""Bytes of a ping."""

_FIRST = 256 * KiB  # of the message whose time tells how large the others shall be; chosen
_WARM_UP = 5  # pings whose times are thrown away; chosen
_ALL_PAIRS_UP_TO = 8  # ranks; with more, pairs are sampled at first; chosen


def all_pairs(num_ranks: int) -> tuple[Pair, ...]:
    """Every ordered pair."""
    return tuple((a, b) for a in range(num_ranks) for b in range(num_ranks) if a != b)


def first_pairs(num_ranks: int) -> tuple[Pair, ...]:
    """The pairs to begin with: all of a few ranks; of many, each rank with its neighbour and the one half way round."""
    if num_ranks <= _ALL_PAIRS_UP_TO:
        return all_pairs(num_ranks)
    ways = [(rank, (rank + step) % num_ranks) for step in (1, num_ranks // 2) for rank in range(num_ranks)]
    return tuple(dict.fromkeys(pair for a, b in ways for pair in ((a, b), (b, a))))


@dataclass(frozen=True)
class PairTimes:
    """What an ordered pair took.

    Attributes:
        ping, ping_median: least and median ping-pong, there and back.
        size: bytes of the large message.
        large, large_median: least and median time of it with the few bytes back.
        num_pings, num_large: how many were timed.
    """

    ping: float
    ping_median: float
    size: int
    large: float
    large_median: float
    num_pings: int
    num_large: int


@dataclass(frozen=True)
class Way:
    """The way from a rank to another, of which only the rate is its own: see the top of this module.

    Attributes:
        latency, rate: seconds, and bytes per second of payload.
        latency_spread, rate_spread: by how much the median lies above the least, relative to it.
    """

    latency: float
    rate: float
    latency_spread: float = 0.0
    rate_spread: float = 0.0


def ways(times: Mapping[Pair, PairTimes]) -> dict[Pair, Way]:
    """Latency and rate of each ordered pair; both ways of a pair must have been measured."""
    rates = {pair: (one.size - FEW) / max(one.large - one.ping, 1e-12) for pair, one in times.items()}
    found = {}
    for (a, b), one in times.items():
        least = min(one.ping, times[b, a].ping)
        latency = (least - FEW / rates[a, b] - FEW / rates[b, a]) / 2
        spreads = (one.ping_median / least - 1, one.large_median / one.large - 1)
        found[a, b] = Way(max(latency, 0.0), rates[a, b], *spreads)
    return found


@dataclass(frozen=True)
class TimePairs:
    """Program of a rank: times the given pairs, one after another. Returns what this rank asked for."""

    pairs: Sequence[Pair]
    effort: Effort

    def __call__(self, ctx: Context) -> dict[Pair, PairTimes]:
        found = {}
        for source, target in self.pairs:
            dist.barrier(group=ctx.workers)
            if ctx.rank == source:
                found[source, target] = _Asker(ctx, target, self.effort).times()
            elif ctx.rank == target:
                _answer(ctx, source, self.effort)
        return found


class _Asker:
    """Asks one rank to take messages, and times them."""

    def __init__(self, ctx: Context, target: int, effort: Effort) -> None:
        self._ctx, self._target, self._effort = ctx, target, effort
        self._back = _room(ctx, FEW)

    def times(self) -> PairTimes:
        effort = self._effort
        if effort.exact:
            ping, large = self._ask(1, FEW), self._ask(1, effort.largest)
            return PairTimes(ping[0], ping[0], effort.largest, large[0], large[0], 1, 1)
        warm = min(self._ask(_WARM_UP, FEW))
        pings = self._ask(effort.repeats_for(warm, effort.pings), FEW)
        extra = min(self._ask(3, _FIRST)) - min(pings)
        size = max(_FIRST, min(effort.largest, int(_FIRST * effort.seconds / max(extra, 1e-9))))
        large = self._ask(effort.messages, size)
        self._tell(0, 0)
        return PairTimes(
            *(min(pings), statistics.median(pings), size, min(large), statistics.median(large)), len(pings), len(large)
        )

    def _tell(self, num: int, size: int) -> None:
        if not self._effort.exact:
            header = torch.tensor([num, size], device=self._ctx.device)
            dist.send(header, group=self._ctx.workers, group_dst=self._target)

    def _ask(self, num: int, size: int) -> list[float]:
        ctx, message = self._ctx, _room(self._ctx, size)
        self._tell(num, size)
        # Its room is ready, too: filling it on a slow device would count as time of the wire.
        dist.recv(self._back, group=ctx.workers, group_src=self._target)
        return [_timed(ctx, lambda: self._exchange(message)) for _ in range(num)]

    def _exchange(self, message: torch.Tensor) -> None:
        dist.send(message, group=self._ctx.workers, group_dst=self._target)
        dist.recv(self._back, group=self._ctx.workers, group_src=self._target)


def _answer(ctx: Context, source: int, effort: Effort) -> None:
    """Take what the asker sends and answer with a few bytes, until it says that it was all."""
    back = _room(ctx, FEW)
    for num, size in ((1, FEW), (1, effort.largest)) if effort.exact else _told(ctx, source):
        message = _room(ctx, size)
        dist.send(back, group=ctx.workers, group_dst=source)
        for _ in range(num):
            dist.recv(message, group=ctx.workers, group_src=source)
            dist.send(back, group=ctx.workers, group_dst=source)


def _told(ctx: Context, source: int) -> Iterable[tuple[int, int]]:
    header = torch.zeros(2, dtype=torch.int64, device=ctx.device)
    while True:
        dist.recv(header, group=ctx.workers, group_src=source)
        num, size = header.tolist()
        if num == 0:
            return
        yield num, size


@dataclass(frozen=True)
class TimeTogether:
    """Program of a rank: how long one pair takes alone, and while another one sends too: do they share a wire?

    Returns, on the first pair's sender, (alone, together) in seconds, the least of the repeats; None elsewhere.
    """

    first: Pair
    second: Pair
    size: int
    effort: Effort

    def __call__(self, ctx: Context) -> tuple[float, float] | None:
        alone = [self._once(ctx, (self.first,)) for _ in range(3)]
        together = [self._once(ctx, (self.first, self.second)) for _ in range(3)]
        return (min(alone), min(together)) if ctx.rank == self.first[0] else None

    def _once(self, ctx: Context, pairs: Sequence[Pair]) -> float:
        message, back = _room(ctx, self.size), _room(ctx, FEW)
        dist.barrier(group=ctx.workers)
        for source, target in pairs:
            if ctx.rank == source:

                def exchange(target: int = target) -> None:
                    dist.send(message, group=ctx.workers, group_dst=target)
                    dist.recv(back, group=ctx.workers, group_src=target)

                return _timed(ctx, exchange)
            if ctx.rank == target:
                dist.recv(message, group=ctx.workers, group_src=source)
                dist.send(back, group=ctx.workers, group_dst=source)
        return 0.0


def _room(ctx: Context, nbytes: int) -> torch.Tensor:
    return torch.zeros(nbytes, dtype=torch.uint8, device=ctx.device)


def _timed(ctx: Context, do: Callable[[], None]) -> float:
    finish_device(ctx)
    begin = ctx.clock.now()
    do()
    finish_device(ctx)
    return ctx.clock.now() - begin
