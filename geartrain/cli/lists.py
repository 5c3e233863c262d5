"""`geartrain strategies|clusters|tasks|workloads`: what there is, one line and its source each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from geartrain.cli.output import print_json, results

Row = dict[str, str]


def strategies() -> list[Row]:
    """All strategies of the table."""
    from geartrain.strategies import TABLE

    return [_row(name, entry.summary, str(entry.kind.paper)) for name, entry in sorted(TABLE.items())]


def clusters() -> list[Row]:
    """All presets."""
    from geartrain.cluster import list_presets

    return [_row(preset.name, preset.summary, preset.source) for preset in list_presets()]


def tasks() -> list[Row]:
    """All tasks with real data."""
    from geartrain.tasks import TASKS

    return [_row(name, first_line(kind), kind.source) for name, kind in sorted(TASKS.items())]


def workloads() -> list[Row]:
    """All shapes of models, and the configurations that are known by name; none is traced for it."""
    from geartrain.models import HF, PRESETS
    from geartrain.models.hf_known import KNOWN

    known = [
        _row(f"{HF}{name}", f"{entry.num_parameters:,} parameters", f"config.json of {name}")
        for name, entry in KNOWN.items()
    ]
    presets = [
        _row(name, f"{preset.num_parameters:,} parameters{_own_settings(preset.settings)}", preset.source)
        for name, preset in PRESETS.items()
    ]
    return sorted(presets + known, key=lambda row: row["name"])


def _own_settings(settings: Mapping[str, Any]) -> str:
    """Like "; settings: length=1024, attention=explicit|fused"."""
    shown = (f"{key}={'|'.join(value) if isinstance(value, tuple) else value}" for key, value in settings.items())
    return f"; settings: {', '.join(shown)}" if settings else ""


LISTS: Mapping[str, Callable[[], list[Row]]] = {
    "strategies": strategies,
    "clusters": clusters,
    "tasks": tasks,
    "workloads": workloads,
}


def show(kind: str, as_json: bool) -> None:
    """Print one of the lists."""
    rows = LISTS[kind]()
    if as_json:
        print_json(rows)
        return
    console = results()
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        console.print(f"{row['name']:{width}}  {row['summary']}", markup=False, soft_wrap=True)
        console.print(f"{'':{width}}  source: {row['source']}", style="dim", markup=False, soft_wrap=True)


def first_line(value: Any) -> str:
    """The first line of a docstring, without a name and colon before it."""
    line = (inspect.getdoc(value) or "").split("\n")[0].rstrip(".")
    head, colon, rest = line.partition(": ")
    return rest if colon and head.strip("`").isidentifier() else line


def _row(name: str, summary: str, source: str) -> Row:
    return {"name": name, "summary": summary, "source": source}
