"""Programs for emulated ranks: they must be found by name in another process."""

import time

import torch
import torch.distributed as dist

from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context

SIZE = 10_000_000


def all_reduces(ctx: Context) -> list[float]:
    """Seconds of all-reduces of 10 MB."""
    tensor, took = torch.ones(SIZE // 4), []
    for step in range(4):
        dist.barrier(ctx.workers)
        ctx.mark_step(step, "begin")
        begun = time.monotonic()
        dist.all_reduce(tensor, group=ctx.workers)
        took.append(time.monotonic() - begun)
        ctx.mark_step(step, "end", loss=0.0)
    return took


def computes(ctx: Context) -> list[float]:
    """Three steps of four operations and an all-reduce; then one that computes for nothing."""
    took, one = [], torch.ones(8)
    for step in range(4):
        dist.barrier(ctx.workers)
        ctx.mark_step(step, "begin")
        begun = ctx.clock.now()
        if step < 3:
            for _ in range(4):
                one = one * 1.0
        else:
            with uncharged():
                for _ in range(4):
                    one = one * 1.0
        took.append(ctx.clock.now() - begun)
        dist.all_reduce(one, group=ctx.workers)
        ctx.mark_step(step, "end", loss=0.0)
    return took


def in_a_lane(ctx: Context) -> float:
    """A lane's work takes its time, too."""
    queue = ctx.queue()

    def work() -> None:
        one = torch.ones(8)
        for _ in range(4):
            one = one * 1.0
        queue.put(one)

    begun = ctx.clock.now()
    ctx.spawn(work, "worker")
    queue.get()
    return ctx.clock.now() - begun


def to_the_server(ctx: Context) -> float:
    """Each worker sends 2 MB to the service, which is the last rank."""
    tensor = torch.ones(500_000)
    if ctx.role == "worker":
        dist.send(tensor, group=ctx.everyone, group_dst=ctx.world_size - 1)
        return 0.0
    begun = ctx.clock.now()
    for source in range(ctx.num_workers):
        dist.recv(tensor, group=ctx.everyone, group_src=source)
    return ctx.clock.now() - begun
