"""Cells that were predicted and measured, with how far both are apart: from a validation, or from two runs of a cell.

error of a phase = (predicted - measured) / measured step time
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from geartrain.errors import TaskError
from geartrain.report.pairs import PHASES, Pair, pairs
from geartrain.report.reading import VALIDATION, Object, Run, read_json
from geartrain.report.words import workers_text

FORMAT = 1
"""Of `validation.json`, as `geartrain.validation` writes it."""

_KEYS = dict(zip(PHASES, ("step_time", "compute", "exposed_communication", "wait"), strict=True))


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A cell with a prediction and a measurement.

    Attributes:
        name: what tells it from others.
        predicted, measured: phase -> seconds of the mean step.
        doubt: why the measurement says more about the host than about the network; None if it can be believed.
        pair: both runs, where their folders are there.
    """

    name: str
    strategy: str
    predicted: Mapping[str, float]
    measured: Mapping[str, float]
    doubt: str | None = None
    pair: Pair | None = None

    def error(self, phase: str = PHASES[0]) -> float:
        """As a fraction of the measured step time."""
        return (self.predicted[phase] - self.measured[phase]) / self.measured[PHASES[0]]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A section of a validation: see `geartrain.validation.section`."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    notes: Sequence[str]
    missed: int
    cells: Sequence[Checked] = ()


@dataclass(frozen=True)
class Validation:
    """What `geartrain validate --out` left in a folder."""

    folder: Path
    missed: int
    tables: Sequence[Table]

    @property
    def folders(self) -> set[Path]:
        """Folders of runs that a cell of it is made of."""
        kept = (cell.pair for table in self.tables for cell in table.cells if cell.pair)
        return {run.folder.resolve() for pair in kept for run in (pair.predicted, pair.measured) if run.folder}


def read_validations(folders: Sequence[Path], runs: Sequence[Run]) -> list[Validation]:
    """The validations in the folders; their cells know their runs, which have been read already."""
    by_folder = {run.folder.resolve(): run for run in runs if run.folder}
    return [_validation(folder, by_folder) for folder in folders if (folder / VALIDATION).is_file()]


def _validation(folder: Path, runs: Mapping[Path, Run]) -> Validation:
    path = folder / VALIDATION
    content = read_json(path)
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']!r}, expected {FORMAT}")
        tables = [
            Table(
                name=name,
                title=section["title"],
                columns=section["columns"],
                rows=section["rows"],
                notes=section["notes"],
                missed=section["missed"],
                cells=list(_cells(section["details"].get("cells", ()), folder, runs)),
            )
            for name, section in content["sections"].items()
        ]
        return Validation(folder, content["missed"], tables)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise TaskError(
            f"{str(path)!r} is no result of a validation by this version: {problem!r}\n  run `geartrain validate` again"
        ) from problem


def _cells(cells: Sequence[Object], folder: Path, runs: Mapping[Path, Run]) -> Iterator[Checked]:
    """Those that have both times; what failed is told in the section's notes."""
    for cell in cells:
        predicted, measured = cell["simulated"], cell["measured"]
        if not predicted or not measured or not measured["step_time"]:
            continue
        places = [cell["task"], cell["strategy"], cell["cluster"], workers_text(cell["workers"]), cell["grid"]]
        yield Checked(
            name=", ".join(places),
            strategy=cell["strategy"],
            predicted={phase: predicted[key] for phase, key in _KEYS.items()},
            measured={phase: measured[key] for phase, key in _KEYS.items()},
            doubt=None if cell["trustworthy"] else str(cell["why_not"] or "not trustworthy"),
            pair=_pair(cell.get("folders") or {}, folder, runs),
        )


def _pair(folders: Object, root: Path, runs: Mapping[Path, Run]) -> Pair | None:
    found = [
        runs.get((root / folders[kind]).resolve()) if folders.get(kind) else None for kind in ("simulated", "measured")
    ]
    return Pair(found[0], found[1]) if found[0] and found[1] else None


def checked_pairs(runs: Sequence[Run]) -> list[Checked]:
    """Cells that several engines ran, without a validation that would know how busy the host was."""
    several = {pair.measured.engine for pair in pairs(runs)}
    return [
        Checked(
            name=pair.name + (f", {pair.measured.engine}" if len(several) > 1 else ""),
            strategy=pair.measured.strategy,
            predicted={phase: both[0] for phase, both in pair.phases().items()},
            measured={phase: both[1] for phase, both in pair.phases().items()},
            pair=pair,
        )
        for pair in pairs(runs)
    ]


def believed(cells: Sequence[Checked]) -> list[Checked]:
    """Cells without doubts."""
    return [cell for cell in cells if cell.doubt is None]


def median_error(cells: Sequence[Checked], phase: str) -> float:
    """Of the absolute errors."""
    return statistics.median(abs(cell.error(phase)) for cell in cells)


def worst_cell(cells: Sequence[Checked], phase: str) -> Checked:
    """The one with the largest absolute error."""
    return max(cells, key=lambda cell: abs(cell.error(phase)))
