"""How many steps a method needs to a target, over those of synchronous training: measured on a small task.

A grid of `geartrain compare --task ... --target-loss X --out DIR` trains methods until they have learned as much. The
ratio of their steps is the price of what they change in learning; that it is the same for another model and another
number of workers is an assumption, which a plan that uses it says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from geartrain.compare.folder import COMPARE, read_grid
from geartrain.errors import ConfigurationError

_REFERENCE = "synchronous"


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """What was measured.

    Attributes:
        task, target: what was trained, and until when.
        ranks, batch: workers and global batch of the runs.
        date: when the grid came to its end.
        factors: strategy, as it was written -> its steps over those of synchronous training.
        unreached: strategies that did not come to the target, with the steps that they were given.
    """

    task: str
    target: str
    ranks: int
    batch: int
    date: str
    factors: Mapping[str, float]
    unreached: Mapping[str, int]

    @staticmethod
    def read(folder: Path) -> Statistics:
        """The steps of a grid with targets; ConfigurationError where the folder holds none that can be compared."""
        grid, rows = read_grid(folder), _rows(folder)
        asked = grid["asked"]
        if asked.get("target_loss") is None and asked.get("target_metric") is None:
            raise ConfigurationError(
                f"the runs in {str(folder)!r} had no target, so they do not say how many steps a method needs\n"
                "  make them with geartrain compare --target-loss X, or --target-metric X"
            )
        ranks, rows = _comparable(folder, rows)
        steps = {row["strategy"]: row["steps"] for row in rows if row["time_to_target"] is not None}
        return Statistics(
            task=str(asked.get("task")),
            target=_target(asked),
            ranks=ranks,
            batch=next(iter(grid["cells"].values()))["batch"],
            date=datetime.fromtimestamp((folder / COMPARE).stat().st_mtime, UTC).date().isoformat(),
            factors={strategy: count / steps[_REFERENCE] for strategy, count in steps.items()},
            unreached={row["strategy"]: row["steps"] for row in rows if row["time_to_target"] is None},
        )

    @property
    def origin(self) -> str:
        """Where the numbers come from, in a sentence."""
        return (
            f"steps to a {self.target} measured on {self.task} with {self.ranks} workers and a batch of {self.batch} "
            f"({self.date}); that they are in the same proportion here is assumed"
        )


def _rows(folder: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads((folder / COMPARE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigurationError(
            f"the grid in {str(folder)!r} has not come to its end\n  go on with geartrain compare --resume {folder}"
        ) from None
    return [row for row in rows if row["error"] is None]


def _comparable(folder: Path, rows: Sequence[dict[str, Any]]) -> tuple[int, list[dict[str, Any]]]:
    """The rows of the most workers with which synchronous training came to the target, on one cluster."""
    reached = [row for row in rows if row["strategy"] == _REFERENCE and row["time_to_target"] is not None]
    if not reached:
        raise ConfigurationError(
            f"in {str(folder)!r} no run of {_REFERENCE} came to the target, and the others are measured against it\n"
            f"  add {_REFERENCE} to --strategies, or give more --steps"
        )
    one = max(reached, key=lambda row: row["ranks"])
    return one["ranks"], [row for row in rows if (row["cluster"], row["ranks"]) == (one["cluster"], one["ranks"])]


def _target(asked: Mapping[str, Any]) -> str:
    parts = [
        f"{name} of {asked[f'target_{name}']:g}"
        for name in ("loss", "metric")
        if asked.get(f"target_{name}") is not None
    ]
    return " and a ".join(parts)
