"""Published figures of papers as data, and what geartrain predicts in the same setting.

    error = predicted / published - 1
    equal       holds where |error| <= tolerance
    at_least    holds where predicted >= published * (1 - tolerance)
    at_most     holds where predicted <= published * (1 + tolerance)

One file a paper, `validation/<paper>.toml`; its keys are the fields of `Paper` and `Figure`. A figure that is missed,
or that cannot be predicted, is a row like any other and is counted; it never stops the others.
"""

from __future__ import annotations

import importlib
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from geartrain.cluster.fields import Name, Spec, Text, not_empty
from geartrain.errors import ConfigurationError, GeartrainError, UnitError, UnknownName, nearest
from geartrain.units import QUANTITIES
from geartrain.validation.section import Section, Value

HOLDS, MISSED, UNPREDICTED = "holds", "missed", "cannot be predicted"

COLUMNS = ("paper", "figure", "where", "origin", "bar", "published", "predicted", "error [%]", "verdict")

NOTE = "Published and predicted: SI units. Error: predicted / published - 1."


def _number(value: Any) -> float:
    """A number as it stands, or text with a unit in SI."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    for quantity in QUANTITIES.values():
        try:
            return float(quantity.parse(value))
        except UnitError:
            continue
    raise ValueError(f'{value!r} is no figure; give a number, or text with a unit like "38 ms", "25 Gbit/s" or "98 MB"')


def _target(value: str) -> str:
    module, separator, function = value.partition(":")
    if not (separator and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
        raise ValueError(f'{value!r} names no function; write it like "geartrain.validation.quantities:speedup"')
    return value


class Figure(Spec):
    """One published figure.

    Args:
        name: one line.
        setting: in words: machines, network, model, batch.
        published: a number, or text with a unit; kept in SI units.
        where: where it stands, like "Table 3".
        origin: "read" in the paper or its code, "recalled" from memory, or "derived": a closed form, no printed number.
        tolerance: relative; needed for "equal", 0 unless given for bounds.
        kind: "equal", or a bound: "at_least", "at_most".
        predict: "module:function"; called with `given` as keywords, returns a number in SI units.
        given: what the function is called with.
    """

    name: Text
    setting: Text
    published: Annotated[float, BeforeValidator(_number)]
    where: Text
    origin: Literal["read", "recalled", "derived"]
    tolerance: Annotated[float, Field(ge=0)] | None = None
    kind: Literal["equal", "at_least", "at_most"] = "equal"
    predict: Annotated[Text, AfterValidator(_target)]
    given: Mapping[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _comparable(self) -> Figure:
        if self.kind == "equal" and self.tolerance is None:
            raise ValueError('needs a tolerance, like tolerance = 0.10, or kind = "at_least" or "at_most"')
        if self.kind == "equal" and self.published == 0:
            raise ValueError("an error relative to 0 means nothing; give a figure that is not 0, or a bound")
        return self

    @property
    def bar(self) -> str:
        """Within which a prediction agrees, in words."""
        share = f"{100 * (self.tolerance or 0.0):.3g} %"
        if self.kind == "equal":
            return f"within {share}" if self.tolerance else "exact"
        return self.kind.replace("_", " ") + (f" (room of {share})" if self.tolerance else "")

    def holds(self, predicted: float) -> bool:
        """Whether a prediction agrees with what was published."""
        slack = (self.tolerance or 0.0) * abs(self.published)
        below, above = predicted >= self.published - slack, predicted <= self.published + slack
        return {"equal": below and above, "at_least": below, "at_most": above}[self.kind]

    def predicted(self) -> float:
        """What the function of `predict` returns; whatever it raises, it raises."""
        module, _, name = self.predict.partition(":")
        function = getattr(importlib.import_module(module), name)
        value = function(**self.given)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigurationError(f"{self.predict} returned {value!r}; expected a finite number")
        return float(value)


class Paper(Spec):
    """A file of figures.

    Args:
        paper: short name of the method's card, like "switchml".
        title: as printed, with authors, year and where.
        figure: the figures.
    """

    paper: Name
    title: Text
    figure: Annotated[tuple[Figure, ...], AfterValidator(not_empty)]

    @model_validator(mode="after")
    def _names_differ(self) -> Paper:
        names = [figure.name for figure in self.figure]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two figures are called {twice[0]!r}; give every figure a name of its own")
        return self


def load_figures(path: Path) -> Paper:
    """The figures in a file; ConfigurationError that lists every problem with the key where it stands."""
    return _parse(_read(path), str(path))


def check_published(folder: Path, only: Collection[str] = (), whole: bool = False) -> Section:
    """Predict every figure of every file in a folder.

    Args:
        folder: with one TOML file a paper; a file with neither `paper` nor `figure` is none of them and left alone.
        only: short names of papers; all of them if empty.
        whole: all papers in any case; those in `only` must be there nevertheless.

    Returns a section with a row for each figure; those that are missed are named in its notes as well. Its details have
    under `figures` the settings in words and what was given to each function, in the rows' order.
    """
    papers = _papers(folder)
    for name in only:
        if name not in papers:
            raise UnknownName(f"paper with figures in {str(folder)!r}", name, papers)
    chosen = [paper for name, paper in papers.items() if whole or not only or name in only]
    rows = [_row(paper, figure) for paper in chosen for figure in paper.figure]
    missed = [row for row in rows if row[-1] != HOLDS]
    return Section(
        title="Published figures: predicted against published",
        columns=COLUMNS,
        rows=rows,
        notes=[NOTE, *(_told(row) for row in missed)],
        missed=len(missed),
        details={"figures": [_detail(paper, figure) for paper in chosen for figure in paper.figure]},
    )


def _detail(paper: Paper, figure: Figure) -> dict[str, Any]:
    return {"paper": paper.paper, "title": paper.title, **figure.model_dump(mode="json")}


def _papers(folder: Path) -> dict[str, Paper]:
    if not folder.is_dir():
        raise ConfigurationError(
            f"there is no folder {str(folder)!r} with published figures\n"
            "  give --files the folder validation/ of a checkout of geartrain, or one of your own"
        )
    papers: dict[str, Paper] = {}
    for path in sorted(folder.glob("*.toml")):
        data = _read(path)
        if not {"paper", "figure"} & set(data):
            continue
        paper = _parse(data, str(path))
        if paper.paper in papers:
            raise ConfigurationError(
                f"{path}: paper {paper.paper!r} has another file already; put the figures together"
            )
        papers[paper.paper] = paper
    return papers


def _row(paper: Paper, figure: Figure) -> list[Value]:
    predicted: float | None = None
    try:
        predicted = figure.predicted()
        verdict = HOLDS if figure.holds(predicted) else MISSED
    except (Exception, SystemExit) as problem:  # fails in whatever way: it is missed, and the others go on
        verdict = f"{UNPREDICTED}: {_reason(problem)}"
    error = predicted / figure.published - 1 if predicted is not None and figure.published else None
    return [
        paper.paper,
        figure.name,
        figure.where,
        figure.origin,
        figure.bar,
        figure.published,
        predicted,
        error,
        verdict,
    ]


def _reason(problem: BaseException) -> str:
    """The first line of what went wrong; the kind of error too where it is none of ours."""
    first = (str(problem).splitlines() or [""])[0]
    return first if isinstance(problem, GeartrainError) else f"{type(problem).__name__}: {first}"


def _told(row: list[Value]) -> str:
    paper, figure, *_, published, predicted, error, verdict = row
    if predicted is None:
        return f"{paper}, {figure}: {verdict}   MISSED"
    share = f" ({error:+.1%})" if isinstance(error, float) else ""
    return f"{paper}, {figure}: predicted {predicted:.4g}, published {published:.4g}{share}   MISSED"


# Reading


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read the figures in {str(path)!r}: {error}") from error


def _parse(data: Mapping[str, Any], where: str) -> Paper:
    try:
        return Paper.model_validate(data)
    except ValidationError as error:
        problems = [problem for details in error.errors() for problem in _problems(details)]
        plural = "problem" if len(problems) == 1 else "problems"
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigurationError(f"{where} holds no published figures: {len(problems)} {plural}\n{listed}") from error


def _problems(details: ErrorDetails) -> Iterator[str]:
    """The lines for one of pydantic's errors: the key as it stands in the file, then what is wrong with it."""
    loc = details["loc"]
    model: type[BaseModel] = Figure if loc[:1] == ("figure",) and len(loc) > 1 else Paper
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).removeprefix(".")
    prefix = f"{where}: " if where else ""
    match details["type"]:
        case "extra_forbidden":
            near = nearest(str(loc[-1]), model.model_fields)
            hint = f" (did you mean {near!r}?)" if near else ""
            yield f"{prefix}unknown key{hint}; known here: {', '.join(sorted(model.model_fields))}"
        case "missing":
            yield f"{prefix}missing; this key must be given"
        case "value_error":
            yield f"{prefix}{details['ctx']['error']}"
        case "literal_error":
            yield f"{prefix}{details['input']!r} is not known here; give one of {details['ctx']['expected']}"
        case _:
            yield f"{prefix}{details['msg'][:1].lower() + details['msg'][1:]}; given: {details['input']!r}"
