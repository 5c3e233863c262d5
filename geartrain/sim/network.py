"""A fluid network under a virtual clock: flows share links max-min fairly.

    sum_f weight[f, l] * rate[f] <= capacity[l]                     for every link l
    rate[f] = max over flows of l, on some full link l of f         for every flow f (its bottleneck)

A flow is one message on the links of its route (weight 1 each), or a whole collective as one activity that loads many
links at once, each by its weight. Weights are scaled so that the largest is 1: the rate of a flow is what it takes on
its busiest link, and on a full link all flows held back there have the same rate (each takes in proportion to its
weight).

Only what an arrival or departure can reach through shared links is solved again, once per instant: in plain Python
where few flows are concerned, else with arrays, freezing at once every link that is the tightest for all of its flows.
Times are exact where nothing contends: progress is recomputed only when the rate of a flow really changes.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from geartrain.sim.fairness import fair_rates, fair_rates_arrays

_SMALL = 96
"""(flow, link) pairs up to which a group is solved in plain Python; chosen by measurement (64 to 128 are equal)."""

_FEW_LINKS = 96
"""Links of new flows up to which it pays to find out which rates cannot move; chosen."""

_SAME_RATE = 1e-12
"""Relative change below which a rate is the same rate: the order of summation may move the last bits."""

_NEAR = 1e-6
"""Relative distance below which rates are not told apart where flows are left out of a solution; costs time only."""


class Flow:
    """Bytes under way, made by `Network.start`. Readable; only the network writes."""

    # fmt: off
    __slots__ = ("done", "ended", "finish", "links", "loads", "rate", "remaining", "sequence", "since", "slot",
                 "volume", "weights")
    # fmt: on

    def __init__(
        self, sequence: int, now: float, links: Sequence[int], loads: Sequence[float], done: Callable[[float], None]
    ) -> None:
        self.sequence = sequence
        self.links = links
        self.loads = loads  # bytes over each of `links` in the whole life of the flow
        self.volume = max(loads, default=0.0)  # bytes on the busiest link
        self.weights = [load / self.volume for load in loads]
        self.done = done
        self.remaining = self.volume  # at the time `since`
        self.since = now
        self.rate = 0.0  # bytes per second on the busiest link, from `since` on
        self.finish = math.inf  # as predicted from `remaining`, `since` and `rate`
        self.ended = False
        self.slot = -1  # row in the array table, if it has one

    def __repr__(self) -> str:
        return f"Flow({self.sequence}, {self.volume:g} bytes on {len(self.links)} links, finish={self.finish:g})"


class Network:
    """Links with capacities and the flows on them.

    Args:
        capacities: bytes per second of each directed link, by link id; positive.

    Attributes:
        link_bytes: bytes carried by each link, added when a flow ends: exact once all flows have ended.
        link_busy: seconds in which each link had at least one flow; counted when the link falls idle.

    The caller owns the clock: it asks `next_event`, calls `advance` at that time, and starts flows at or before it.
    Same calls, same results, to the last bit.

    Example:
        >>> network, ends = Network([100.0]), []
        >>> for size in (100, 200):
        ...     _ = network.start(0.0, size, [0], ends.append)
        >>> while (now := network.next_event()) < float("inf"):
        ...     _ = network.advance(now)
        >>> ends
        [2.0, 3.0]
    """

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = [float(capacity) for capacity in capacities]
        for link, capacity in enumerate(self._capacities):
            if not 0 < capacity < math.inf:
                raise ValueError(f"the capacity of link {link} is {capacity!r}; expected finite bytes/s above 0")
        self.link_bytes: list[float] = [0.0] * len(self._capacities)
        self.link_busy: list[float] = [0.0] * len(self._capacities)
        self._busy_since = [0.0] * len(self._capacities)
        self._on_link: list[dict[int, tuple[Flow, float]]] = [{} for _ in self._capacities]  # by sequence; the weight
        self._active: dict[int, Flow] = {}
        self._heap: list[tuple[float, int, Flow]] = []
        self._touched: dict[int, None] = {}  # links whose flows must be solved again, in order of first touch
        self._fresh: list[Flow] = []  # started since the last solution, on links that were in use
        self._floor = math.inf  # the lowest rate of a flow that ended since the last solution
        self._table = _Table(self._capacities)
        self._now = -math.inf
        self._sequence = 0

    @property
    def flows(self) -> list[Flow]:
        """The flows under way, in start order. Their rates hold after `next_event`."""
        return list(self._active.values())

    def start(
        self, now: float, size: float, usage: Sequence[int] | Mapping[int, float], done: Callable[[float], None]
    ) -> Flow:
        """Starts a flow.

        Args:
            now: seconds on the virtual clock; not before any earlier call, not after `next_event`.
            size: bytes.
            usage: the link ids of a route (each carries `size` bytes; named twice, twice that), or link id -> bytes
                that cross the link per byte of `size`. For exact counters give size 1 and whole bytes per link.
            done: called with the time of completion, after the network has taken the flow out.

        Returns:
            The flow. Without links or bytes it completes at `now`.
        """
        self._move_to(now)
        flow = Flow(self._sequence, now, *_loads(size, usage), done)
        self._sequence += 1
        self._active[flow.sequence] = flow
        if not flow.links:
            self._schedule(flow, now)
            return flow
        alone = True
        for link, weight in zip(flow.links, flow.weights, strict=True):
            users = self._on_link[link]
            if users:
                alone = False
                self._touched[link] = None
            else:
                self._busy_since[link] = now
            users[flow.sequence] = flow, weight
        if alone:
            self._set_rate(flow, fair_rates([flow], self._capacities)[0])
        else:
            self._fresh.append(flow)
        return flow

    def next_event(self) -> float:
        """The time of the earliest completion, infinity if there is none. Solves what changed since the last call."""
        if self._touched:
            self._solve()
        heap = self._heap
        while heap:
            finish, _, flow = heap[0]
            if not flow.ended and flow.finish == finish:
                return finish
            heapq.heappop(heap)
        return math.inf

    def advance(self, now: float) -> list[Flow]:
        """Ends the flows that complete at `now` (which may not be later than `next_event`), in start order.

        Each `done(now)` is called when all of them are out of the network; it may start new flows at `now`.
        """
        self._move_to(now)
        ended = []
        while self.next_event() <= now:
            flow = heapq.heappop(self._heap)[2]
            flow.ended = True
            ended.append(flow)
        ended.sort(key=_by_sequence)
        for flow in ended:
            self._remove(flow)
        for flow in ended:
            flow.done(now)
        return ended

    def _move_to(self, now: float) -> None:
        assert now >= self._now, f"the clock went back from {self._now!r} to {now!r}"
        if now > self._now:
            due = self.next_event()
            assert now <= due, f"a flow was due at {due!r}, before {now!r}"
            self._now = now

    def _remove(self, flow: Flow) -> None:
        del self._active[flow.sequence]
        if flow.links:
            self._floor = min(self._floor, flow.rate)
        self._table.remove(flow)
        for link, load in zip(flow.links, flow.loads, strict=True):
            users = self._on_link[link]
            del users[flow.sequence]
            self.link_bytes[link] += load
            if users:
                self._touched[link] = None
            else:
                self.link_busy[link] += self._now - self._busy_since[link]

    def _solve(self) -> None:
        """Sets the rates of all flows that the touched links can reach."""
        groups = self._groups()
        if groups is None:
            # Everything rather than the group: finding a large group costs more than the arrays need for all flows.
            self._table.synchronise(self._active)
            changes = self._table.changes(self._unmoved_below())
        else:
            changes = [
                pair for group in groups for pair in zip(group, fair_rates(group, self._capacities), strict=True)
            ]
        self._touched.clear()
        self._fresh.clear()
        self._floor = math.inf
        for flow, rate in changes:
            self._set_rate(flow, rate)

    def _groups(self) -> list[list[Flow]] | None:
        """The connected groups of flows at the touched links; None if one is large."""
        seen: set[int] = set()
        groups = []
        for link in self._touched:
            if link not in seen and self._on_link[link]:
                group = self._group(link, seen)
                if group is None:
                    return None
                groups.append(group)
        return groups

    def _unmoved_below(self) -> float:
        """A rate below which all flows keep theirs.

        Think of all rates rising together, before and after the change. Both pictures are the same up to the rate of
        the slowest flow that came or went: until then none of its links is full. A new flow stops where the first of
        its links is full, given the old rates of the others.
        """
        links = dict.fromkeys(link for flow in self._fresh for link in flow.links)
        if len(links) > _FEW_LINKS:
            return 0.0
        return min(self._floor, min(map(self._level, links), default=math.inf))

    def _level(self, link: int) -> float:
        """The rate at which a link is full when flows without a rate rise and the others stop at theirs."""
        users = sorted((flow.rate or math.inf, weight) for flow, weight in self._on_link[link].values())
        demand = sum(weight for _, weight in users)
        left = self._capacities[link]
        for rate, weight in users:
            if rate * demand >= left:
                return left / demand
            left -= rate * weight
            demand -= weight
        return 0.0  # only rounding leads here

    def _group(self, start: int, seen: set[int]) -> list[Flow] | None:
        """The flows connected to a link through shared links, in order of discovery; None if they are too many."""
        group: dict[int, Flow] = {}
        pairs = 0
        frontier = [start]
        seen.add(start)
        for link in frontier:
            for sequence, (flow, _) in self._on_link[link].items():
                if sequence in group:
                    continue
                group[sequence] = flow
                pairs += len(flow.links)
                if pairs > _SMALL:
                    return None
                fresh = [other for other in flow.links if other not in seen]
                seen.update(fresh)
                frontier += fresh
        return list(group.values())

    def _set_rate(self, flow: Flow, rate: float) -> None:
        if abs(rate - flow.rate) <= _SAME_RATE * flow.rate:
            return
        now = self._now
        due = flow.finish <= now
        if now > flow.since and not due:
            flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.since))
            flow.since = now
        flow.rate = rate
        if flow.slot >= 0:
            self._table.rates[flow.slot] = rate
        # A flow that is due is complete: recomputing its end from what is left would let rounding delay it.
        if not due:
            self._schedule(flow, now + flow.remaining / rate)

    def _schedule(self, flow: Flow, finish: float) -> None:
        flow.finish = finish
        heapq.heappush(self._heap, (finish, flow.sequence, flow))
        if len(self._heap) > 64 + 4 * len(self._active):
            flows = self._active.values()
            self._heap = [(other.finish, other.sequence, other) for other in flows if other.finish < math.inf]
            heapq.heapify(self._heap)


class _Table:
    """The flows as arrays: `counts[i]` consecutive (link, weight) pairs for each flow i, in start order."""

    def __init__(self, capacities: Sequence[float]) -> None:
        self._capacities = np.array(capacities, dtype=np.float64)
        self._flows: list[Flow] = []
        self._links = np.empty(0, dtype=np.intp)
        self._weights = np.empty(0, dtype=np.float64)
        self._counts = np.empty(0, dtype=np.intp)
        self._alive = np.empty(0, dtype=np.bool_)
        self._num_dead = 0
        self._newest = -1
        self.rates = np.empty(0, dtype=np.float64)

    def remove(self, flow: Flow) -> None:
        """Forgets a flow that has ended; one that never entered is no trouble."""
        if flow.slot >= 0:
            self._alive[flow.slot] = False
            self._num_dead += 1

    def synchronise(self, active: dict[int, Flow]) -> None:
        """Takes in the flows started since the last call, and drops the ended ones when they are a quarter."""
        if 4 * self._num_dead > len(self._flows):
            self._compact()
        fresh = []
        for sequence in reversed(active):
            if sequence <= self._newest:
                break
            if active[sequence].links:
                fresh.append(active[sequence])
        if fresh:
            self._append(fresh[::-1])

    def changes(self, unmoved_below: float) -> list[tuple[Flow, float]]:
        """Those whose rate is not what it was, with the new rate. Flows with a rate below the given one keep it."""
        kept = self._alive & (self.rates > 0) & (self.rates < unmoved_below * (1 - _NEAR))
        rows = np.flatnonzero(self._alive & ~kept)
        capacities = self._capacities
        if len(rows) < np.count_nonzero(self._alive):
            pairs = np.repeat(kept, self._counts)
            spent = self._weights[pairs] * np.repeat(self.rates[kept], self._counts[kept])
            capacities = capacities - np.bincount(self._links[pairs], spent, minlength=len(capacities))
        pairs = np.repeat(self._alive & ~kept, self._counts)
        rates = fair_rates_arrays(self._links[pairs], self._weights[pairs], self._counts[rows], capacities)
        old = self.rates[rows]
        moved = np.flatnonzero(np.abs(rates - old) > _SAME_RATE * old)
        flows = self._flows
        return [(flows[row], rate) for row, rate in zip(rows[moved].tolist(), rates[moved].tolist(), strict=True)]

    def _append(self, fresh: list[Flow]) -> None:
        for slot, flow in enumerate(fresh, start=len(self._flows)):
            flow.slot = slot
        self._flows += fresh
        self._newest = fresh[-1].sequence
        links = np.fromiter((link for flow in fresh for link in flow.links), dtype=np.intp)
        weights = np.fromiter((weight for flow in fresh for weight in flow.weights), dtype=np.float64)
        self._links = np.concatenate((self._links, links))
        self._weights = np.concatenate((self._weights, weights))
        self._counts = np.concatenate((self._counts, [len(flow.links) for flow in fresh]))
        self._alive = np.concatenate((self._alive, np.ones(len(fresh), dtype=np.bool_)))
        self.rates = np.concatenate((self.rates, [flow.rate for flow in fresh]))

    def _compact(self) -> None:
        pairs = np.repeat(self._alive, self._counts)
        self._links, self._weights = self._links[pairs], self._weights[pairs]
        self._counts, self.rates = self._counts[self._alive], self.rates[self._alive]
        self._flows = [flow for flow in self._flows if not flow.ended]
        for slot, flow in enumerate(self._flows):
            flow.slot = slot
        self._alive = np.ones(len(self._flows), dtype=np.bool_)
        self._num_dead = 0


def _by_sequence(flow: Flow) -> int:
    return flow.sequence


def _loads(size: float, usage: Sequence[int] | Mapping[int, float]) -> tuple[list[int], list[float]]:
    """The links that carry something, and how many bytes each."""
    assert 0 <= size < math.inf, f"a flow of {size!r} bytes"
    if not size:
        return [], []
    if not isinstance(usage, Mapping):
        links = list(usage)
        if len(set(links)) == len(links):
            return links, [float(size)] * len(links)
        usage = {link: links.count(link) for link in dict.fromkeys(links)}
    assert all(0 <= weight < math.inf for weight in usage.values()), "a link used by a negative or infinite weight"
    loads = {link: float(size * weight) for link, weight in usage.items() if weight}
    return list(loads), list(loads.values())
