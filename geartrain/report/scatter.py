"""A scatter of predicted against measured times: both axes logarithmic and alike, the diagonal, a band around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geartrain.report.plot import embedded
from geartrain.report.svg import (
    NUM_COLOURS,
    WIDTH,
    Scale,
    breakable,
    element,
    figure,
    label,
    log_ticks,
    mark,
    number,
    short,
    text,
    unit,
)

BAND = 0.12
"""Half width of the band: an error that cells of a validation must not exceed."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 52.0, 14.0, 28.0, 42.0
_SIDE = WIDTH - _LEFT - _RIGHT


@dataclass(frozen=True)
class Dot:
    """A point: seconds measured and predicted. `hollow`: it is not to be believed; `look` counts colours and shapes."""

    name: str
    measured: float
    predicted: float
    look: int
    hollow: bool


def scatter(dots: Sequence[Dot], title: str) -> str:
    """The figure, and its points for the page's script, which names the nearest one."""
    times = [time for dot in dots for time in (dot.measured, dot.predicted)]
    low, high = min(times) / 1.25, max(times) * 1.25
    across = Scale(low, high, _LEFT, _LEFT + _SIDE, log=True)
    up = Scale(low, high, _TOP + _SIDE, _TOP, log=True)
    drawn = [_band(across, up, low, high), _axes(across, up, low, high)]
    drawn.append(element("line", x1=across(low), y1=up(low), x2=across(high), y2=up(high), cls="line ink"))
    for dot in sorted(dots, key=lambda dot: not dot.hollow):  # what counts lies on top
        cls = f"mark s{dot.look % NUM_COLOURS}" + ("" if dot.hollow else " full")
        drawn.append(mark(dot.look, across(dot.measured), up(dot.predicted), cls))
    drawn.append(element("g", cls="near"))
    data = {
        "x": ["measured", "time"],
        "y": ["predicted", "time"],
        "series": [
            {
                "name": dot.name,
                "at": [round(across(dot.measured), 1), round(up(dot.predicted), 1)],
                "of": [float(f"{dot.measured:.6g}"), float(f"{dot.predicted:.6g}")],
            }
            for dot in dots
        ],
    }
    return figure(_TOP + _SIDE + _BOTTOM, "".join(drawn), title, cls="plot scatter") + embedded(data)


def _band(across: Scale, up: Scale, low: float, high: float) -> str:
    """Where predicted / measured is within 1 +- BAND, cut off at the frame."""
    above, below = 1 + BAND, 1 - BAND
    corners = [(low, low), (low, low * above), (high / above, high), (high, high), (high, high * below)]
    corners.append((low / below, low))
    path = "M" + "L".join(f"{number(across(x))},{number(up(y))}" for x, y in corners) + "Z"
    return element("path", d=path, cls="band")


def _axes(across: Scale, up: Scale, low: float, high: float) -> str:
    factor, name = unit("time", high)
    parts = []
    for tick in log_ticks(low, high):
        x, y, shown = across(tick), up(tick), short(tick / factor)
        parts.append(element("line", x1=x, x2=x, y1=_TOP, y2=_TOP + _SIDE, cls="grid"))
        parts.append(element("line", x1=_LEFT, x2=_LEFT + _SIDE, y1=y, y2=y, cls="grid"))
        parts.append(label(x, _TOP + _SIDE + 16, shown, text_anchor="middle"))
        parts.append(label(_LEFT - 6, y + 4, shown, text_anchor="end"))
    parts.append(
        label(WIDTH - _RIGHT, _TOP + _SIDE + 34, f"measured step ({name}), logarithmic", text_anchor="end", cls="name")
    )
    parts.append(label(4, 14, f"predicted step ({name}), logarithmic", cls="name"))
    return "".join(parts)


def dots_key(names: Sequence[str], hollow: bool) -> str:
    """The legend: the shape of each strategy, and what a hollow one means."""
    items = []
    for index, name in enumerate(names):
        sample = mark(index, 9, 7, f"mark full s{index % NUM_COLOURS}")
        items.append(_item(sample, breakable(name)))
    if hollow:
        items.append(_item(mark(0, 9, 7, "mark ink"), text("hollow: bound by the host, not the network")))
    items.append(_item(element("rect", x=1, y=2, width=16, height=10, cls="band"), text(f"within {BAND:.0%}")))
    return element("ul", "".join(items), cls="key")


def _item(sample: str, words: str) -> str:
    drawn = element("svg", sample, viewBox="0 0 18 14", width=18, height=14, aria_hidden="true")
    return element("li", drawn + element("span", words))
