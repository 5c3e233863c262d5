"""Figures of bars and squares: where the time of a step or a rank goes, bytes per link, who waited for whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from geartrain.record.text import time_text
from geartrain.report.svg import WIDTH, Scale, element, figure, label, short, text, ticks, unit
from geartrain.units import format_size

KINDS = (("compute", "compute"), ("exposed", "exposed communication"), ("wait", "wait"))
"""Class and name of each kind of time, in the order in which they are stacked."""

MOST_LINKS = 16
"""Links that get a bar each; of more, the busiest do."""

MOST_SQUARES = 500
"""Waits of a matrix that get a square: those of 64 ranks for each other would fill megabytes."""

_BAR, _ROW = 15, 42
_NAME = 46  # characters that fit above a bar, beside its time


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One stacked bar: seconds of each kind, and the closed form's whole, if there is one.

    Its name may be cut where there is no room, its suffix is kept.
    """

    name: str
    parts: tuple[float, float, float]
    suffix: str = ""
    form: float | None = None

    @property
    def whole(self) -> float:
        return sum(self.parts)


def split_bars(bars: Sequence[Bar], title: str) -> str:
    """Stacked bars, each below its name; a diamond where the closed form ends."""
    height = _ROW * len(bars) + 44
    largest = max([bar.whole for bar in bars] + [bar.form or 0.0 for bar in bars]) or 1.0
    scale = Scale(0.0, largest, 4, WIDTH - 16)
    factor, name = unit("time", largest)
    drawn = []
    for tick in ticks(0.0, largest):
        at = scale(tick)
        drawn.append(element("line", x1=at, x2=at, y1=8, y2=height - 36, cls="grid"))
        drawn.append(label(at, height - 22, short(tick / factor), text_anchor="middle" if tick else "start"))
    drawn.append(label(WIDTH - 4, height - 6, f"time ({name})", text_anchor="end", cls="name"))
    for i, bar in enumerate(bars):
        drawn.append(_stacked(bar, scale, 8 + i * _ROW))
    return figure(height, "".join(drawn), title)


def _stacked(bar: Bar, scale: Scale, top: float) -> str:
    whole = time_text(bar.whole)
    parts = [
        label(4, top + 10, _shortened(bar), cls="halo"),
        label(WIDTH - 4, top + 10, whole, text_anchor="end", cls="halo"),
    ]
    begin = 0.0
    for (cls, kind), length in zip(KINDS, bar.parts, strict=True):
        share = f" ({length / bar.whole:.1%} of {whole})" if bar.whole else ""
        tip = f"{bar.name}{bar.suffix}\n{kind}: {time_text(length)}{share}"
        x, width = scale(begin), scale(begin + length) - scale(begin)
        if width > 0:
            parts.append(box(x, top + 15, max(width, 0.5), _BAR, f"k-{cls}", tip))
        begin += length
    if bar.form is not None:
        x, y = scale(bar.form), top + 15 + _BAR / 2
        tip = f"{bar.name}{bar.suffix}\nclosed form: {time_text(bar.form)}"
        shape = f"M{x:.1f},{y - 6:.1f}l6,6l-6,6l-6,-6z"
        parts.append(element("path", d=shape, cls="form", data_t=tip))
    return "".join(parts)


def _shortened(bar: Bar) -> str:
    room = _NAME - len(bar.suffix)
    return (bar.name if len(bar.name) <= room else bar.name[: room - 2] + "..") + bar.suffix


def box(x: float, y: float, width: float, height: float, cls: str, tip: str) -> str:
    """A rectangle with a text for whoever points at it."""
    return element("rect", x=float(x), y=float(y), width=float(width), height=float(height), cls=cls, data_t=tip)


def kinds_key(form: bool = False, thin: Sequence[tuple[str, str]] = ()) -> str:
    """The legend of the kinds of time, with the class and name of what else is drawn in thin bands."""
    items = []
    for cls, name in (*KINDS, *thin):
        narrow = (cls, name) in thin
        drawn = element("rect", x=1, y=4 if narrow else 1, width=24, height=6 if narrow else 12, cls=f"k-{cls}")
        sample = element("svg", drawn, viewBox="0 0 26 14", width=26, height=14, aria_hidden="true")
        items.append(element("li", sample + element("span", name)))
    if form:
        drawn = element("path", d="M9,1l6,6l-6,6l-6,-6z", cls="form")
        sample = element("svg", drawn, viewBox="0 0 18 14", width=18, height=14, aria_hidden="true")
        items.append(element("li", sample + element("span", "closed form")))
    return element("ul", "".join(items), cls="key")


def link_bars(link_bytes: Mapping[str, float], steps: int, title: str) -> str:
    """Bytes per link and step, the busiest links first."""
    links = sorted(link_bytes.items(), key=lambda item: -item[1])[:MOST_LINKS]
    widest = max(len(name) for name, _ in links)
    left = min(150, 12 + 7 * widest)
    scale = Scale(0.0, links[0][1] or 1.0, left, WIDTH - 74)
    drawn = []
    for i, (name, carried) in enumerate(links):
        top, per_step = 6 + i * 18, carried / max(steps, 1)
        shown = name if len(name) <= 20 else name[:9] + ".." + name[-9:]
        tip = f"{name}\n{format_size(per_step)} per step, {format_size(carried)} in the whole run"
        drawn.append(label(left - 6, top + 11, shown, text_anchor="end"))
        width = max(scale(carried) - left, 0.5)
        drawn.append(box(left, top + 1, width, 13, "k-link", tip))
        drawn.append(label(left + width + 5, top + 11, format_size(per_step)))
    return figure(18 * len(links) + 10, "".join(drawn), title)


def wait_matrix(
    waits: Mapping[tuple[int, int | None], float], ranks: Sequence[int], names: Mapping[int, str], title: str
) -> str:
    """A square for each pair of ranks, darker the longer the rank of its row waited for the rank of its column."""
    columns: list[int | None] = [*ranks]
    if any(other is None or other not in ranks for _, other in waits):
        columns.append(None)
    size = min(34.0, (WIDTH - 64) / len(columns))
    every = max(1, -(-len(ranks) // 16))
    largest = max(waits.values(), default=0.0) or 1.0
    drawn = [label(50, 12, "waited for rank", cls="name"), label(2, 44, "rank", cls="name")]
    for j, column in enumerate(columns):
        if column is None or j % every == 0:
            shown = "other" if column is None else str(column)
            drawn.append(label(50 + (j + 0.5) * size, 30, shown, text_anchor="middle"))
    drawn += [
        label(44, 38 + (i + 0.5) * size + 4, rank, text_anchor="end") for i, rank in enumerate(ranks) if i % every == 0
    ]
    width, height = size * len(columns), size * len(ranks)
    drawn.append(element("rect", x=50.0, y=38.0, width=width, height=height, cls="none"))
    pairs = [
        (_waited(waits, rank, column, ranks), i, j) for i, rank in enumerate(ranks) for j, column in enumerate(columns)
    ]
    for seconds, i, j in sorted((pair for pair in pairs if pair[0] > 0), reverse=True)[:MOST_SQUARES]:
        tip = _waiting(names, ranks[i], columns[j], seconds)
        drawn.append(_square(50 + j * size, 38 + i * size, size, seconds, largest, tip))
    return figure(44 + height, "".join(drawn), title)


def _waiting(names: Mapping[int, str], rank: int, column: int | None, seconds: float) -> str:
    other = "another rank, a queue or a sleep" if column is None else names.get(column, f"rank {column}")
    return f"{names.get(rank, f'rank {rank}')} waited {time_text(seconds)} for {other}"


def _waited(
    waits: Mapping[tuple[int, int | None], float], rank: int, column: int | None, ranks: Sequence[int]
) -> float:
    if column is not None:
        return waits.get((rank, column), 0.0)
    return sum(length for (who, other), length in waits.items() if who == rank and other not in ranks)


def _square(x: float, y: float, size: float, seconds: float, largest: float, tip: str) -> str:
    gap = 1.0 if size > 8 else 0.0
    share = seconds / largest
    drawn = element(
        "rect",
        x=x,
        y=y,
        width=size - gap,
        height=size - gap,
        cls="some",
        fill_opacity=0.2 + 0.8 * min(share, 1.0),
        data_t=tip,
    )
    if size >= 30:
        factor, name = unit("time", seconds)
        cls = "light" if share > 0.55 else ""
        drawn += label(x + size / 2 - 0.5, y + size / 2, f"{seconds / factor:.3g}", text_anchor="middle", cls=cls)
        drawn += label(x + size / 2 - 0.5, y + size / 2 + 11, name, text_anchor="middle", cls=cls)
    return drawn


def note_on_links(link_bytes: Mapping[str, float]) -> str:
    """A word on the links that got no bar."""
    rest = sorted(link_bytes.values(), reverse=True)[MOST_LINKS:]
    if not rest:
        return ""
    least = format_size(rest[-1])
    return text(f" {len(rest)} further links carried no more than these, the least of them {least} in the whole run.")
