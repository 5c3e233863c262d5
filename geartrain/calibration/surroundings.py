"""What ranks know of where they are: the machine of each, its cores and memory, the library of their collectives."""

from __future__ import annotations

import datetime
import os
import platform
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.runtime.context import Context


@dataclass(frozen=True)
class Surroundings:
    """As seen by one rank.

    Attributes:
        nodes: the machine of every rank, as its context says.
        host: of this rank's process; tells machines apart and is written nowhere.
        cores, memory: of that host.
        load: how many processes wanted a core of it in the minute before, on average; 0 where nobody counts.
        backend: of the collectives.
        versions: of torch and of the host's kind.
        date: today.
    """

    nodes: tuple[int, ...]
    host: str
    cores: int
    memory: int
    load: float
    backend: str
    versions: str
    date: str


def look_around(ctx: Context) -> Surroundings:
    """Program of a rank."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = 0
    return Surroundings(
        nodes=ctx.nodes,
        host=platform.node(),
        cores=os.cpu_count() or 1,
        memory=memory,
        load=_load(),
        backend="nccl" if ctx.device.type == "cuda" else str(dist.get_backend(ctx.workers)),
        versions=f"torch {torch.__version__}, {platform.machine()}",
        date=datetime.date.today().isoformat(),
    )


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return 0.0
