"""The context of a user's own script on real processes: under torchrun, `geartrain run`, another launcher, or alone."""

from __future__ import annotations

import atexit
import os
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from geartrain.engines.rank_process import RankProcess
from geartrain.engines.real_context import RankSettings, RealContext
from geartrain.engines.recorder import Recorder
from geartrain.errors import ConfigurationError
from geartrain.record.log import RankLog
from geartrain.torch_private import store_of_one


@dataclass
class _Here:
    """This process: the rank that an engine made of it, and its context with the default group that it was made for."""

    process: RankProcess | None = None
    context: RealContext | None = None
    world: Any = None


_here = _Here()


def is_rank(process: RankProcess) -> None:
    """An engine says which of its ranks this process is."""
    _here.process = process


def remember(ctx: RealContext) -> None:
    """The context that `script_context` hands out as long as the default group stays."""
    _here.context, _here.world = ctx, dist.group.WORLD


def script_context() -> RealContext:
    """This process's context; a new one when the default group is another than before."""
    if _here.context is None or _here.world is not dist.group.WORLD:
        remember(_make())
    assert _here.context is not None
    return _here.context


def started_by_launcher() -> bool:
    """Whether this process is one of those that torchrun, or another launcher with its variables, has started."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _make() -> RealContext:
    process = _here.process
    if process is None:
        recorder = Recorder(RankLog(0, "worker"))
        recorder.recording = False  # nobody would read what a long run writes down
    else:
        recorder = process.recorder
    recording, recorder.recording = recorder.recording, False  # what setting up sends is not the script's
    try:
        _join()
        ctx = RealContext(_settings(process), recorder, dist.group.WORLD, _group("everyone", range(_size())))
    finally:
        recorder.recording = recording
    atexit.register(_leave, ctx)
    return ctx


def _join() -> None:
    """Make the default group, unless the script has done so."""
    if dist.is_initialized():
        return
    if started_by_launcher():
        if _uses_cuda_alone():
            torch.cuda.set_device(_local_rank())
            dist.init_process_group()
        else:
            dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=store_of_one(), rank=0, world_size=1)


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _uses_cuda_alone() -> bool:
    """Whether every rank of this node has a CUDA device of its own."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", "1")))
    return torch.cuda.is_available() and torch.cuda.device_count() >= local


def _size() -> int:
    return dist.get_world_size()


def _settings(process: RankProcess | None) -> RankSettings:
    size = _size()
    hosts: list[Any] = [None] * size
    dist.all_gather_object(hosts, socket.gethostname())
    names = list(dict.fromkeys(hosts))
    return RankSettings(
        rank=dist.get_rank(),
        world_size=size,
        num_workers=size,
        role="worker",
        device=_device(),
        seed=0,
        nodes=tuple(names.index(host) for host in hosts),
        make_group=_group,
        fail=_fail if process is None else process.fail,
        on_step=_ignore if process is None else process.on_step,
    )


def _device() -> torch.device:
    """The current CUDA device where the default group is NCCL's, else the CPU."""
    if torch.cuda.is_available() and "nccl" in dist.get_backend_config():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _group(name: str, ranks: Sequence[int]) -> Any:
    if list(ranks) != sorted(ranks):
        raise ConfigurationError(f"a group of a script's ranks is in ascending order; {tuple(ranks)} is not")
    group = dist.new_group(list(ranks))
    return None if group is dist.GroupMember.NON_GROUP_MEMBER else group


def _fail(error: BaseException) -> None:
    """An error in a lane ends the process, as one in the main thread does; torchrun ends the others."""
    traceback.print_exception(error)
    os._exit(1)


def _ignore(step: int) -> None:
    return


def _leave(ctx: RealContext) -> None:
    """What lanes are blocked in may break from now on."""
    ctx.leaving = True
