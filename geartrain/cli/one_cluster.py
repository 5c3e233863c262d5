"""`geartrain clusters NAME`: the constants of one cluster, and where each comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from geartrain.cli.output import print_json, results
from geartrain.cluster import Cluster, load_cluster, origin_of

_NO_CONSTANTS = ("name", "summary", "source", "origins", "measured")
_NAMES = ("name", "kind", "source", "node", "direction", "both_ways")  # say which constant, and are none
_NO_ORIGIN = "no origin of its own"


def show(name: str, as_json: bool) -> None:
    """Print the constants of a preset or file."""
    cluster = load_cluster(name)
    rows = list(constants(cluster))
    if as_json:
        print_json(
            {
                "name": cluster.name,
                "summary": cluster.summary,
                "source": cluster.source,
                "constants": [
                    {"key": key, "value": value, "origin": origin_of(key, cluster.origins)} for key, value in rows
                ],
                "measured": cluster.measured.model_dump() if cluster.measured else None,
            }
        )
        return
    console = results()
    console.print(f"{cluster.name}  {cluster.summary}", markup=False, soft_wrap=True)
    console.print(f"source: {cluster.source}", style="dim", markup=False, soft_wrap=True)
    width = max(len(key) for key, _ in rows)
    for key, value in rows:
        origin = origin_of(key, cluster.origins)
        console.print(f"{key:{width}}  {value}", markup=False, soft_wrap=True)
        if cluster.origins:
            console.print(f"{'':{width}}  {origin or _NO_ORIGIN}", style="dim", markup=False, soft_wrap=True)


def constants(cluster: Cluster) -> Iterator[tuple[str, Any]]:
    """Place and value of every constant, quantities as text with a unit."""
    yield from _leaves(cluster.model_dump(mode="json", exclude_none=True, exclude=set(_NO_CONSTANTS)), "")


def _leaves(data: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _leaves(value, f"{where}.{key}" if where else str(key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _leaves(value, f"{where}[{index}]")
    elif where.rpartition(".")[2] not in _NAMES:
        yield where, data
