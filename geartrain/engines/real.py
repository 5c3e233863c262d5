"""`RealEngine`: ranks are processes of this host, joined by `torch.distributed`; and any torchrun script, recorded.

Two worlds, each on a prefix of one store: the default one has the workers only, as a user's program expects; `everyone`
has the services too and is reached through the context. Groups are gloo, or NCCL where there are enough CUDA devices.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Cluster
from geartrain.engines.base import Engine, Survives
from geartrain.engines.launch import PATIENCE, launch
from geartrain.engines.own_script import is_rank, remember
from geartrain.engines.rank_process import RankProcess, run_exit_functions
from geartrain.engines.real_context import RankSettings, RealContext
from geartrain.engines.recording import RecordingGroup, record_all_groups
from geartrain.engines.survivors import left, start_survivors
from geartrain.errors import ConfigurationError, ScriptError
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context
from geartrain.torch_private import enter_group, gloo_group, nccl_group, prefixed

Kind = Literal["cpu", "cuda"]


class RealEngine(Engine):
    """Runs ranks as processes of this host.

    Args:
        device: where tensors live; by default CUDA where there is a device for each worker, else the CPU.
        patience: seconds after which a run in which no rank goes on is ended with a DeadlockError.

    Example:
        record = RealEngine().run(main, load_cluster("ethernet-1g"), workers=2)
    """

    name: ClassVar[str] = "real"
    capabilities: ClassVar[frozenset[str]] = frozenset({"real_time", "gpu"})

    def __init__(self, device: Kind | None = None, patience: float = PATIENCE) -> None:
        self.device, self.patience = device, patience

    def run(
        self,
        main: Callable[[Context], Any],
        cluster: Cluster,
        *,
        workers: int,
        services: Sequence[ServicePlace] = (),
        seed: int = 0,
        meta: bool = False,
    ) -> RunRecord:
        """See `Engine.run`. The cluster says which ranks share a node; the run takes the time that this host takes.

        What `Survives` that goes on when a worker's process dies; `RunRecord.lost` says so.
        """
        if meta:
            raise ConfigurationError(
                "the real engine computes with numbers, so it cannot run on shapes alone (meta=True); "
                "use the simulated engine for that"
            )
        placement = Placement(cluster, workers, services)
        roles = [placement.role(rank) for rank in range(placement.num_ranks)]
        devices = self._num_devices(workers)
        program = FunctionProgram(main, workers, seed, devices, placement.nodes)
        goes_on = isinstance(main, Survives) and main.survives_loss
        start = start_survivors if goes_on else None
        return launch(program, roles, patience=self.patience, start=start).record()

    def _num_devices(self, workers: int) -> int:
        """How many CUDA devices the run has; 0: it runs on the CPU."""
        there = torch.cuda.device_count() if self.device != "cpu" and torch.cuda.is_available() else 0
        if self.device == "cuda" and there < workers:
            raise ConfigurationError(
                f"{workers} workers need a CUDA device each and this host has {there}; "
                f'use at most {there} workers, or device="cpu"'
            )
        return there if there >= workers else 0


def launch_script(
    script: str | os.PathLike[str], args: Sequence[str] = (), *, ranks: int, patience: float = PATIENCE
) -> RunRecord:
    """Run a script written for torchrun on `ranks` processes and record what its process groups do.

    The script sees what torchrun gives it: the variables RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, ..., its arguments
    in `sys.argv`, itself as `__main__`. With more than one rank, each line of its output begins with "[rank] ".

    Raises RankFailed, and DeadlockError when no rank has gone on for `patience` seconds; on Ctrl-C the record so far
    comes back with `interrupted` set.
    """
    path = Path(script)
    if not path.is_file():
        raise ScriptError(f"there is no script {str(script)!r}; give the path of a Python file")
    if ranks < 1:
        raise ConfigurationError(f"{ranks} ranks cannot run a script; give a number of ranks of at least 1")
    program = ScriptProgram(str(path), tuple(args))
    return launch(program, ["worker"] * ranks, prefix_output=ranks > 1, patience=patience).record()


@dataclass(frozen=True)
class ScriptProgram:
    """A rank runs a script as its `__main__`."""

    path: str
    args: tuple[str, ...]

    def run(self, rank: RankProcess) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        record_all_groups(rank.recorder)
        is_rank(rank)
        sys.argv = [self.path, *self.args]
        sys.path.insert(0, str(Path(self.path).resolve().parent))
        try:
            runpy.run_path(self.path, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        finally:
            run_exit_functions()


def _store(rank: RankProcess) -> Any:
    """The launcher's store."""
    store, _, _ = next(iter(rendezvous("env://", rank.rank, len(rank.job.roles))))
    return store


def _leave_together(rank: RankProcess) -> None:
    """Nobody leaves before all have done: a group that breaks off would look like a failure to the others.

    Over the store and not a group: a barrier would meet, and spoil, a collective that this rank was missing from.
    """
    rank.teller.finished = True
    store = _store(rank)
    store.set(left(rank.rank), "")
    store.wait([left(other) for other in range(len(rank.job.roles))], timedelta(days=365))


@dataclass(frozen=True)
class FunctionProgram:
    """A rank runs `main(ctx)`. `num_devices` is how many CUDA devices the run has, `nodes` see `Context`."""

    main: Callable[[Context], Any]
    num_workers: int
    seed: int
    num_devices: int
    nodes: tuple[int, ...]

    def run(self, rank: RankProcess) -> Any:
        ctx = self._make_context(rank)
        try:
            result = self.main(ctx)
        except SystemExit as error:
            rank.fail(error)
        ctx.finish()
        rank.recorder.log.end = rank.recorder.now()
        rank.recorder.recording = False
        _leave_together(rank)
        return result

    def _make_context(self, rank: RankProcess) -> RealContext:
        # The run is on one host; gloo would look for the address of the host's name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        recorder, size = rank.recorder, len(rank.job.roles)
        recorder.recording = False
        record_all_groups(recorder)
        store = _store(rank)
        device = torch.device("cuda", rank.rank) if rank.rank < self.num_devices else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)

        def make_group(name: str, ranks: Sequence[int]) -> dist.ProcessGroup | None:
            if rank.rank not in ranks:
                return None
            cuda = self.num_devices >= size
            make = nccl_group if cuda else gloo_group
            inner = make(prefixed(store, name), ranks.index(rank.rank), len(ranks))
            group = RecordingGroup(inner, recorder, name, ranks)
            enter_group(group, name, "nccl" if cuda else "gloo", ranks)
            return group

        workers = self._init_workers(rank, prefixed(store, "workers"))
        everyone = make_group("everyone", range(size))
        assert everyone is not None, "every rank is in it"
        settings = RankSettings(
            rank=rank.rank,
            world_size=size,
            num_workers=self.num_workers,
            role=rank.role,
            device=device,
            seed=self.seed,
            nodes=self.nodes,
            make_group=make_group,
            make_store=lambda name: prefixed(_store(rank), name),
            fail=rank.fail,
            on_step=rank.on_step,
        )
        ctx = RealContext(settings, recorder, workers, everyone)
        remember(ctx)
        everyone.barrier().wait()
        if rank.rank == 0:
            if recorder.surroundings is not None:
                recorder.surroundings.begin_program()
            store.set("origin", repr(time.monotonic()))
        recorder.origin, recorder.recording = float(store.get("origin")), True
        return ctx

    def _init_workers(self, rank: RankProcess, store: Any) -> dist.ProcessGroup | None:
        if rank.rank >= self.num_workers:
            return None
        os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(self.num_workers)
        backend = "cpu:gloo,cuda:nccl" if self.num_devices else "gloo"
        dist.init_process_group(backend, store=store, rank=rank.rank, world_size=self.num_workers)
        return dist.group.WORLD
