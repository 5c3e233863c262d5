"""A window of a trace as rows of intervals, one row per rank: what it did, what was in flight, what its lanes did."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from geartrain.units import format_size

MOST_RANKS = 64
"""Ranks that are drawn one by one; of more, those that waited least, about the median, and most."""

SHOWN_STEPS = 3
"""Steps in the window, if the budget allows; the first step is left out where there are others: it warms up."""

_EACH = 4  # ranks of each sort when not all are drawn
_MOST_LANES = 16  # ranks whose lanes are drawn
_STEP = re.compile(r"step (\d+)")
_KINDS = {"compute": "compute", "wait": "wait", "exposed communication": "exposed"}

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """An interval in nanoseconds from the window's begin. `kind`: compute, exposed, wait, wire, lane, step or span."""

    begin: int
    length: int
    kind: str
    tip: str


@dataclass(slots=True)
class Row:
    """A rank's intervals: `main` never overlap, `wire` and `lanes` may; `steps` has the program's own spans, too.

    `label` stands beside it in the place of `name`.
    """

    name: str
    main: list[Item] = field(default_factory=list)
    wire: list[Item] = field(default_factory=list)
    lanes: list[Item] = field(default_factory=list)
    steps: list[Item] = field(default_factory=list)
    label: str = ""

    def band(self, kind: str) -> list[Item]:
        """The list that an interval of a kind belongs to."""
        return {"wire": self.wire, "lane": self.lanes, "step": self.steps, "span": self.steps}.get(kind, self.main)


@dataclass(frozen=True, slots=True)
class Timeline:
    """What is drawn. `begin` and `length` in nanoseconds; `note` says what was chosen, in words; `steps` how many."""

    begin: int
    length: int
    rows: list[Row]
    note: str
    steps: int = 0


@dataclass(slots=True)
class _Event:
    pid: int
    begin: int
    end: int
    kind: str
    name: str
    args: Object


def shown_ranks(ranks: Sequence[Object]) -> list[int]:
    """All ranks up to MOST_RANKS; else those that waited least, those about the median and those that waited most."""
    numbers = [int(rank.get("rank", i)) for i, rank in enumerate(ranks)]
    if len(numbers) <= MOST_RANKS:
        return numbers
    waited = sorted(zip(numbers, ranks, strict=True), key=lambda pair: (pair[1].get("wait") or 0.0, pair[0]))
    workers = [number for number, rank in waited if rank.get("role", "worker") == "worker"]
    services = [number for number, rank in waited if rank.get("role", "worker") != "worker"]
    middle = max(0, len(workers) // 2 - _EACH // 2)
    chosen = [*workers[:_EACH], *workers[middle : middle + _EACH], *workers[-_EACH:], *services[-_EACH:]]
    return sorted(set(chosen))


def rank_names(ranks: Sequence[Object]) -> dict[int, str]:
    """`rank 3`, or `rank 4 (server)` where it does not train."""
    names = {}
    for i, rank in enumerate(ranks):
        role, number = rank.get("role", "worker"), int(rank.get("rank", i))
        names[number] = f"rank {number}" if role == "worker" else f"rank {number} ({role})"
    return names


def timeline(trace: Object, ranks: Sequence[Object], budget: int, most_steps: int | None = None) -> Timeline | None:
    """The window of a trace that fits a budget of intervals; None when the trace holds nothing to draw.

    Args:
        most_steps: in the window; SHOWN_STEPS if left out.
    """
    chosen = shown_ranks(ranks)
    wanted = set(chosen) if ranks else None
    events = [event for event in _events(trace) if wanted is None or event.pid in wanted]
    if not any(event.kind not in ("step", "span") for event in events):
        return None
    begin, end, steps, words = _window(events, budget, SHOWN_STEPS if most_steps is None else most_steps)
    names, no_lanes = rank_names(ranks), all(event.kind != "lane" for event in events)
    order = chosen if ranks else sorted({event.pid for event in events})
    roomy = len(order) <= _MOST_LANES
    rows = {pid: Row(names.get(pid, f"rank {pid}")) for pid in order}
    for event in events:
        first, last = max(event.begin, begin), min(event.end, end)
        if first < last and (event.kind != "lane" or roomy):
            item = Item(first - begin, last - first, event.kind, _tip(event))
            rows[event.pid].band(event.kind).append(item)
    note = _on_ranks(len(ranks), len(order)) + ("" if roomy or no_lanes else ", without their lanes")
    return Timeline(begin, end - begin, list(rows.values()), words + note, steps)


def _on_ranks(there: int, shown: int) -> str:
    if shown < there:
        return f" on {shown} of {there} ranks: those that waited least, about the median, and most"
    return f" on all {there} ranks" if there > 1 else ""


def _events(trace: Object) -> Iterator[_Event]:
    threads: dict[tuple[int, int], str] = {}
    written = trace.get("traceEvents") or []
    for event in written:
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            threads[event["pid"], event["tid"]] = str(event.get("args", {}).get("name", ""))
    for event in written:
        if event.get("ph") != "X":
            continue
        thread = threads.get((event["pid"], event["tid"]), "")
        begin = round(event["ts"] * 1000)
        kind = _KINDS.get(thread) or ("wire" if thread.startswith("communication") else "")
        name = str(event.get("name", ""))
        kind = kind or ("lane" if thread.startswith("lane ") else "step" if _STEP.fullmatch(name) else "span")
        if kind == "lane":
            name = f"{thread}: {name}"
        yield _Event(event["pid"], begin, begin + round(event["dur"] * 1000), kind, name, event.get("args") or {})


def _window(events: Sequence[_Event], budget: int, most: int) -> tuple[int, int, int, str]:
    """Begin, end, number of steps and words: as many steps as the budget allows, at least a part of one."""
    steps: dict[int, list[_Event]] = defaultdict(list)
    for event in events:
        found = _STEP.fullmatch(event.name) if event.kind == "step" else None
        if found:
            steps[int(found[1])].append(event)
    numbers = sorted(steps)
    if len(numbers) > 1:
        numbers = numbers[1:]
    for count in range(min(max(most, 1), len(numbers)), 0, -1):
        chosen = [event for number in numbers[:count] for event in steps[number]]
        begin, end = min(event.begin for event in chosen), max(event.end for event in chosen)
        words = f"step {numbers[0]}" if count == 1 else f"steps {numbers[0]} to {numbers[count - 1]}"
        if _inside(events, begin, end) <= budget:
            return begin, end, count, words
    if not numbers:
        begin, end, words = min(e.begin for e in events), max(e.end for e in events), "the run"
    whole = _inside(events, begin, end) <= budget
    while _inside(events, begin, end) > budget and end > begin + 1:
        end = begin + (end - begin) // 2
    return begin, end, min(1, len(numbers)), words if whole else f"the first part of {words}"


def _inside(events: Sequence[_Event], begin: int, end: int) -> int:
    return sum(event.begin < end and event.end > begin for event in events)


def _tip(event: _Event) -> str:
    if event.kind == "step":
        loss = event.args.get("loss")
        return event.name + (f", loss {loss:.5g}" if isinstance(loss, int | float) else "")
    if event.kind != "wire":
        return event.name
    nbytes, messages = event.args.get("bytes"), event.args.get("messages")
    tip = event.name
    if isinstance(nbytes, int | float) and nbytes > 0:
        tip += f"\nsends {format_size(nbytes)} in {messages} message(s)"
    size = event.args.get("size")
    if isinstance(size, int | float) and size > 0:
        tip += f"\ntensor of {format_size(size)}"
    peers = event.args.get("with") or f"{event.args.get('ranks', '?')} ranks"
    return f"{tip}\nbetween ranks {peers}" if event.args.get("with") else f"{tip}\nbetween {peers}"
