"""Memory of each rank: what a closed form says of it, and whether its device has room for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from geartrain.cluster.placement import Placement
from geartrain.cluster.topology import SWITCH
from geartrain.cost.terms import Cost


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """The peak of one rank, in bytes.

    Attributes:
        rank, role: whose.
        kinds: what it consists of.
        total: their sum.
        limit: the memory of its device; None for a service at the switch, which has none.
        fits: there is room for it.
    """

    rank: int
    role: str
    kinds: Mapping[str, int]
    total: int
    limit: int | None
    fits: bool


def rank_memory(cost: Cost, place: Placement) -> tuple[RankMemory, ...]:
    """The memory of every worker, and of every service that the closed form has counted.

    A closed form knows the worker that needs most: of the others, this is an upper bound.
    """
    workers = [_of(rank, cost.memory, place) for rank in range(place.num_workers)]
    services = [_of(place.num_workers + index, kinds, place) for index, kinds in enumerate(cost.services)]
    return (*workers, *services)


def _of(rank: int, kinds: Mapping[str, int], place: Placement) -> RankMemory:
    limit = None if place.node(rank) == SWITCH else place.device(rank).memory
    total = sum(kinds.values())
    fits = limit is None or total <= limit
    return RankMemory(rank=rank, role=place.role(rank), kinds=kinds, total=total, limit=limit, fits=fits)
