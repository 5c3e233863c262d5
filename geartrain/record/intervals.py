"""Sorted, disjoint intervals of time: joined, cut out of each other, and measured within windows.

Sums are taken in the order of time and never over more than one window, so a window in which nothing lies measures
exactly 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[float, float]
"""(begin, end) in seconds."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union, sorted and disjoint; empty intervals vanish."""
    union: list[Interval] = []
    for begin, end in sorted(intervals):
        if end <= begin:
            continue
        if union and begin <= union[-1][1]:
            if end > union[-1][1]:
                union[-1] = (union[-1][0], end)
        else:
            union.append((begin, end))
    return union


def without(intervals: Sequence[Interval], holes: Sequence[Interval]) -> list[Interval]:
    """The parts of `intervals` outside `holes`; both sorted and disjoint."""
    rest: list[Interval] = []
    first = 0
    for begin, end in intervals:
        while first < len(holes) and holes[first][1] <= begin:
            first += 1
        index = first
        while index < len(holes) and holes[index][0] < end:
            if holes[index][0] > begin:
                rest.append((begin, holes[index][0]))
            begin = max(begin, holes[index][1])
            index += 1
        if begin < end:
            rest.append((begin, end))
    return rest


def measured(intervals: Sequence[Interval], windows: Sequence[Interval]) -> list[float]:
    """Seconds of `intervals` within each window; both sorted, each disjoint in itself (windows may touch)."""
    lengths: list[float] = []
    first = 0
    for begin, end in windows:
        while first < len(intervals) and intervals[first][1] <= begin:
            first += 1
        length, index = 0.0, first
        while index < len(intervals) and intervals[index][0] < end:
            length += min(intervals[index][1], end) - max(intervals[index][0], begin)
            index += 1
        lengths.append(length)
    return lengths
