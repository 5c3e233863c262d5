"""The few pieces that figures are drawn of: elements with escaped text, scales with round ticks, shapes.

Coordinates are CSS pixels of a figure WIDTH wide; the page scales it. Colours are classes of the style sheet, so that
dark screens and paper may have their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH = 400
"""Width of a figure; three stand side by side on a desk, one fills a phone, and text stays readable on both."""

NUM_COLOURS = 8
MARKS = ("circle", "square", "triangle", "diamond", "cross", "plus")


def text(value: object) -> str:
    """Any text, safe inside an element or an attribute."""
    return escape(str(value), quote=True)


def breakable(value: str) -> str:
    """A strategy's text, safe, and free to be broken where its parts join; copied, it is the text alone."""
    safe = text(value)
    for joint in "_:,=":
        safe = safe.replace(joint, joint + "<wbr>")
    return safe


def element(name: str, content: str = "", **attributes: Any) -> str:
    """An element: `_` in a name stands for `-`, `cls` is class, None leaves one out. `content` must be markup."""
    written = []
    for key, value in attributes.items():
        if value is None:
            continue
        key = "class" if key == "cls" else key.rstrip("_").replace("_", "-")
        written.append(f' {key}="{number(value) if isinstance(value, float) else text(value)}"')
    return f"<{name}{''.join(written)}>{content}</{name}>" if content else f"<{name}{''.join(written)}/>"


def label(x: float, y: float, value: object, **attributes: Any) -> str:
    """Text in a figure."""
    return element("text", text(value) or " ", x=float(x), y=float(y), **attributes)


def number(value: float) -> str:
    """A coordinate: hundredths of a pixel are enough."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def figure(height: float, content: str, title: str, width: float = WIDTH, **attributes: Any) -> str:
    """An SVG that scales with its column; `title` is for those who cannot see it."""
    box = f"0 0 {number(width)} {number(height)}"
    return element("svg", content, viewBox=box, role="img", aria_label=title, **attributes)


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` to pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + share * (self.end - self.begin)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers in [low, high]: steps of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, ... in [low, high], thinned out to the powers of ten when there are many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
    inside = [tick for tick in every if low * 0.999 <= tick <= high * 1.001]
    return inside if len(inside) <= 7 else [10.0**power for power in powers if low <= 10.0**power <= high]


_TIME = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_COUNT = ((1e9, "billion"), (1e6, "million"), (1e3, "thousand"), (1.0, ""))
_SIZE = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
_UNITS = {"time": _TIME, "size": _SIZE, "count": _COUNT}


def unit(kind: str, largest: float) -> tuple[float, str]:
    """The unit that the largest value of an axis reads best in: its factor and its name."""
    table = _UNITS.get(kind, ((1.0, ""),))
    return next((pair for pair in table if largest >= pair[0]), table[-1])


def short(value: float) -> str:
    """A tick's number: as few digits as tell it from its neighbours."""
    return "0" if value == 0 else f"{value:.4g}"


def mark(index: int, x: float, y: float, cls: str, size: float = 4.0) -> str:
    """A small shape, a different one for each index below len(MARKS)."""
    kind = MARKS[index % len(MARKS)]
    if kind == "circle":
        return element("circle", cx=x, cy=y, r=size, cls=cls)
    a, b = size, size * 1.2
    points: dict[str, Sequence[tuple[float, float]]] = {
        "square": [(-a, -a), (a, -a), (a, a), (-a, a)],
        "triangle": [(0, -b), (b, a), (-b, a)],
        "diamond": [(0, -b), (b, 0), (0, b), (-b, 0)],
        "cross": [(-a, -a), (a, a), (0, 0), (-a, a), (a, -a), (0, 0)],
        "plus": [(-b, 0), (b, 0), (0, 0), (0, -b), (0, b), (0, 0)],
    }
    path = "M" + "L".join(f"{number(x + dx)},{number(y + dy)}" for dx, dy in points[kind]) + "Z"
    return element("path", d=path, cls=cls)


def line(points: Sequence[tuple[float, float]], cls: str) -> str:
    """A line through points."""
    return element("path", d="M" + "L".join(f"{number(x)},{number(y)}" for x, y in points), cls=cls)
