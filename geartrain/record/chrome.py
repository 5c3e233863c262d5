"""A run as a Chrome trace, which https://ui.perfetto.dev opens: one process per rank, one thread per kind of time.

    steps           the steps, and what the program named itself (spans of kind "user")
    compute         what ran on the device; where an engine does not tell, the time that nothing else explains
    wait            the main lane stood still for another rank, a queue, a sleep
    exposed         the main lane stood still while bytes were in flight
    communication   every transfer from `ready` to `done`; those that overlap lie in rows of their own
    lane NAME       what another lane of the rank stood still for, and its spans

Times are microseconds, rounded to a thousandth. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from geartrain.record.intervals import Interval, without
from geartrain.record.log import Op, RankLog, RunRecord
from geartrain.record.split import RankSplit, Split

MOST_STEPS = 10
MOST_EVENTS = 200_000

Event = dict[str, Any]


def chrome_trace(record: RunRecord, split: Split) -> dict[str, Any]:
    """The first steps (or, of a script, the first part of the run) as an object ready for JSON.

    At most MOST_STEPS steps, fewer when there would be more than MOST_EVENTS events; the metadata says what was kept.
    """
    window = _window(record, split)
    events: list[Event] = []
    for log, rank in zip(record.logs, split.ranks, strict=True):
        events.extend(_rank_events(log, rank, window))
    kept = {"engine": record.engine, "virtual": record.virtual, "begin": window[0], "end": window[1]}
    return {"displayTimeUnit": "ms", "otherData": kept, "traceEvents": events}


def _window(record: RunRecord, split: Split) -> Interval:
    """The time to draw: as many steps, or as much of a run without steps, as fits."""
    ends = sorted({step.step for rank in split.ranks for step in rank.steps})
    num_steps = min(len(ends), MOST_STEPS)
    last = max((rank.total.end for rank in split.ranks), default=0.0)
    begin, end = _span_of_steps(split, set(ends[:num_steps])) if num_steps else (0.0, last)
    while end > begin and _count(record, split, (begin, end)) > MOST_EVENTS and num_steps != 1:
        num_steps //= 2
        end = _span_of_steps(split, set(ends[:num_steps]))[1] if num_steps else begin + (end - begin) / 2
    return begin, end


def _span_of_steps(split: Split, steps: set[int]) -> Interval:
    chosen = [step.shares for rank in split.ranks for step in rank.steps if step.step in steps]
    return min(shares.begin for shares in chosen), max(shares.end for shares in chosen)


def _count(record: RunRecord, split: Split, window: Interval) -> int:
    """About how many events lie in a window: transfers, times of standing still and the spans between them."""
    count = 0
    for log, rank in zip(record.logs, split.ranks, strict=True):
        count += sum(window[0] <= op.posted < window[1] for op in log.ops)
        count += sum(window[0] <= still.begin < window[1] for still in rank.still)
        count += sum(window[0] <= span.begin < window[1] for span in log.spans)
    return count


def _rank_events(log: RankLog, rank: RankSplit, window: Interval) -> Iterator[Event]:
    lanes = sorted({b.lane for b in log.blocked} | {span.lane for span in log.spans} - {""})
    rows = _rows(_flights(log, rank, window))
    names = ["steps", "compute", "wait", "exposed communication"]
    names += ["communication" if row == 0 else f"communication {row + 1}" for row in range(len(rows))]
    names += [f"lane {lane}" for lane in lanes if lane]
    tids = {name: tid for tid, name in enumerate(names)}
    yield _named(rank.rank, "process_name", {"name": f"rank {rank.rank} ({rank.role})"})
    yield _named(rank.rank, "process_sort_index", {"sort_index": rank.rank})
    for name, tid in tids.items():
        yield _named(rank.rank, "thread_name", {"name": name}, tid)
        yield _named(rank.rank, "thread_sort_index", {"sort_index": tid}, tid)
    slices = [*_main_slices(log, rank), *_lane_slices(log)]
    for begin, end, thread, name, args in slices:
        begin, end = max(begin, window[0]), min(end, window[1])
        if begin < end:
            yield _slice(rank.rank, tids[thread], begin, end, name, args)
    for row, flights in enumerate(rows):
        for begin, end, op in flights:
            args = {"bytes": op.nbytes, "messages": op.messages, "size": op.size, "ranks": len(op.peers)}
            if len(op.peers) <= 16:
                args = {**args, "with": ", ".join(str(peer) for peer in op.peers)}
            yield _slice(rank.rank, tids["communication"] + row, begin, end, op.kind, {**args, "posted": op.posted})


_Slice = tuple[float, float, str, str, dict[str, Any]]


def _main_slices(log: RankLog, rank: RankSplit) -> Iterator[_Slice]:
    for step in rank.steps:
        yield step.shares.begin, step.shares.end, "steps", f"step {step.step}", step.values
    computed = [span for span in log.spans if span.lane == "" and span.kind == "compute"]
    for span in log.spans:
        if span.lane == "":
            yield span.begin, span.end, "compute" if span.kind == "compute" else "steps", span.name, {}
    if not computed:
        windows = [(step.shares.begin, step.shares.end) for step in rank.steps] or [(0.0, rank.total.end)]
        for begin, end in without(windows, [(still.begin, still.end) for still in rank.still]):
            yield begin, end, "compute", "compute", {}
    for still in rank.still:
        thread = "wait" if still.kind == "wait" else "exposed communication"
        yield still.begin, still.end, thread, _reason(still.what, still.on, still.kind), {}


def _lane_slices(log: RankLog) -> Iterator[_Slice]:
    kinds = {op.key: op.kind for op in log.ops}
    for blocked in log.blocked:
        if blocked.lane:
            what = blocked.what if blocked.key is None else kinds.get(blocked.key, blocked.what)
            yield blocked.begin, blocked.end, f"lane {blocked.lane}", f"stands in {what or 'something else'}", {}
    for span in log.spans:
        if span.lane:
            yield span.begin, span.end, f"lane {span.lane}", span.name, {}


def _reason(what: str, on: int | None, kind: str) -> str:
    if on is None:
        return what
    return f"{what} for rank {on}" if kind == "wait" else f"{what} with rank {on}"


_Flight = tuple[float, float, Op]


def _flights(log: RankLog, rank: RankSplit, window: Interval) -> list[_Flight]:
    """The transfers of a rank within the window, in the order of their begin."""
    flights = []
    for op in log.ops:
        begin = max(rank.ready.get(op.key, op.posted), op.posted, window[0])
        end = min(op.done if op.done >= 0 else rank.total.end, window[1])
        if begin < end:
            flights.append((begin, end, op))
    return sorted(flights, key=lambda flight: (flight[0], flight[1]))


def _rows(flights: Iterable[_Flight]) -> list[list[_Flight]]:
    """Rows in which nothing overlaps, since slices of one thread must nest; at least one row."""
    rows: list[list[_Flight]] = [[]]
    for flight in flights:
        for row in rows:
            if not row or row[-1][1] <= flight[0]:
                row.append(flight)
                break
        else:
            rows.append([flight])
    return rows


def _slice(pid: int, tid: int, begin: float, end: float, name: str, args: dict[str, Any]) -> Event:
    start = _microseconds(begin)
    length = round(_microseconds(end) - start, 3)
    return {"ph": "X", "pid": pid, "tid": tid, "ts": start, "dur": length, "name": name, "args": args}


def _named(pid: int, kind: str, args: dict[str, Any], tid: int = 0) -> Event:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": args}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
