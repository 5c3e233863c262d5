"""A sweep drawn: curves along the first axis, and a map of who wins where over two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from geartrain.predict.prediction import Prediction
from geartrain.report.plot import Axis as PlotAxis
from geartrain.report.plot import Series, axis_of, line_plot
from geartrain.report.svg import NUM_COLOURS, element, figure, label, text
from geartrain.sweep.axis import Axis, Value
from geartrain.sweep.points import ONE_NODE, Point, Swept

MOST_CURVES = 4
"""Values of the second axis that get a plot of their own."""

_UNITS = {
    "rate": ((1.25e11, "Tbit/s"), (1.25e8, "Gbit/s"), (1.25e5, "Mbit/s"), (125.0, "kbit/s")),
    "time": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "size": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
}
_MAP_WIDTH, _LEFT, _TOP, _BOTTOM, _RIGHT = 720, 92, 12, 46, 12
_CELL_HEIGHT = 34.0
_ROOM = 18.0
"""Width from which a cell has its letter."""


def curves(swept: Swept) -> list[tuple[str, str, list[Series]]]:
    """(title, figure, lines) of plots: samples per second and what is exposed, at some values of the second axis."""
    if not swept.axes[0].numeric:
        return []
    lines = list(swept.lines())
    if len(lines) > MOST_CURVES:
        step = (len(lines) - 1) / (MOST_CURVES - 1)
        lines = [lines[round(index * step)] for index in range(MOST_CURVES)]
    drawn = []
    for where, points in lines:
        suffix = "".join(f", {other.key} {other.text(where[other.key])}" for other in swept.axes[1:])
        for title, name, value in (
            ("Samples per second", "samples per second", lambda one: one.throughput),
            ("Exposed communication", "% of the step", lambda one: 100 * one.exposed_communication / one.step_time),
        ):
            series = list(_series(swept, points, value, alone=name != "% of the step"))
            if series:
                drawn.append((title + suffix, _plot(swept.axes[0], series, name, title + suffix), series))
    return drawn


def _series(
    swept: Swept, points: Sequence[Point], value: Callable[[Prediction], float], alone: bool
) -> Iterator[Series]:
    axis = swept.axes[0]
    factor, _ = unit_of(axis)
    for index, name in enumerate(swept.strategies):
        known = [(p.at[axis.key], p.predictions[index]) for p in points]
        line = [(float(at) / factor, value(one)) for at, one in known if isinstance(one, Prediction)]
        if line:
            yield Series(name=name, points=line, colour=index, shape=index)
    base = [(float(p.at[axis.key]) / factor, value(p.one_node)) for p in points if p.one_node]
    if alone and base:
        yield Series(name=ONE_NODE, points=base, colour=6, shape=0, dash=1, bare=True)


def _plot(axis: Axis, series: Sequence[Series], name: str, title: str) -> str:
    _, unit = unit_of(axis)
    values = [point[1] for one in series for point in one.points]
    across = PlotAxis(title=f"{axis.key} ({unit})" if unit else axis.key, log=axis.log, zero=False)
    return line_plot(series, across, axis_of(values, name, "number"), title)


def unit_of(axis: Axis) -> tuple[float, str]:
    """The unit that an axis reads best in: its factor and its name."""
    units = _UNITS.get(axis.quantity or "", ((1.0, ""),))
    largest = max(float(value) for value in axis.values)
    return next((one for one in units if largest >= one[0]), units[-1])


# The map


def winner_map(swept: Swept) -> str:
    """A rectangle per point, the first axis to the right, the second upwards: colour, hatching and letter say who."""
    across, up = swept.axes
    width = (_MAP_WIDTH - _LEFT - _RIGHT) / len(across.values)
    height = _TOP + _CELL_HEIGHT * len(up.values) + _BOTTOM
    parts = [hatches(swept)]
    for point in swept.points:
        x = _LEFT + width * across.values.index(point.at[across.key])
        y = _TOP + _CELL_HEIGHT * (len(up.values) - 1 - up.values.index(point.at[up.key]))
        parts.append(_cell(swept, point, x, y, width))
    parts.append(_names(across, up, width))
    return figure(height, "".join(parts), f"who is fastest over {across.key} and {up.key}", width=_MAP_WIDTH)


def letter(swept: Swept, index: int | None) -> str:
    """A, B, ... of the strategies; 1 of one node."""
    if index is None:
        return "-"
    return "1" if index == len(swept.strategies) else chr(ord("A") + index % 26)


def winner_of(swept: Swept, point: Point) -> int | None:
    """The strategy that wins; their number where one node is faster than all of them."""
    index = point.winner
    if index is None:
        return None
    best = point.predictions[index]
    assert isinstance(best, Prediction), "a winner has a prediction"
    alone = point.one_node
    return len(swept.strategies) if alone and alone.throughput > best.throughput else index


def swatch(swept: Swept, index: int) -> str:
    """What stands for a winner in the legend of a map."""
    name = label(12, 12, letter(swept, index), text_anchor="middle", cls="halo")
    box = _filled(swept, index, 0.0, 0.0, 24.0, 16.0)
    return element("svg", box + name, viewBox="0 0 24 16", width=24, height=16, aria_hidden="true")


def hatches(swept: Swept) -> str:
    """Patterns that tell winners apart without colour: lines of another angle and distance for each."""
    patterns = []
    for index in range(len(swept.strategies) + 1):
        size = 5 + 3 * (index // 4 % 3)
        line = element("path", d=f"M0 0V{size}", stroke="#fff", stroke_width=1.4, stroke_opacity="0.55")
        turned = f"rotate({45 * (index % 4)})"
        patterns.append(
            element(
                "pattern", line, id=f"win{index}", width=size, height=size,
                patternUnits="userSpaceOnUse", patternTransform=turned,
            )
        )  # fmt: skip
    return element("defs", "".join(patterns))


def _cell(swept: Swept, point: Point, x: float, y: float, width: float) -> str:
    index = winner_of(swept, point)
    tip = "; ".join(f"{axis.key} {axis.text(point.at[axis.key])}" for axis in swept.axes)
    if index is None:
        cell = element("rect", x=x, y=y, width=width, height=_CELL_HEIGHT, cls="none")
        return element("g", element("title", text(f"{tip}: nothing can be predicted")) + cell)
    name = ONE_NODE if index == len(swept.strategies) else swept.strategies[index]
    shown = letter(swept, index) + ("" if _fits(point, index) else "!")
    parts = element("title", text(f"{tip}: {name}")) + _filled(swept, index, x, y, width, _CELL_HEIGHT)
    if width >= _ROOM:
        parts += label(x + width / 2, y + _CELL_HEIGHT / 2 + 4, shown, text_anchor="middle", cls="halo")
    return element("g", parts)


def _filled(swept: Swept, index: int, x: float, y: float, width: float, height: float) -> str:
    colour = 6 if index == len(swept.strategies) else index % NUM_COLOURS
    box: dict[str, Any] = {"x": x, "y": y, "width": width, "height": height}
    return element("rect", **box, cls=f"full s{colour}") + element("rect", **box, fill=f"url(#win{index})")


def _fits(point: Point, index: int) -> bool:
    one = point.one_node if index == len(point.predictions) else point.predictions[index]
    return isinstance(one, Prediction) and one.fits


def _names(across: Axis, up: Axis, width: float) -> str:
    bottom = _TOP + _CELL_HEIGHT * len(up.values)
    every = max(1, round(70 / width))
    parts = [
        label(_LEFT + width * (index + 0.5), bottom + 16, across.text(value), text_anchor="middle")
        for index, value in _every(across.values, every)
    ]
    parts += [
        label(_LEFT - 6, bottom - _CELL_HEIGHT * (index + 0.5) + 4, up.text(value), text_anchor="end")
        for index, value in enumerate(up.values)
    ]
    parts.append(label(_MAP_WIDTH - _RIGHT, bottom + 36, across.key, text_anchor="end", cls="name"))
    parts.append(label(4, bottom + 36, up.key, cls="name"))
    return "".join(parts)


def _every(values: Sequence[Value], step: int) -> Iterator[tuple[int, Value]]:
    return ((index, value) for index, value in enumerate(values) if index % step == 0)


def standalone(figures: Sequence[str]) -> str:
    """Figures of a page one below the other as an SVG file of its own, with the page's colours."""
    drawn, top, width = [], 0.0, 0.0
    for one in figures:
        svg = one.partition("<script")[0]
        _, _, across, height = (float(n) for n in svg.partition('viewBox="')[2].partition('"')[0].split())
        place = f'<svg x="0" y="{top:g}" width="{across:g}" height="{height:g}" '
        drawn.append(svg.replace("<svg ", place, 1))
        top, width = top + height, max(width, across)
    style = element("style", resources.files("geartrain.report").joinpath("style.css").read_text(encoding="utf-8"))
    paper = element("rect", width=width, height=top, fill="#fff", style="fill: var(--paper)")
    inside = style + paper + "".join(drawn)
    return figure(top, inside, "a sweep", width=width, xmlns="http://www.w3.org/2000/svg") + "\n"
