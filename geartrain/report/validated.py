"""The part of a page that says how far predictions can be believed: words, scatter, errors by phase, both timelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from geartrain.record.text import time_text
from geartrain.report.bars import kinds_key
from geartrain.report.checked import Checked, Table, Validation, believed, median_error, worst_cell
from geartrain.report.drawing import draw
from geartrain.report.figures import absent, card
from geartrain.report.pairs import PHASES, both_timelines
from geartrain.report.scatter import BAND, Dot, dots_key, scatter
from geartrain.report.svg import breakable, element, text

MOST_PAIRS = 12
"""Cells whose timelines are drawn; of more, those with the largest errors."""

MOST_NOTES = 16
"""Notes of a section that are shown unfolded: what was missed stands in its table as well."""

MOST_ROWS = 40
"""Rows of a table that are shown unfolded: of a longer one the notes say what was missed."""

_INTERVALS = 32_000
"""Intervals in all these timelines together."""

_EACH = 8_000
"""Intervals in those of one cell at most."""

_MISSED = "MISSED"
_LONG = 24  # characters of a text that stays in one line


def validation(found: Validation) -> str:
    """All sections of a validation."""
    count = "1 bar or figure was" if found.missed == 1 else f"{found.missed or 'No'} bars and figures were"
    lead = element("p", text(f"{count} missed."), cls="lead")
    return lead + "".join(_table(table) for table in found.tables)


def cells(checked: Sequence[Checked], judged: bool = True) -> str:
    """Words, scatter and errors of cells, then their timelines.

    Args:
        judged: somebody has looked at which cells can be believed.
    """
    words = element("ul", "".join(element("li", text(sentence)) for sentence in _words(checked, judged)))
    figures = _scatter(checked) + _phases(checked)
    return words + element("div", figures, cls="figures facet") + _timelines(checked)


def _table(table: Table) -> str:
    """A section: its cells where it has some, notes, and its table, folded when the cells say it or it is long."""
    body = cells(table.cells) if table.cells else ""
    body += _notes(table)
    if table.rows:
        rows = "1 row" if len(table.rows) == 1 else f"{len(table.rows)} rows"
        summary = element("summary", text(f"{rows}, {table.missed} missed"))
        folded = "" if table.missed and not table.cells and len(table.rows) <= MOST_ROWS else None
        body += element("details", summary + _grid(table), open=folded)
    return element("h3", text(table.title), cls="part") + body


def _notes(table: Table) -> str:
    notes = [element("li", text(note), cls="bad" if note.endswith(_MISSED) else None) for note in table.notes]
    if not notes:
        return ""
    whole = element("ul", "".join(notes), cls="notes")
    if len(notes) <= MOST_NOTES:
        return whole
    opened = "" if table.missed and len(table.rows) > MOST_ROWS else None
    return element(
        "details", element("summary", text(f"{len(notes)} notes, {table.missed} missed")) + whole, open=opened
    )


def _grid(table: Table) -> str:
    numeric = [any(_is_number(row[j]) for row in table.rows) for j in range(len(table.columns))]
    names = [column.removesuffix("[s]").removesuffix("[%]").strip() for column in table.columns]
    head = "".join(
        element("th", text(name), scope="col", cls="n" if right else None)
        for name, right in zip(names, numeric, strict=True)
    )
    rows = []
    for row in table.rows:
        cells = [
            element("th" if j == 0 else "td", _shown(value, table.columns[j]), cls=_class(value, numeric[j]))
            for j, value in enumerate(row)
        ]
        rows.append(element("tr", "".join(cells), cls="failed" if _failed(row[-1]) else None))
    inside = element("thead", element("tr", head)) + element("tbody", "".join(rows))
    return element("div", element("table", inside), cls="scroll", tabindex=0)


def _class(value: Any, numeric: bool) -> str | None:
    """Numbers to the right; texts that are long may be broken, so that the numbers stay in sight."""
    return "n" if numeric else "wrap" if isinstance(value, str) and len(value) > _LONG else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _failed(verdict: Any) -> bool:
    return verdict is False or (isinstance(verdict, str) and verdict.startswith(("missed", "cannot", "failed")))


def _shown(value: Any, column: str) -> str:
    if value is None:
        return text("–")
    if isinstance(value, bool):
        return text("yes" if value else "no")
    if not _is_number(value):
        return breakable(str(value))
    if column.endswith("[s]"):
        return text(time_text(value))
    return text(f"{value:+.1%}" if column.endswith("[%]") else f"{value:.4g}")


# Cells


def _words(checked: Sequence[Checked], judged: bool) -> list[str]:
    sure = believed(checked)
    if not sure:
        return [f"None of {len(checked)} cells can be believed: the host, not the network, decided how long they took."]
    if judged:
        first = f"{len(sure)} of {len(checked)} cells can be believed."
    else:
        first = "One cell was run by two engines." if len(sure) == 1 else f"{len(sure)} cells were run by two engines."
    worst, middle = worst_cell(sure, PHASES[0]), median_error(sure, PHASES[0])
    within = sum(abs(cell.error()) <= BAND for cell in sure)
    phase = max(PHASES[1:], key=lambda kind: median_error(sure, kind))
    return [
        f"{first} Step times are predicted with an error of {middle:.1%} in the median and {worst.error():+.1%} at "
        f"most ({worst.name}); {within} of {len(sure)} within {BAND:.0%}.",
        f"Of the kinds of time, {phase} is furthest off: {median_error(sure, phase):.1%} of the step in the median.",
    ]


def _scatter(checked: Sequence[Checked]) -> str:
    title = "Predicted against measured step time"
    names = list(dict.fromkeys(cell.strategy for cell in checked))
    dots = [
        Dot(
            name=f"{cell.name}\nerror {cell.error():+.1%}" + (f"\n{cell.doubt}" if cell.doubt else ""),
            measured=cell.measured[PHASES[0]],
            predicted=cell.predicted[PHASES[0]],
            look=names.index(cell.strategy),
            hollow=cell.doubt is not None,
        )
        for cell in checked
        if cell.predicted[PHASES[0]] > 0
    ]
    if not dots:
        return absent(title, "No cell has a step time.")
    how = (
        f"Each mark is a cell. On the line, prediction and measurement agree; the band is {BAND:.0%} either way. "
        "Above the line, the prediction is too slow."
    )
    return card(title, scatter(dots, title) + dots_key(names, any(dot.hollow for dot in dots)), how)


def _phases(checked: Sequence[Checked]) -> str:
    """Errors by kind of time: of the cells that can be believed, and of the others."""
    groups = [("", believed(checked)), (" (host-bound)", [cell for cell in checked if cell.doubt is not None])]
    rows = []
    for suffix, members in groups:
        for phase in PHASES if members else ():
            worst = worst_cell(members, phase)
            values = (median_error(members, phase), worst.error(phase))
            numbers = [
                element("td", text(f"{value:{sign}.1%}"), cls="n")
                for value, sign in zip(values, ("", "+"), strict=True)
            ]
            cells = element("th", text(phase + suffix), scope="row") + "".join(numbers)
            rows.append(element("tr", cells + element("td", breakable(worst.name), cls="wrap")))
    head = "".join(
        element("th", text(name), scope="col", cls="n" if name in ("median", "largest") else None)
        for name in ("kind of time", "median", "largest", "in cell")
    )
    table = element("table", element("thead", element("tr", head)) + element("tbody", "".join(rows)))
    how = (
        "(Predicted - measured) / measured step time, of the mean step of the slowest worker; the median is of "
        "absolute values. One kind too short and another too long is time that was put under another name."
    )
    return card("Errors by kind of time", element("div", table, cls="scroll", tabindex=0), how, width="double")


def _timelines(checked: Sequence[Checked]) -> str:
    """Both timelines of each cell, folded but for the first; the cells with the largest errors first."""
    drawn = sorted(
        (cell for cell in checked if cell.pair), key=lambda cell: (cell.doubt is not None, -abs(cell.error()))
    )
    shown = drawn[:MOST_PAIRS]
    budget = min(_EACH, _INTERVALS // max(len(shown), 1))
    parts = [_both(cell, budget, index == 0) for index, cell in enumerate(shown)]
    if len(drawn) > len(shown):
        rest = (
            f"{len(drawn) - len(shown)} further cells with smaller errors have their timelines in their runs' folders."
        )
        parts.append(element("p", text(rest), cls="how"))
    return "".join(parts)


def _both(cell: Checked, budget: int, opened: bool) -> str:
    assert cell.pair is not None, "only cells with both runs are drawn"
    line = both_timelines(cell.pair, budget)
    title = "Predicted and measured, on one time axis"
    first, second = time_text(cell.predicted[PHASES[0]]), time_text(cell.measured[PHASES[0]])
    engine = cell.pair.measured.engine
    words = f": {first} predicted, {second} measured ({engine}), {cell.error():+.1%}"
    if line is None:
        body = absent(title, "One of both folders has no trace that can be read.")
    else:
        thin = [("wire", "bytes in flight")] + ([("lane", "lanes")] if any(row.lanes for row in line.rows) else [])
        how = (
            f"{line.note[:1].upper()}{line.note[1:]}: above as predicted, below as measured, both from the begin of "
            "the first of these steps. What reaches further to the right took longer; zooming moves both."
        )
        drawing = '<div class="zoom"></div>' + draw(line, f"{title}: {cell.name}") + kinds_key(thin=thin)
        body = card(title, drawing, how, width="wide")
    summary = element("summary", breakable(cell.name) + text(words))
    return element(
        "details", summary + element("div", body, cls="figures"), open="" if opened else None, cls="run both"
    )
