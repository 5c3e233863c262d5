"""What a grid keeps in its folder beside its runs, so that it can go on after it was ended.

grid.json           what was asked for, and the complete configuration of every run; written before anything runs
baselines.json      what one worker alone computes for the whole batch, for each cluster that has been measured
compare.json        the list that `--json` prints, with the efficiency of each run and why it failed; at the end
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from geartrain.compare.grid import Grid
from geartrain.errors import ConfigurationError
from geartrain.record.files import RunFolder, plain, readable, write_together

FORMAT = 1
GRID, BASELINES, COMPARE = "grid.json", "baselines.json", "compare.json"


class GridFolder:
    """The folder of a grid; found writable, and of the same grid where that goes on, before anything runs."""

    def __init__(self, grid: Grid) -> None:
        assert grid.out is not None, "a grid that writes nothing has no folder"
        self.path = RunFolder(grid.out).path
        self.baselines: dict[str, float | None] = {}
        cells = {cell.folder: grid.config(cell) for cell in grid.cells}
        if grid.resume:
            _check_same(self.path, read_grid(self.path)["cells"], plain(cells))
            self.baselines = _load(self.path / BASELINES) or {}
            return
        write_together(
            {
                self.path / BASELINES: readable({}),
                self.path / GRID: readable({"format": FORMAT, "asked": grid.asked, "cells": cells}),
            }
        )

    def keep_baseline(self, cluster: str, seconds: float | None) -> None:
        """Remember what one worker alone computes."""
        self.baselines[cluster] = seconds
        write_together({self.path / BASELINES: readable(self.baselines)})

    def finish(self, objects: list[dict[str, Any]]) -> None:
        """Write the list of results."""
        write_together({self.path / COMPARE: readable(objects)})


def read_grid(folder: Path) -> dict[str, Any]:
    """`grid.json` of a folder; ConfigurationError when it has none."""
    found = _load(folder / GRID)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigurationError(
            f"there is no grid to go on with in {str(folder)!r}: it has no {GRID} of this version\n"
            "  give a folder that `geartrain compare --out` wrote"
        )
    return found


def differences(kept: Any, now: Any, path: str = "") -> list[str]:
    """Where two values in JSON's words differ, as `path: there ..., here ...`."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return [
            line
            for key in [*kept, *(key for key in now if key not in kept)]
            for line in differences(kept.get(key), now.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if kept == now else [f"{path}: there {json.dumps(kept)}, here {json.dumps(now)}"]


def _check_same(folder: Path, kept: dict[str, Any], now: dict[str, Any]) -> None:
    if kept == now:
        return
    lines = [f"only there: {name}" for name in kept if name not in now]
    lines += [f"only here: {name}" for name in now if name not in kept]
    # The same difference in every cell is told once.
    lines += dict.fromkeys(line for name in kept if name in now for line in differences(kept[name], now[name]))
    raise ConfigurationError(
        f"the grid in {str(folder)!r} is another one:\n"
        + "".join(f"  {line}\n" for line in lines[:10])
        + "  go on with the options that it was begun with, or start anew in another folder"
    )


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
