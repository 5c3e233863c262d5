"""A timeline drawn for paper, and its intervals for the page's script, which draws it again for any width and zoom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geartrain.report.plot import embedded
from geartrain.report.svg import element, figure, label, number, short, ticks, unit
from geartrain.report.timeline import Item, Row, Timeline

PAPER = 720
"""Width of the drawing for paper and for pages without scripts."""

LEFT, TOP = 70, 22
KINDS = ("compute", "exposed", "wait", "wire", "lane")


def draw(line: Timeline, title: str) -> str:
    """The figure and its data."""
    main, thin = _heights(len(line.rows))
    lanes = any(row.lanes for row in line.rows)
    pitch = main + thin * (2 if lanes else 1) + (6 if main > 8 else 3)
    height = TOP + pitch * len(line.rows) + 4
    scale = (PAPER - LEFT - 8) / max(line.length, 1)
    parts = [_axis(line, scale, height)]
    every = max(1, -(-12 // pitch))
    for i, row in enumerate(line.rows):
        top = TOP + i * pitch
        if i % every == 0:
            parts.append(label(LEFT - 6, top + main - 1, _short_name(row.label or row.name), text_anchor="end"))
        parts.append(_row(row, top, main, thin, scale))
    svg = figure(height, "".join(parts), title, width=PAPER, cls="timeline")
    return svg + embedded(_data(line, main, thin, pitch, height, every))


def _short_name(name: str) -> str:
    """`rank 4 (server)` -> `server 4`: there is little room at the left."""
    words = name.replace("(", "").replace(")", "").split()
    return f"{words[2][:7]} {words[1]}" if len(words) == 3 else name


def _heights(num_ranks: int) -> tuple[int, int]:
    """Heights of the main band and of a thin one: less when there are many ranks."""
    return (14, 6) if num_ranks <= 16 else (10, 4) if num_ranks <= 32 else (7, 3)


def _axis(line: Timeline, scale: float, height: int) -> str:
    factor, name = unit("time", line.length / 1e9)
    parts = []
    for tick in ticks(0.0, line.length / 1e9, 6):
        at = LEFT + tick * 1e9 * scale
        parts.append(element("line", x1=at, x2=at, y1=TOP - 4, y2=height, cls="grid"))
        if at < PAPER - 30:
            parts.append(label(at, 12, f"{short(tick / factor)} {name}", text_anchor="middle"))
    return "".join(parts)


def _row(row: Row, top: float, main: int, thin: int, scale: float) -> str:
    bands = ((row.main, top, main), (row.wire, top + main, thin), (row.lanes, top + main + thin, thin))
    parts = []
    for items, y, height in bands:
        for kind in KINDS:
            path = _path([item for item in items if item.kind == kind], y, height, scale)
            if path:
                parts.append(element("path", d=path, cls=f"k-{kind}"))
    marks = "".join(
        f"M{number(LEFT + step.begin * scale)} {number(top - 1)}v{main + 2}"
        for step in row.steps
        if step.kind == "step"
    )
    if marks:
        parts.append(element("path", d=marks, cls="step"))
    return "".join(parts)


def _path(items: Sequence[Item], y: float, height: int, scale: float) -> str:
    pieces = []
    for item in items:
        x, width = LEFT + item.begin * scale, max(item.length * scale, 0.4)
        pieces.append(f"M{x:.1f} {number(y)}h{width:.1f}v{height}h-{width:.1f}z")
    return "".join(pieces)


def _data(line: Timeline, main: int, thin: int, pitch: int, height: int, every: int) -> dict[str, Any]:
    tips: dict[str, int] = {}

    def flat(items: Sequence[Item]) -> list[int]:
        numbers: list[int] = []
        for item in items:
            kind = KINDS.index(item.kind) if item.kind in KINDS else -1 if item.kind == "step" else -2
            numbers += [item.begin, item.length, kind, tips.setdefault(item.tip, len(tips))]
        return numbers

    rows = [
        {
            "name": row.name,
            "label": _short_name(row.label or row.name),
            "bands": [flat(row.main), flat(row.wire), flat(row.lanes), flat(row.steps)],
        }
        for row in line.rows
    ]
    sizes = {"left": LEFT, "top": TOP, "main": main, "thin": thin, "pitch": pitch, "height": height, "every": every}
    return {"timeline": sizes, "begin": line.begin, "length": line.length, "rows": rows, "tips": list(tips)}
