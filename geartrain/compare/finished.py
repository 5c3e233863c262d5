"""Results of runs that are complete already, from their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from geartrain.compare.cell import Result, closed_form
from geartrain.compare.grid import Cell, Grid
from geartrain.errors import GeartrainError
from geartrain.record.files import RUN, plain
from geartrain.record.means import MeanStep


def read_result(grid: Grid, cell: Cell) -> Result | None:
    """The result of a cell from its folder; None unless a run of the same configuration came to its end there."""
    if grid.out is None:
        return None
    folder = grid.out / cell.folder
    try:
        run = json.loads((folder / RUN).read_text(encoding="utf-8"))
        if run["config"] != plain(grid.config(cell)) or run["summary"]["error"] is not None:
            return None
        return _from_summary(grid, cell, run["summary"], folder)
    except (OSError, ValueError, KeyError, TypeError, GeartrainError):
        return None


def _from_summary(grid: Grid, cell: Cell, summary: dict[str, Any], folder: Path) -> Result:
    mean = None
    if summary["step_time"] is not None:
        mean = MeanStep(
            steps=summary["counted_steps"],
            step_time=summary["step_time"],
            compute=summary["compute"],
            exposed_communication=summary["exposed_communication"],
            wait=summary["wait"],
            hidden_communication=summary["hidden_communication"],
            bytes_sent=summary["bytes_sent_per_rank"],
            messages=summary["messages_per_rank"],
            codec=summary.get("codec") or 0.0,
            wire=summary.get("wire") or 0.0,
        )
    return Result(
        cell=cell,
        engine=grid.engine_name,
        steps=summary["steps"],
        mean=mean,
        final_loss=summary["final_loss"],
        metrics=summary["metrics"],
        time_to_target=summary["time_to_target"],
        evaluations=[(step, metrics) for step, metrics in summary["evaluations"]],
        closed_form=closed_form(grid, cell),
        closed_form_time=summary["closed_form_step_time"],
        busiest=summary["busiest_rank_sends"],
        out=str(folder),
        read=True,
    )
