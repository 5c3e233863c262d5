"""Sections as tables for people, and all of them as one object for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from geartrain.record.files import versions
from geartrain.record.text import print_whole
from geartrain.validation.section import Section, Value

FORMAT = 1
"""Version of `validation.json`."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_FOLDED = 48  # columns that a text may take before it is folded


def section_table(section: Section) -> Table:
    """A row for each row. Headers that end in `[s]` get one unit for all times, those in `[%]` show percent."""
    columns = [[row[index] for row in section.rows] for index in range(len(section.columns))]
    unit = _unit([values for header, values in zip(section.columns, columns, strict=True) if header.endswith("[s]")])
    table = Table(
        title=escape(section.title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    texts = []
    for header, values in zip(section.columns, columns, strict=True):
        numbers = any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        name, scale, form = _shown(header, unit)
        table.add_column(
            escape(name.replace(" [", "\n[")),
            justify="right" if numbers else "left",
            overflow="fold",
            max_width=_FOLDED,
        )
        texts.append([_text(value, scale, form) for value in values])
    for row in zip(*texts, strict=True):
        table.add_row(*map(escape, row))
    return table


def print_section(console: Console, section: Section) -> None:
    """The table, and below it what it does not say by itself."""
    if section.rows:
        print_whole(console, section_table(section))
    else:
        console.print(section.title, style="bold", markup=False)
    for note in section.notes:
        style = "red" if note.endswith("MISSED") else None
        console.print(note, style=style, markup=False, soft_wrap=True)
    console.print(f"missed: {section.missed}\n", markup=False)


def validation_json(sections: Mapping[str, Section], *, quick: bool) -> dict[str, Any]:
    """The object of `validation.json` and `--json`; see `geartrain.validation.section`."""
    return {
        "format": FORMAT,
        "versions": versions(),
        "quick": quick,
        "missed": sum(section.missed for section in sections.values()),
        "sections": {name: section.as_json() for name, section in sections.items()},
    }


def _unit(columns: Sequence[Sequence[Value]]) -> tuple[float, str]:
    """The unit in which the smallest time of all columns is at least 1."""
    times = [value for values in columns for value in values if isinstance(value, int | float) and value > 0]
    return next((unit for unit in _UNITS if min(times, default=1.0) >= unit[0]), _UNITS[-1])


def _shown(header: str, unit: tuple[float, str]) -> tuple[str, float, str]:
    """Header, what a value is divided by, and the form of a number."""
    if header.endswith("[s]"):
        return header.removesuffix("[s]") + f"[{unit[1]}]", unit[0], ".4g"
    if header.endswith("[%]"):
        return header, 0.01, "+.1f" if not header.startswith("host") else ".0f"
    return header, 1.0, ".4g"


def _text(value: Value, scale: float, form: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and scale == 1.0:
        return str(value)
    return value if isinstance(value, str) else format(value / scale, form)
