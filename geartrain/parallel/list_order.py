"""When the blocks of a pipeline run: by list ordering (the PE of SPP), or in the order of a table.

A micro-batch is a chain of 4P - 2 blocks over P pieces of the model:

    F on piece 0, channel 0, F on piece 1, ..., F on piece P-1, B on piece P-1, channel P-2, ..., B on piece 0

Stages and channels handle one block at a time and are never interrupted. List ordering: a resource that is idle starts
at once the ready block that is furthest along its chain; of several the one of the smallest micro-batch. When a stage's
last backward block is done its gradients are summed over its replicas, beside what others do.

    T = max over stages of (end of the last backward block + A_n)
    C = max(max_n (F_n + B_n), max_n (f_n + b_n)),  f_n and b_n one way each with a full-duplex channel: max(f_n, b_n)
    M C <= T <= (M + 4N - 4) C + max_n A_n          with one piece per stage and no latency

Paper: Luo and others, 2022, arXiv 2204.10562. The rule is recalled, the bound was checked by numbers.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from geartrain.errors import StrategyError
from geartrain.parallel.schedule_table import Block, ScheduleTable

Resource = tuple[int, ...]
"""(stage,), or (stage, stage) for the channel between two: in the order of travel if it is full duplex."""


@dataclass(frozen=True)
class Channel:
    """What one micro-batch takes between two pieces, in seconds.

    Attributes:
        forward, backward: in which activations, or gradients, occupy it.
        latency: after which they arrive, beside that.
    """

    forward: float = 0.0
    backward: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Times:
    """What one micro-batch takes, in seconds.

    Attributes:
        forward, backward: on each piece of the model.
        channels: from each piece to the next one.
        sums: of each stage, the sum of its gradients over its replicas; their number is that of the stages.
        duplex: a channel carries both directions at a time.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    channels: tuple[Channel, ...]
    sums: tuple[float, ...]
    duplex: bool = False

    @property
    def bottleneck(self) -> float:
        """C: seconds per micro-batch of the stage or channel that takes longest."""
        stages = len(self.sums)
        work = [f + b for f, b in zip(self.forward, self.backward, strict=True)]
        busiest = [sum(work[stage::stages]) for stage in range(stages)]
        one = max if self.duplex else _both
        return max(*busiest, *(one(c.forward, c.backward) for c in self.channels), 0.0)

    def bound(self, num_micro_batches: int) -> float:
        """Seconds within which list ordering ends, with one piece per stage and no latency."""
        return (num_micro_batches + 4 * len(self.sums) - 4) * self.bottleneck + max(self.sums)


def _both(forward: float, backward: float) -> float:
    return forward + backward


class Interval(NamedTuple):
    """When a stage computed a block."""

    begin: float
    end: float
    block: Block


@dataclass(frozen=True)
class Timeline:
    """What came of an order.

    Attributes:
        intervals: of each stage, in the order of time.
        ends: of each stage, when its gradients are summed over its replicas.
        table: the order, to run it again.
    """

    intervals: tuple[tuple[Interval, ...], ...]
    ends: tuple[float, ...]
    table: ScheduleTable

    @property
    def total(self) -> float:
        """Seconds of one iteration."""
        return max(self.ends)


def list_order(times: Times, num_micro_batches: int) -> Timeline:
    """PE: schedule by list ordering.

    Example:
        >>> times = Times(forward=(1, 1), backward=(2, 2), channels=(Channel(0.5, 0.5),), sums=(0, 0))
        >>> list_order(times, 4).total
        16.0
    """
    return _Run(times, num_micro_batches, None).timeline()


def replay(table: ScheduleTable, times: Times) -> Timeline:
    """When the blocks of a table run; channels carry what is ready first."""
    return _Run(times, table.num_micro_batches, table).timeline()


class _Run:
    """The event loop. `k` is a block's place in the chain of its micro-batch."""

    def __init__(self, times: Times, num_micro_batches: int, table: ScheduleTable | None) -> None:
        self._times, self._count, self._table = times, num_micro_batches, table
        self._pieces, self._stages = len(times.forward), len(times.sums)
        self._length = 4 * self._pieces - 2
        self._ready: dict[Resource, list[tuple[int, int]]] = defaultdict(list)  # (micro-batch, k), first come first
        self._busy: set[Resource] = set()
        self._events: list[tuple[float, int, bool, int, int]] = []  # time, number, frees or arrives, micro-batch, k
        self._places = [0] * self._stages
        self._intervals: list[list[Interval]] = [[] for _ in range(self._stages)]
        self._number = 0

    def timeline(self) -> Timeline:
        for micro_batch in range(self._count):
            self._ready[self._resource(0)].append((micro_batch, 0))
        now = 0.0
        self._start_all(now)
        while self._events:
            now = self._events[0][0]
            while self._events and self._events[0][0] == now:
                self._happen(*heapq.heappop(self._events)[2:])
            self._start_all(now)
        rows = tuple(tuple(interval.block for interval in row) for row in self._intervals)
        if any(len(row) != 2 * self._count * self._pieces // self._stages for row in rows):
            raise StrategyError("this order of blocks cannot be run: some stage waits for ever (ScheduleTable.check)")
        ends = tuple(row[-1].end + more for row, more in zip(self._intervals, self._times.sums, strict=True))
        intervals = tuple(map(tuple, self._intervals))
        return Timeline(intervals, ends, ScheduleTable(rows, self._pieces, self._count))

    def _happen(self, frees: bool, micro_batch: int, k: int) -> None:
        if frees:
            self._busy.discard(self._resource(k))
        elif k < self._length:
            self._ready[self._resource(k)].append((micro_batch, k))

    def _start_all(self, now: float) -> None:
        for resource in list(self._ready):
            if resource not in self._busy and (chosen := self._choose(resource)) is not None:
                self._ready[resource].remove(chosen)
                self._busy.add(resource)
                self._start(now, *chosen)

    def _choose(self, resource: Resource) -> tuple[int, int] | None:
        ready = self._ready[resource]
        if self._table is None:
            return min(ready, key=lambda one: (-one[1], one[0]), default=None)
        if len(resource) == 2:
            return ready[0] if ready else None
        row, place = self._table.rows[resource[0]], self._places[resource[0]]
        if place == len(row):
            return None
        wanted = (row[place].micro_batch, self._position(row[place]))
        return wanted if wanted in ready else None

    def _start(self, now: float, micro_batch: int, k: int) -> None:
        seconds, latency = self._duration(k)
        end = now + seconds
        block = self._block(micro_batch, k)
        if block is not None:
            stage = block.piece % self._stages
            self._places[stage] += 1
            self._intervals[stage].append(Interval(now, end, block))
        self._push(end, True, micro_batch, k)
        self._push(end + latency, False, micro_batch, k + 1)

    def _push(self, moment: float, frees: bool, micro_batch: int, k: int) -> None:
        heapq.heappush(self._events, (moment, self._number, frees, micro_batch, k))
        self._number += 1

    def _duration(self, k: int) -> tuple[float, float]:
        piece, forward = self._where(k)
        if k % 2 == (0 if forward else 1):
            return (self._times.forward if forward else self._times.backward)[piece], 0.0
        channel = self._times.channels[piece]
        return (channel.forward if forward else channel.backward), channel.latency

    def _where(self, k: int) -> tuple[int, bool]:
        """The piece of a block, or of the start of its channel in the model; and whether it is on the way forward."""
        if k <= 2 * self._pieces - 2:
            return k // 2, True
        return (self._length - 1 - k) // 2, False

    def _resource(self, k: int) -> Resource:
        piece, forward = self._where(k)
        if k % 2 == (0 if forward else 1):
            return (piece % self._stages,)
        pair = (piece % self._stages, (piece + 1) % self._stages)
        if not self._times.duplex:
            return (min(pair), max(pair))
        return pair if forward else pair[::-1]

    def _block(self, micro_batch: int, k: int) -> Block | None:
        piece, forward = self._where(k)
        if k % 2 != (0 if forward else 1):
            return None
        return Block("F" if forward else "B", piece, micro_batch)

    def _position(self, block: Block) -> int:
        return 2 * block.piece if block.kind == "F" else self._length - 1 - 2 * block.piece
