"""Who stood still, and why: the logs of all ranks joined, every blocked time divided into communication and waiting.

    ready(k)  = the latest `posted` of operation k over the ranks that take part
    wait      = the part of a blocked time before ready(k): the rank that posted last was waited for
    exposed   = the part after: bytes were in flight and this rank could do nothing else
    compute   = time - wait - exposed
    wire      = time in which an operation of this rank, of any lane, was in flight (ready, not done)
    hidden    = wire while the main lane was not blocked
    codec     = the part of compute in spans called "compress" or "decompress"

Only the main lane's blocked times count: another lane may stand still as long as it likes. A blocked time without an
operation (a queue, a lane) is explained by what the rank's other lanes did: by the operations that were done in it,
each cut at its `ready`. What they leave over is waiting, for no rank that could be named, and so is a sleep. A rank
that posts after an operation was done here did not hold this rank up (the last receiver of a broadcast): it does not
count into `ready`.

A send is done for its sender when the last byte has left; of real sockets that is when the kernel has taken it, which
may hold megabytes. Its bytes stay under way until the receive is done:

    under way = (the send's done, the receive's done), where the receiver stood still for bytes that were ready

What the sender's main lane waits meanwhile for others is communication. Where the receiver computes, or waits for a
slower rank, nobody knows when the bytes came, and waiting stays waiting.

An operation that some rank never entered is never ready: the whole blocked time is waiting for that rank. Bytes and
messages belong to the step in which their operation was posted, whatever its lane.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from geartrain.record.intervals import Interval, measured, merged, without
from geartrain.record.log import Op, OpKey, RankLog, RunRecord

_Posts = dict[OpKey, list[tuple[float, int]]]
_Ready = dict[OpKey, tuple[float, int | None]]
_UnderWay = list[tuple[float, float, Op]]
_BY_BEGIN = attrgetter("begin")
_BY_POSTED = attrgetter("posted")
_BY_DONE = attrgetter("done")

_CODEC = frozenset({"compress", "decompress"})

SLEEP = "sleep"
"""What the log says of a blocked time that the program wanted itself: never explained by what other lanes did."""


@dataclass(frozen=True, slots=True)
class Still:
    """A part of a time in which a rank's main lane stood still.

    Attributes:
        kind: "communication" (bytes in flight) or "wait".
        what: kind of the operation, or what the log says where there was none ("queue", "sleep").
        on: the rank waited for, or the other end of a transfer between two; None when no single rank can be named.
        key: the operation, if there was one.
    """

    begin: float
    end: float
    kind: Literal["communication", "wait"]
    what: str
    on: int | None = None
    key: OpKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """A window of one rank's time, divided. Seconds; bytes and messages are those this rank sent, payload only."""

    begin: float
    end: float
    wait: float
    exposed_communication: float
    hidden_communication: float
    wire: float
    bytes_sent: int
    messages: int
    codec: float = 0.0

    @property
    def time(self) -> float:
        return self.end - self.begin

    @property
    def compute(self) -> float:
        """What is left when waiting and exposed communication are taken off: all that the program itself did."""
        return max(0.0, self.end - self.begin - self.wait - self.exposed_communication)


@dataclass(frozen=True, slots=True)
class StepShares:
    """One finished step of one rank, with the values that the rank gave for it (loss, samples, ...)."""

    step: int
    shares: Shares
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankSplit:
    """One rank's run, divided: as a whole (from 0 to the end of its program) and step by step (none for a script).

    Attributes:
        still: the times in which the main lane stood still, in order.
        ready: when each of its operations was entered by all ranks that mattered (infinite: never).
        lost: it died and the others went on, see `RunRecord`.
    """

    rank: int
    role: str
    total: Shares
    steps: tuple[StepShares, ...]
    still: tuple[Still, ...]
    ready: dict[OpKey, float]
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """A run, divided; one entry per rank, in rank order."""

    ranks: tuple[RankSplit, ...]

    def waits(self) -> dict[tuple[int, int | None], float]:
        """(waiting rank, rank waited for or None) -> seconds, over the whole run."""
        seconds: dict[tuple[int, int | None], float] = defaultdict(float)
        for rank in self.ranks:
            for still in rank.still:
                if still.kind == "wait":
                    seconds[rank.rank, still.on] += still.end - still.begin
        return dict(seconds)

    def wait_matrix(self) -> NDArray[np.float64]:
        """[waiting rank, rank waited for] in seconds; the last column is waiting for no rank in particular."""
        size = len(self.ranks)
        matrix = np.zeros((size, size + 1))
        for (rank, other), seconds in self.waits().items():
            matrix[rank, size if other is None else other] = seconds
        return matrix


def split(record: RunRecord) -> Split:
    """Join the logs of all ranks; see the module."""
    posts: _Posts = defaultdict(list)
    for log in record.logs:
        for op in log.ops:
            posts[op.key].append((op.posted, log.rank))
    for entries in posts.values():
        entries.sort()
    ready = [{op.key: _ready(op, posts[op.key]) for op in log.ops} for log in record.logs]
    under_way = _under_way(record.logs, ready)
    ranks = (_split_rank(log, ready[i], under_way.get(log.rank, [])) for i, log in enumerate(record.logs))
    return Split(tuple(replace(rank, lost=rank.rank in record.lost) for rank in ranks))


def _split_rank(log: RankLog, ready: _Ready, under_way: _UnderWay) -> RankSplit:
    end = log.end or _last_moment(log)
    still = tuple(_flying(log.rank, _divide(log, ready, end), under_way))
    waits = [(part.begin, part.end) for part in still if part.kind == "wait"]
    exposed = [(part.begin, part.end) for part in still if part.kind == "communication"]
    flights = merged((ready[op.key][0], op.done if op.done >= 0 else end) for op in log.ops)
    hidden = without(flights, merged([*waits, *exposed]))
    wire = merged([*flights, *exposed])
    marks = sorted((mark for mark in log.steps if mark.end >= mark.begin), key=_BY_BEGIN)
    windows = [(mark.begin, mark.end) for mark in marks]
    spans = merged((span.begin, span.end) for span in log.spans if span.lane == "" and span.name in _CODEC)
    codec = without(spans, merged([*waits, *exposed]))
    steps = _shares(windows, waits, exposed, hidden, wire, codec, log.ops)
    total = _shares([(0.0, end)], waits, exposed, hidden, wire, codec, log.ops)[0]
    total = replace(total, bytes_sent=sum(op.nbytes for op in log.ops), messages=sum(op.messages for op in log.ops))
    return RankSplit(
        log.rank,
        log.role,
        total,
        tuple(StepShares(mark.step, shares, mark.values) for mark, shares in zip(marks, steps, strict=True)),
        still,
        {key: moment for key, (moment, _) in ready.items()},
    )


def _ready(op: Op, entries: list[tuple[float, int]]) -> tuple[float, int | None]:
    """When the last rank that mattered to this one had entered `op`, and which rank that was."""
    if op.done < 0:
        if len(entries) < len(op.peers):
            missing = set(op.peers) - {rank for _, rank in entries}
            return float("inf"), min(missing, default=None)
        return entries[-1]
    latest = entries[-1]
    if latest[0] > op.done:
        latest = entries[max(0, bisect_right(entries, op.done, key=lambda entry: entry[0]) - 1)]
    return latest


def _under_way(logs: Sequence[RankLog], ready: Sequence[_Ready]) -> dict[int, _UnderWay]:
    """Rank -> when bytes that its main lane had sent before were still under way, in order; see the module."""
    sends = {op.key: (log.rank, op) for log in logs for op in log.ops if op.kind == "send" and not op.lane}
    found: dict[int, _UnderWay] = defaultdict(list)
    for log, moments in zip(logs, ready, strict=True):
        late = [op for op in log.ops if op.kind == "recv" and op.key in sends and op.done > sends[op.key][1].done >= 0]
        flights = {lane: _flights(log, lane, moments) for lane in {op.lane for op in late}}
        for op in late:
            rank, send = sends[op.key]
            found[rank] += [(*piece, send) for piece in _within(flights[op.lane], send.done, op.done)]
    return {rank: _disjoint(pieces) for rank, pieces in found.items()}


def _flights(log: RankLog, lane: str, ready: _Ready) -> list[Interval]:
    """When a lane stood still for operations that were ready."""
    ours = (one for one in log.blocked if one.lane == lane and one.key in ready)
    return merged((max(one.begin, ready[one.key or ()][0]), one.end) for one in ours)


def _within(intervals: list[Interval], begin: float, end: float) -> list[Interval]:
    """The parts of sorted, disjoint intervals between two moments."""
    first = bisect_right(intervals, begin, key=itemgetter(1))
    return _common(intervals[first : bisect_left(intervals, end, key=itemgetter(0))], begin, end)


def _disjoint(pieces: _UnderWay) -> _UnderWay:
    """In order, each without what the ones before it cover."""
    result, covered = [], 0.0
    for begin, end, op in sorted(pieces, key=itemgetter(0, 1)):
        if end > covered:
            result.append((max(begin, covered), end, op))
            covered = end
    return result


def _flying(rank: int, parts: Sequence[Still], under_way: _UnderWay) -> list[Still]:
    """The same, with the waits in which own bytes were under way as communication."""
    result: list[Still] = []
    for part in parts:
        if part.kind == "communication" or part.what == SLEEP:
            result.append(part)
            continue
        first = bisect_right(under_way, part.begin, key=itemgetter(1))
        holes = []
        for begin, end, send in under_way[first : bisect_left(under_way, part.end, key=itemgetter(0))]:
            piece = max(begin, part.begin), min(end, part.end)
            holes.append(piece)
            result.append(Still(*piece, "communication", send.kind, send.peers[send.peers[0] == rank], send.key))
        result += [replace(part, begin=begin, end=end) for begin, end in without([(part.begin, part.end)], holes)]
    return sorted(result, key=_BY_BEGIN)


def _divide(log: RankLog, ready: _Ready, end: float) -> list[Still]:
    """The main lane's blocked times in order, each cut at the moment when its operation was ready."""
    ops = {op.key: op for op in log.ops}
    beside = sorted((op for op in log.ops if op.lane and op.done >= 0), key=_BY_DONE)
    parts: list[Still] = []
    now = 0.0  # a blocked time that reaches into the next one is counted once
    for blocked in sorted((b for b in log.blocked if b.lane == ""), key=_BY_BEGIN):
        begin, stop = max(blocked.begin, now), blocked.end if blocked.end >= blocked.begin else end
        if stop <= begin:
            continue
        now = stop
        op = None if blocked.key is None else ops.get(blocked.key)
        if op is not None:
            parts.extend(_cut(log.rank, op, begin, stop, *ready[op.key]))
        else:
            what = blocked.what or "something else"
            parts.extend(_explain(log.rank, begin, stop, what, [] if what == SLEEP else beside, ready))
    return parts


def _cut(rank: int, op: Op, begin: float, end: float, ready: float, last: int | None) -> list[Still]:
    """A blocked time for `op`: waiting until `ready` for rank `last`, communication from then on."""
    if last == rank:  # nobody was later than this rank itself
        ready = begin
    middle = min(max(ready, begin), end)
    parts = []
    if middle > begin:
        parts.append(Still(begin, middle, "wait", op.kind, last, op.key))
    if end > middle:
        other = op.peers[op.peers[0] == rank] if len(op.peers) == 2 else None
        parts.append(Still(middle, end, "communication", op.kind, other, op.key))
    return parts


def _explain(rank: int, begin: float, end: float, what: str, beside: list[Op], ready: _Ready) -> list[Still]:
    """A blocked time without an operation, by the operations of other lanes that were done in it, the last one first.

    Main waits for a lane or a queue because a lane waits for the wire: what was done last is what it waited for.
    """
    rest, parts = [(begin, end)], []
    first = bisect_right(beside, begin, key=_BY_DONE)
    for op in reversed(beside[first : bisect_right(beside, end, key=_BY_DONE)]):
        for piece in _common(rest, op.posted, op.done):
            parts.extend(_cut(rank, op, *piece, *ready[op.key]))
        rest = without(rest, [(op.posted, op.done)])
    parts.extend(Still(*piece, "wait", what) for piece in rest)
    return sorted(parts, key=_BY_BEGIN)


def _common(intervals: list[Interval], begin: float, end: float) -> list[Interval]:
    both = ((max(begin, one[0]), min(end, one[1])) for one in intervals)
    return [one for one in both if one[0] < one[1]]


def _shares(
    windows: Sequence[Interval],
    waits: list[Interval],
    exposed: list[Interval],
    hidden: list[Interval],
    wire: list[Interval],
    codec: list[Interval],
    ops: list[Op],
) -> list[Shares]:
    times = zip(*(measured(parts, windows) for parts in (waits, exposed, hidden, wire, codec)), strict=True)
    traffic = _traffic(windows, ops)
    return [
        Shares(
            begin=begin,
            end=end,
            wait=wait,
            exposed_communication=communication,
            hidden_communication=beside,
            wire=flying,
            bytes_sent=nbytes,
            messages=messages,
            codec=coding,
        )
        for (begin, end), (wait, communication, beside, flying, coding), (nbytes, messages) in zip(
            windows, times, traffic, strict=True
        )
    ]


def _traffic(windows: Sequence[Interval], ops: list[Op]) -> list[tuple[int, int]]:
    """Bytes and messages posted in each window, its end left out: what is posted there belongs to what comes next."""
    found = [[0, 0] for _ in windows]
    index = 0
    for op in sorted(ops, key=_BY_POSTED):
        while index < len(windows) and op.posted >= windows[index][1]:
            index += 1
        if index < len(windows) and windows[index][0] <= op.posted:
            found[index][0] += op.nbytes
            found[index][1] += op.messages
    return [(nbytes, messages) for nbytes, messages in found]


def _last_moment(log: RankLog) -> float:
    """The last time in the log of a rank that did not come to write down its end."""
    times = [0.0, *(op.posted for op in log.ops), *(op.done for op in log.ops), *(b.end for b in log.blocked)]
    return max([*times, *(mark.end for mark in log.steps), *(mark.begin for mark in log.steps)])
