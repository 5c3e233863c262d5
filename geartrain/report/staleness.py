"""How old the weights were that gradients were computed at: a histogram of the ages that a run's steps tell.

A step tells them as `staleness`, a number or a list of numbers, counted in updates, and as `dropped` those of gradients
that were too old to be used.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from geartrain.record.files import STEPS
from geartrain.report.bars import box
from geartrain.report.reading import Run
from geartrain.report.svg import WIDTH, Scale, element, figure, label, short, text, ticks

MOST_BARS = 24
"""Bars of a histogram; with more ages, a bar stands for several."""

_HEIGHT, _LEFT, _BOTTOM = 220, 52, 178


def run_staleness(run: Run) -> str:
    """The figure of one run; nothing for a run whose steps tell no ages."""
    used, dropped = _ages(run, "staleness"), _ages(run, "dropped")
    if not used and not dropped:
        return ""
    title = "Staleness of gradients"
    count, mean = len(used), sum(used) / max(len(used), 1)
    how = f"Updates between the weights that a gradient was computed at and its use: {mean:.3g} on average of {count:,}"
    how += f"; {len(dropped):,} more were too old and dropped (dotted)." if dropped else "."
    how += " A long tail on the right is a slow worker."
    body = _histogram(used, dropped, title)
    return element("figure", element("h3", text(title)) + body + element("figcaption", text(how)))


def _ages(run: Run, name: str) -> list[float]:
    """All ages of a kind, of all ranks."""
    found: list[float] = []
    for row in _rows(run):
        told = row.get(name)
        values = told if isinstance(told, list) else [told]
        found += [float(age) for age in values if isinstance(age, int | float) and math.isfinite(age) and age >= 0]
    return found


def _rows(run: Run) -> Iterator[dict[str, object]]:
    if run.folder is None:
        return
    with suppress(OSError, ValueError), open(run.folder / STEPS, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def _histogram(used: list[float], dropped: list[float], title: str) -> str:
    width = -(-int(max(used + dropped) + 1) // MOST_BARS)
    counts = Counter(int(age) // width for age in used)
    lost = Counter(int(age) // width for age in dropped)
    bars = max([*counts, *lost]) + 1
    highest = max(counts[bar] + lost[bar] for bar in range(bars))
    up, across = Scale(0.0, highest, _BOTTOM, 24), Scale(0.0, bars, _LEFT, WIDTH - 14)
    drawn = []
    for tick in ticks(0.0, highest, 4):
        at = up(tick)
        drawn.append(element("line", x1=_LEFT, x2=WIDTH - 14, y1=at, y2=at, cls="grid"))
        drawn.append(label(_LEFT - 6, at + 4, short(tick), text_anchor="end"))
    drawn.append(label(4, 14, "gradients", cls="name"))
    drawn.append(label(WIDTH - 14, _HEIGHT - 8, "staleness (updates)", text_anchor="end", cls="name"))
    every = -(-bars // 8)
    for bar in range(bars):
        x, room = across(bar), across(bar + 1) - across(bar)
        age = f"{bar * width}" if width == 1 else f"{bar * width} to {(bar + 1) * width - 1}"
        below = 0
        for cls, number, what in (("k-compute", counts[bar], "used"), ("k-wait", lost[bar], "dropped")):
            if number:
                top, foot = up(below + number), up(below)
                tip = f"{age} updates old: {number:,} {what}"
                drawn.append(box(x + 0.1 * room, top, 0.8 * room, max(foot - top, 0.5), cls, tip))
            below += number
        if bar % every == 0:
            drawn.append(label(x + room / 2, _BOTTOM + 16, bar * width, text_anchor="middle"))
    return figure(_HEIGHT, "".join(drawn), title)
