"""What a sweep leaves in its folder: a page, its figures alone, and all numbers as JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from geartrain.predict.prediction import Prediction
from geartrain.record.files import RunFolder, readable, write_together
from geartrain.sweep.page import page
from geartrain.sweep.picture import curves, standalone, winner_map
from geartrain.sweep.points import Point, Swept

FORMAT = 1
"""Of sweep.json."""

_COLUMNS = (
    "ranks",
    "batch",
    "step_time",
    "compute",
    "exposed_communication",
    "wait",
    "bubble",
    "codec",
    "hidden_communication",
    "bytes_sent_per_rank",
    "messages_per_rank",
    "throughput",
    "efficiency",
    "mfu",
    "fits",
    "energy",
    "price",
)


def write(swept: Swept, folder: Path, subject: str, machine: str) -> Path:
    """Write index.html, curves.svg, map.svg (of two axes), sweep.json and sweep.csv; returns the page.

    Args:
        folder: made if there is none; TaskError if it cannot be written to.
        subject, machine: as for `geartrain.sweep.page.page`.
    """
    RunFolder(folder)
    contents = {
        "sweep.json": readable(as_json(swept)),
        "sweep.csv": as_csv(swept).encode(),
        "index.html": page(swept, subject, machine).encode(),
    }
    if drawn := curves(swept):
        contents["curves.svg"] = standalone([figure for _, figure, _ in drawn]).encode()
    if len(swept.axes) == 2:
        contents["map.svg"] = standalone([winner_map(swept)]).encode()
    write_together({folder / name: content for name, content in contents.items()})
    return folder / "index.html"


def as_json(swept: Swept) -> dict[str, Any]:
    """All of a sweep as plain values, SI units."""
    return {
        "format": FORMAT,
        "axes": [{"key": axis.key, "quantity": axis.quantity, "values": list(axis.values)} for axis in swept.axes],
        "strategies": list(swept.strategies),
        "points": [_point(swept, point) for point in swept.points],
        "crossings": [asdict(one) for one in swept.crossings],
        "warnings": list(swept.warnings),
    }


def _point(swept: Swept, point: Point) -> dict[str, Any]:
    known = [one.as_json() if isinstance(one, Prediction) else None for one in point.predictions]
    return {
        "at": dict(point.at),
        "winner": None if point.winner is None else swept.strategies[point.winner],
        "predictions": known,
        "errors": [None if isinstance(one, Prediction) else one for one in point.predictions],
        "one_node": point.one_node.as_json() if point.one_node else None,
    }


def as_csv(swept: Swept) -> str:
    """A row per point and strategy; empty where nothing is known."""
    text = io.StringIO()
    keys = [axis.key for axis in swept.axes]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "strategy", *(name for name in _COLUMNS if name not in keys), "error"])
    for point in swept.points:
        for name, one in zip(swept.strategies, point.predictions, strict=True):
            values: Mapping[str, Any] = one.as_json() if isinstance(one, Prediction) else {}
            row = [values.get(column) for column in _COLUMNS if column not in keys]
            writer.writerow([*(point.at[key] for key in keys), name, *row, one if isinstance(one, str) else None])
    return text.getvalue()
