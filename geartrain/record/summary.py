"""What a run of a script came to: plain data for `--json`, a table and one sentence for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from rich.table import Table

from geartrain.record.log import RunRecord
from geartrain.record.split import RankSplit, Split
from geartrain.record.text import time_text
from geartrain.units import format_size, format_time

MOST_ROWS = 16
"""Ranks that get a row each; of more, the table shows the extremes and the median."""

_LATE = 0.01  # ranks that end within this share of the run's time of the last one count as the last, too
_COLUMNS = ("time", "compute", "exposed_communication", "wait", "bytes_sent", "messages")


def summarise(record: RunRecord, split: Split) -> dict[str, Any]:
    """SI units. `time` is when the last rank ended: virtual seconds under the simulated engine, real ones elsewhere."""
    slowest = _slowest(split)
    lost = [f"Rank {rank} {how}; the others went on." for rank, how in record.lost.items()]
    return {
        "engine": record.engine,
        "virtual": record.virtual,
        "time": max((rank.total.time for rank in split.ranks), default=0.0),
        "wall": record.wall,
        "interrupted": record.interrupted,
        "lost": {str(rank): how for rank, how in record.lost.items()},
        "ranks": [_row(rank) for rank in split.ranks],
        "slowest": _reasons(split, slowest) if slowest else None,
        "sentence": " ".join([*lost, _sentence(split, slowest) if slowest else "No rank has run."]),
    }


def summary_table(summary: dict[str, Any]) -> Table:
    """The summary's ranks as a table."""
    clock = "virtual" if summary["virtual"] else "wall"
    title = f"{summary['engine']}: {format_time(summary['time'])} of {clock} time on {len(summary['ranks'])} rank(s)"
    table = Table(title=title, title_justify="left")
    for name in ("rank", "time", "compute", "exposed comm.", "wait", "bytes sent", "messages"):
        table.add_column(name, justify="left" if name == "rank" else "right", no_wrap=True)
    for label, row in _rows(summary["ranks"]):
        times = [time_text(row[name]) for name in _COLUMNS[:4]]
        table.add_row(label, *times, format_size(row["bytes_sent"]), f"{row['messages']:.6g}")
    return table


def _rows(ranks: Sequence[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    if len(ranks) <= MOST_ROWS:
        return [(f"{row['rank']}" if row["role"] == "worker" else f"{row['rank']} {row['role']}", row) for row in ranks]
    kinds = (("least", min), ("median", median), ("most", max))
    return [(label, {name: pick(row[name] for row in ranks) for name in _COLUMNS}) for label, pick in kinds]


def _row(rank: RankSplit) -> dict[str, Any]:
    total = rank.total
    return {
        "rank": rank.rank,
        "role": rank.role,
        "time": total.time,
        "compute": total.compute,
        "exposed_communication": total.exposed_communication,
        "wait": total.wait,
        "hidden_communication": total.hidden_communication,
        "bytes_sent": total.bytes_sent,
        "messages": total.messages,
    }


def _slowest(split: Split) -> RankSplit | None:
    """The rank that ended last; among those that ended with it, the one that stood still least."""
    if not split.ranks:
        return None
    last = max(rank.total.end for rank in split.ranks)
    late = [rank for rank in split.ranks if rank.total.end >= last * (1 - _LATE)]
    return min(late, key=lambda rank: (rank.total.wait + rank.total.exposed_communication, rank.rank))


def _reasons(split: Split, slowest: RankSplit) -> dict[str, Any]:
    """What the slowest rank stood still for, most first, and how long the others waited for it."""
    seconds: dict[tuple[str, str, int | None], float] = defaultdict(float)
    for still in slowest.still:
        seconds[still.kind, still.what, still.on] += still.end - still.begin
    ordered = sorted(seconds.items(), key=lambda item: -item[1])
    return {
        "rank": slowest.rank,
        "stood_still": [
            {"kind": kind, "what": what, "on": on, "seconds": length} for (kind, what, on), length in ordered
        ],
        "waited_for": sum(length for (_, on), length in split.waits().items() if on == slowest.rank),
    }


def _sentence(split: Split, slowest: RankSplit) -> str:
    reasons = _reasons(split, slowest)
    total = slowest.total
    share = f"{total.compute / total.time:.0%} of it computing" if total.time > 0 else "doing nothing"
    tied = any(rank.total.end > total.end for rank in split.ranks)
    among = f" (of those that ended within {_LATE:.0%}, it stood still least)" if tied else ""
    begin = f"Slowest is rank {slowest.rank}{among}: {format_time(total.time)}, {share}"
    if not reasons["stood_still"]:
        end = "it never stood still"
    else:
        most = reasons["stood_still"][0]
        length, what = format_time(most["seconds"]), most["what"]
        if most["kind"] == "communication":
            other = "" if most["on"] is None else f" with rank {most['on']}"
            end = f"it stood still longest, {length}, for bytes in flight in {what}{other}"
        else:
            other = "" if most["on"] is None else f" for rank {most['on']}"
            end = f"it waited longest, {length}, in {what}{other}"
    if reasons["waited_for"] > 0:
        end += f"; others waited {format_time(reasons['waited_for'])} in all for it"
    return f"{begin}; {end}."
