"""What one part of a validation found, as a table of plain values: printed, counted and kept in the same form.

`geartrain validate --out DIR` writes `DIR/validation.json`:

    format      1
    versions    what computed
    quick       whether it was the short validation
    missed      bars and figures that were missed, over all sections
    sections    {"network", "published", "emulated", "real": section}, those that were asked for; a section has
        title       one line
        columns     headers
        rows        a list of values for each row, in the order of the columns: numbers, texts, true, false, null
        notes       sentences that stand below the table; what was missed is among them
        missed      how many of its bars or figures were missed
        details     what a program needs beyond the table; for "emulated" and "real", see `geartrain.validation.cells`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = str | float | bool | None
"""What a row may hold. Numbers are ints or floats in SI units; a fraction is a fraction (0.05, not 5 %)."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One part of a validation.

    Attributes:
        title: one line.
        columns: headers, with the unit where a column has one.
        rows: one value per column.
        notes: what the table does not say by itself: what was missed, what was left out and why.
        missed: bars or figures that were missed; a section that could not run has missed none and says so in a note.
        details: JSON's words for programs, beyond the table.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]
    notes: Sequence[str] = ()
    missed: int = 0
    details: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} values in a table of {len(self.columns)} columns: {list(row)}")

    def as_json(self) -> dict[str, Any]:
        """The object of `validation.json` and `--json`."""
        return {
            "title": self.title,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "notes": list(self.notes),
            "missed": self.missed,
            "details": dict(self.details),
        }
