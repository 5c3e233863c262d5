"""Where ranks are: started by an engine for each program, or this process among others that a launcher started."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

import torch.distributed as dist

from geartrain.cluster.spec import Cluster
from geartrain.engines.base import Engine
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context


class Program(Protocol):
    """What every rank runs."""

    def __call__(self, ctx: Context) -> Any: ...


@dataclass(frozen=True)
class InOrder:
    """Program of a rank: several, one after another; starting ranks takes longer than many a program."""

    programs: tuple[Program, ...]

    def __call__(self, ctx: Context) -> tuple[Any, ...]:
        return tuple(program(ctx) for program in self.programs)


class Interrupted(Exception):
    """Ctrl-C while ranks ran."""


class Site(ABC):
    """Runs programs on all ranks.

    Attributes:
        engine: name of what runs them.
        num_ranks: how many there are.
        exact: their clock is virtual: times are computed, and never vary.
        leads: this process is the one that tells and writes.
        here: every rank is known to be a process (or thread) of this host.
        shaped: ranks are joined by wires of a cluster's rates, not by what hosts have.
    """

    engine: str
    num_ranks: int
    exact: bool
    leads: bool
    here: bool
    shaped: bool

    @abstractmethod
    def run(self, program: Program) -> list[Any]:
        """What the program returned on each rank."""


class EngineSite(Site):
    """Ranks of an engine, started anew for each program.

    Attributes:
        records: of the runs so far.
    """

    def __init__(self, engine: Engine, cluster: Cluster, num_ranks: int) -> None:
        self._engine, self._cluster = engine, cluster
        self.engine, self.num_ranks, self.leads, self.here = engine.name, num_ranks, True, True
        # What is measured depends on no number, so tensors have none where an engine can do without.
        self._meta = "meta" in engine.capabilities
        self.exact = "virtual_time" in engine.capabilities
        self.shaped = self.exact or "real_network" in engine.capabilities
        self.records: list[RunRecord] = []

    def run(self, program: Program) -> list[Any]:
        record = self._engine.run(program, self._cluster, workers=self.num_ranks, meta=self._meta)
        if record.interrupted:
            raise Interrupted(record.interrupted)
        self.records.append(record)
        return record.results


class WorldSite(Site):
    """The ranks that a launcher such as torchrun started, of which this process is one."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.engine, self.num_ranks, self.exact = "real", ctx.num_workers, False
        self.leads, self.here, self.shaped = ctx.rank == 0, False, False

    def run(self, program: Program) -> list[Any]:
        results: list[Any] = [None] * self.num_ranks
        dist.all_gather_object(results, program(self._ctx), group=self._ctx.workers)
        return results
