"""`geartrain validate`: how far predictions can be believed, section by section."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from geartrain.cli.output import print_json, results, tell, told
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.record.files import RunFolder, readable, write_together
from geartrain.validation.cells import CELLS
from geartrain.validation.grid import FOLDER, GRID_FILE, cases, load_grids
from geartrain.validation.network import check_network
from geartrain.validation.published import check_published
from geartrain.validation.runs import not_possible, run_cases, runs_section
from geartrain.validation.section import Section
from geartrain.validation.table import print_section, validation_json

NETWORK, PUBLISHED = "network", "published"
ENGINES = ("emulated", "real")
SECTIONS = (NETWORK, PUBLISHED, *ENGINES)
RESULT = "validation.json"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What stood on the command line."""

    quick: bool
    only: str | None
    files: Path | None
    out: Path | None
    resume: Path | None


def validate(asked: Asked, as_json: bool) -> int:
    """Check what was asked for, print it, keep it.

    0: all reached, 1: something missed, 2: nothing could be checked, 130 after Ctrl-C.
    """
    if asked.out and asked.resume and asked.out.resolve() != asked.resume.resolve():
        raise ConfigurationError(
            f"--out {asked.out} and --resume {asked.resume} are two folders; give --resume alone to go on there"
        )
    if asked.resume and not any((asked.resume / name).exists() for name in (RESULT, CELLS)):
        raise ConfigurationError(f"there is no validation to go on with in {str(asked.resume)!r}; begin one with --out")
    out = asked.resume or asked.out
    folder = None if out is None else RunFolder(out).path
    sections, interrupted = _check(asked, folder, _Show(as_json))
    if folder is not None:
        write_together({folder / RESULT: readable(validation_json(sections, quick=asked.quick))})
        tell(f"results: {folder / RESULT}")
    if as_json:
        print_json(validation_json(sections, quick=asked.quick))
    if interrupted:
        return 130
    if not any(section.rows for section in sections.values()):
        tell("nothing was checked")
        return 2
    missed = sum(section.missed for section in sections.values())
    tell(f"missed: {missed}" if missed else "nothing missed")
    return 1 if missed else 0


@dataclass(frozen=True)
class _Show:
    """Prints sections as they come, unless JSON shall stand alone on standard output."""

    as_json: bool

    def __call__(self, section: Section) -> Section:
        if not self.as_json:
            print_section(results(), section)
        return section


def _check(asked: Asked, out: Path | None, show: _Show) -> tuple[dict[str, Section], bool]:
    """The sections by name, what takes seconds first; and whether the user stopped it."""
    names, papers = chosen(asked.only)
    files = asked.files or FOLDER
    file = load_grids(files / GRID_FILE) if set(names) & set(ENGINES) else None
    sections: dict[str, Section] = {}
    if PUBLISHED in names:
        sections[PUBLISHED] = _published(files, papers, _whole(asked.only), show)
    if NETWORK in names:
        sections[NETWORK] = show(check_network(asked.quick))
    for engine in ENGINES:
        if file is None or engine not in names:
            continue
        found = cases(file, engine, asked.quick)
        section = not_possible(engine)
        interrupted = False
        if section is None:
            with told(len(found)) as progress:
                runs = run_cases(found, out, asked.resume is not None, progress)
            section, interrupted = runs_section(engine, file, runs.outcomes), runs.interrupted
        sections[engine] = show(section)
        if interrupted:
            return sections, True
    return sections, False


def chosen(only: str | None) -> tuple[Sequence[str], Sequence[str]]:
    """The sections to go through, and the papers of which figures are checked (none: all)."""
    if only is None:
        return SECTIONS, ()
    names = [name.strip() for name in only.split(",")]
    if not all(names):
        raise ConfigurationError(f"--only {only!r} has an empty name; write it like --only network,ps-p2p-ring")
    papers = tuple(name for name in names if name not in SECTIONS)
    sections = tuple(name for name in SECTIONS if name in names or (name == PUBLISHED and papers))
    return sections, papers


def _whole(only: str | None) -> bool:
    """Whether all papers were asked for by the section's name, whatever papers stand beside it."""
    return only is not None and PUBLISHED in (name.strip() for name in only.split(","))


def _published(files: Path, papers: Sequence[str], whole: bool, show: _Show) -> Section:
    try:
        return show(check_published(files, papers, whole))
    except UnknownName as error:
        raise UnknownName("section, or paper with figures,", error.given, [*SECTIONS, *error.known]) from error
