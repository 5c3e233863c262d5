"""Line plots: a frame with round ticks, lines with shapes, and what tells the page which point is under a finger."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from geartrain.report.svg import (
    NUM_COLOURS,
    WIDTH,
    Scale,
    breakable,
    element,
    figure,
    label,
    line,
    log_ticks,
    mark,
    short,
    text,
    ticks,
    unit,
)

HEIGHT = 250
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 28, 42

_FEW = 12  # points of a line that all get their shape; of more, some do
_LOG = 30  # a largest value this many times the smallest is drawn on a logarithmic axis


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line.

    Attributes:
        colour, shape: count through those there are.
        dash: counts through solid, dashed, dotted, mixed.
        bare: without shapes.
        broad: a pale band that a thin line on top of it leaves in sight.
    """

    name: str
    points: Sequence[tuple[float, float]]
    colour: int
    shape: int
    dash: int = 0
    bare: bool = False
    broad: bool = False

    @property
    def cls(self) -> str:
        return f"line s{self.colour % NUM_COLOURS} d{self.dash % 4}" + (" broad" if self.broad else "")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """What an axis shows: a title, and the kind of quantity (time, size, count or number)."""

    title: str
    kind: str = "number"
    log: bool = False
    zero: bool = True
    marks: Sequence[float] = ()


def axis_of(values: Sequence[float], title: str, kind: str, marks: Sequence[float] = ()) -> Axis:
    """An axis from zero, or a logarithmic one where the values are far apart."""
    positive = [value for value in values if value > 0]
    wide = len(positive) == len(values) and bool(values) and max(values) > _LOG * min(values)
    return Axis(title=title, kind=kind, log=wide, marks=marks)


def line_plot(series: Sequence[Series], x: Axis, y: Axis, title: str) -> str:
    """The plot and its points as JSON, for a page that shows the nearest one."""
    across = _scale(x, [p[0] for one in series for p in one.points], LEFT, WIDTH - RIGHT)
    up = _scale(y, [p[1] for one in series for p in one.points], HEIGHT - BOTTOM, TOP)
    drawn = [_grid_x(x, across), _grid_y(y, up)]
    placed = [[(across(a), up(b)) for a, b in one.points] for one in series]
    drawn += [line(points, one.cls) for one, points in zip(series, placed, strict=True) if len(points) > 1]
    for i, (one, points) in enumerate(zip(series, placed, strict=True)):
        if not one.bare:
            drawn += [mark(one.shape, *points[j], f"mark s{one.colour % NUM_COLOURS}") for j in _marked(i, points)]
    drawn.append(element("g", cls="near"))
    data = {
        "x": [x.title, x.kind],
        "y": [y.title, y.kind],
        "series": [
            {"name": one.name, "at": [round(v, 1) for p in points for v in p], "of": _digits(one.points)}
            for one, points in zip(series, placed, strict=True)
        ],
    }
    return figure(HEIGHT, "".join(drawn), title, cls="plot") + embedded(data)


def key(series: Sequence[Series], dashes: Sequence[tuple[str, int]] = ()) -> str:
    """The legend: each line as it is drawn, with its name; then what the dashes mean, of whatever colour."""
    items = []
    for one in series:
        sample = line([(1, 7), (27, 7)], one.cls)
        if not one.bare:
            sample += mark(one.shape, 14, 7, f"mark s{one.colour % NUM_COLOURS}")
        drawn = element("svg", sample, viewBox="0 0 28 14", width=28, height=14, aria_hidden="true")
        items.append(element("li", drawn + element("span", breakable(one.name))))
    for name, dash in dashes:
        sample = line([(1, 7), (27, 7)], f"line ink d{dash % 4}")
        drawn = element("svg", sample, viewBox="0 0 28 14", width=28, height=14, aria_hidden="true")
        items.append(element("li", drawn + element("span", text(name))))
    return element("ul", "".join(items), cls="key")


def embedded(data: Any) -> str:
    """Data for the page's script; nothing in it can end the element."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026")
    return f'<script type="application/json">{written}</script>'


def _scale(axis: Axis, values: Sequence[float], begin: float, end: float) -> Scale:
    values = [*values, *axis.marks]
    low, high = min(values), max(values)
    if axis.log:
        return Scale(low / 1.1, high * 1.1, begin, end, log=True) if low < high else Scale(low, low, begin, end)
    if axis.zero:
        return Scale(0.0, high * 1.06 or 1.0, begin, end)
    room = (high - low) * 0.06 or abs(high) * 0.1 or 1.0
    return Scale(low - room, high + room, begin, end)


def _ticks(axis: Axis, scale: Scale) -> list[float]:
    if axis.marks:
        return list(axis.marks)
    return log_ticks(scale.low, scale.high) if axis.log else ticks(scale.low, scale.high)


def _named(axis: Axis, scale: Scale) -> tuple[float, str]:
    factor, name = unit(axis.kind, scale.high)
    return factor, f"{axis.title} ({name})" if name else axis.title


def _grid_x(axis: Axis, scale: Scale) -> str:
    factor, title = _named(axis, scale)
    parts = []
    for tick in _ticks(axis, scale):
        at = scale(tick)
        parts.append(element("line", x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM, cls="grid"))
        parts.append(label(at, HEIGHT - BOTTOM + 16, short(tick / factor), text_anchor="middle"))
    parts.append(label(WIDTH - RIGHT, HEIGHT - 8, title, text_anchor="end", cls="name"))
    return "".join(parts)


def _grid_y(axis: Axis, scale: Scale) -> str:
    factor, title = _named(axis, scale)
    parts = []
    for tick in _ticks(axis, scale):
        at = scale(tick)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, cls="grid"))
        parts.append(label(LEFT - 6, at + 4, short(tick / factor), text_anchor="end"))
    parts.append(label(4, 14, title + (", logarithmic" if axis.log else ""), cls="name"))
    return "".join(parts)


def _marked(index: int, points: Sequence[tuple[float, float]]) -> Sequence[int]:
    """Which points get a shape: all of a few; of many, five, elsewhere on each line, so that equal lines show."""
    if len(points) <= _FEW:
        return range(len(points))
    step = len(points) // 5
    return range((index * step // 3) % step, len(points), step)


def _digits(points: Sequence[tuple[float, float]]) -> list[float]:
    return [float(f"{value:.6g}") for point in points for value in point]
