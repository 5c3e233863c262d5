"""The report as one HTML file: headline, table, figures of all runs, what validations found, then each run by itself.

    geartrain report runs/a            writes runs/a/report.html
    geartrain report runs/a runs/b     merges both into report.html

The file holds its style, its script and its data, and asks the network for nothing. Figures are drawn here, as SVG;
the script only answers to pointing and zooming, so that paper and pages without scripts show everything else.
The same folders give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from geartrain import __version__
from geartrain.errors import TaskError
from geartrain.record.files import RunFolder, plain, write_together
from geartrain.report.checked import Validation, checked_pairs, read_validations
from geartrain.report.figures import (
    Looks,
    losses,
    run_links,
    run_ranks,
    run_timeline,
    run_waits,
    scaling,
    step_split,
)
from geartrain.report.reading import Run, read_runs
from geartrain.report.staleness import run_staleness
from geartrain.report.svg import breakable, element, text
from geartrain.report.table import cells_table
from geartrain.report.validated import cells, validation
from geartrain.report.words import about, facets, headline, workers_text

REPORT = "report.html"

_INTERVALS = 32_000
"""Intervals in the timelines of a page, together; about 60 bytes each."""

_EACH = 8_000
"""Intervals in one timeline at most: more would be finer than a screen shows."""

_LONG = 24  # characters of a strategy that fill a line on a phone

_HATCHES = """<svg width="0" height="0" class="hatches" aria-hidden="true"><defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="6" height="6" class="h-exposed"/><rect width="2" height="6" class="h-line"/></pattern>
<pattern id="dots" width="5" height="5" patternUnits="userSpaceOnUse">
<rect width="5" height="5" class="h-wait"/><circle cx="2.5" cy="2.5" r="1" class="h-dot"/></pattern>
</defs></svg>"""


def write_report(folder: str | Path | Sequence[str | Path], target: str | Path | None = None) -> Path:
    """Write the report of a run folder, a grid, a validation, or of several together; returns where it stands.

    Args:
        folder: one folder, or several to be merged; each holds a run, a tree of runs, or what a validation left.
        target: the file to write; report.html in the folder if there is one folder, else in the current one.

    Raises TaskError when a folder holds no run, or the file cannot be written.

    Example:
        >>> path = write_report("runs/a")  # doctest: +SKIP
    """
    folders = [Path(folder)] if isinstance(folder, str | Path) else [Path(one) for one in folder]
    if not folders:
        raise TaskError("no folder to report on; give one that `geartrain compare --out` wrote")
    path = Path(target) if target else (folders[0] / REPORT if len(folders) == 1 else Path(REPORT))
    if path.is_dir():
        path = path / REPORT
    runs = read_runs(folders)
    page = report_html(runs, read_validations(folders, runs))
    RunFolder(path.parent)
    write_together({path: page.encode()})
    return path


def report_html(runs: Sequence[Run], validations: Sequence[Validation] = ()) -> str:
    """The whole page. The runs of a validation's cells are shown there, in pairs, and not once more by themselves."""
    kept = {folder for one in validations for folder in one.folders}
    alone = [run for run in runs if run.folder is None or run.folder.resolve() not in kept]
    heading = about(alone) if alone else "how far predictions can be believed"
    title = f"geartrain: {heading}"
    body = [
        element("header", element("p", "geartrain report", cls="kicker") + element("h1", text(heading))),
        *(_section(f"Validation: {one.folder.name}", validation(one)) for one in validations),
        *(_of_runs(alone) if alone else ()),
        element("footer", text(f"Written by geartrain {__version__}.")),
    ]
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        element("title", text(title)),
        f"<style>{_asset('style.css')}</style>",
    ]
    inside = _HATCHES + element("main", "\n".join(body)) + '<div id="tip" role="status"></div>'
    script = f"<script>{_asset('script.js')}</script>"
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head>\n<body>{inside}\n{script}</body></html>\n'


def _of_runs(runs: Sequence[Run]) -> list[str]:
    """The sections on runs; where engines ran the same cell, one on how far they are apart."""
    checked = checked_pairs(runs)
    return [
        _section("In words", _headline(runs)),
        _section("All runs", _table(runs)),
        _section("Compared", _figures(runs)),
        *([_section("Predicted and measured", cells(checked, judged=False))] if checked else ()),
        _section("Each run", "".join(_run(run, i, len(runs)) for i, run in enumerate(_ordered(runs)))),
        _section("Configuration and versions", _configurations(runs)),
    ]


def _asset(name: str) -> str:
    return resources.files("geartrain.report").joinpath(name).read_text(encoding="utf-8")


def _section(title: str, body: str) -> str:
    return element("section", element("h2", text(title)) + element("div", body))


def _headline(runs: Sequence[Run]) -> str:
    parts = []
    for first, *rest in headline(runs):
        items = "".join(element("li", _sentence(sentence, runs)) for sentence in rest)
        parts.append(element("p", _sentence(first, runs), cls="lead") + (element("ul", items) if items else ""))
    return "".join(parts)


def _table(runs: Sequence[Run]) -> str:
    how = (
        "Times are means over the steps after the first, of the slowest worker of each step; compute, exposed "
        "communication and wait add up to the step. Sent and messages: payload, mean per worker and step."
    )
    return cells_table(runs) + element("p", text(how), cls="how")


def _figures(runs: Sequence[Run]) -> str:
    looks = Looks.of(runs)
    parts = [step_split(facet) + scaling(facet, looks) + losses(facet, looks) for facet in facets(runs)]
    return "".join(element("div", part, cls="figures facet") for part in parts)


def _ordered(runs: Sequence[Run]) -> list[Run]:
    """Those with files, the one with the most workers and the shortest step first: it is shown opened."""
    return sorted((run for run in runs if run.folder), key=lambda run: (-run.workers, run.step_time or float("inf")))


def _run(run: Run, index: int, count: int) -> str:
    budget = min(_EACH, _INTERVALS // max(count, 1))
    figures = run_timeline(run, budget) + run_ranks(run) + run_waits(run) + run_links(run)
    figures += run_staleness(run)
    sentence = str(run.raw.get("sentence") or "")
    words = element("p", text(sentence)) if sentence else ""
    inside = element("summary", _name(run)) + words + element("div", figures, cls="figures")
    return element("details", inside, open="" if index == 0 else None, cls="run")


def _name(run: Run) -> str:
    """Markup: what tells a run from the others."""
    return breakable(run.strategy) + text(f", {run.cluster}, {run.engine}, {workers_text(run.workers)}")


def _sentence(sentence: str, runs: Sequence[Run]) -> str:
    """Markup: a sentence in which long strategies may be broken."""
    safe = text(sentence)
    for strategy in {run.strategy for run in runs if len(run.strategy) > _LONG}:
        safe = safe.replace(text(strategy), breakable(strategy))
    return safe


def _configurations(runs: Sequence[Run]) -> str:
    """Versions once where they are the same; the complete configuration of each run, folded."""
    kept = [run for run in runs if run.folder]
    if not kept:
        return element("p", "No run left a configuration.", cls="absent")
    versions = {json.dumps(plain(run.raw.get("versions")), sort_keys=True) for run in kept}
    same = len(versions) == 1
    parts = [element("p", text(_versions(kept[0])))] if same else []
    for run in kept:
        lines = {"folder": str(run.folder), "config": run.raw.get("config"), "closed_form": _form(run)}
        if not same:
            lines["versions"] = run.raw.get("versions")
        dumped = element("pre", text(json.dumps(plain(lines), indent=1, ensure_ascii=False)))
        parts.append(element("details", element("summary", _name(run)) + dumped))
    return "".join(parts)


def _versions(run: Run) -> str:
    versions = run.raw.get("versions") or {}
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _form(run: Run) -> object:
    """The closed form without its list of each rank's traffic, which is long and stands in run.json."""
    return {key: value for key, value in (run.raw.get("closed_form") or {}).items() if key != "sent"}
