"""`main(ctx)` of sums through a switch. It pickles, so that it reaches the processes of other engines."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.cluster.placement import ServicePlace
from geartrain.collectives.aggregation.drive import Settings, SwitchedSum, serve

SWITCH = (ServicePlace("switch", "switch"),)


@dataclass(frozen=True)
class Sums:
    """Sums of tensors one after another; returns them with the seconds of each, on workers.

    Args:
        settings: of the protocol.
        numels: of the tensors.
        dtype: integers, or numbers of the normal distribution.
        absent: a worker that sends nothing.
        pause: seconds before each sum, on every further worker a tenth more.
    """

    settings: Settings
    numels: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    absent: int | None = None
    pause: float = 0.0

    def given(self, rank):
        stream = torch.Generator().manual_seed(rank)
        if self.dtype.is_floating_point:
            return [torch.randn(numel, generator=stream).to(self.dtype) for numel in self.numels]
        return [torch.randint(-(2**20), 2**20, (numel,), generator=stream, dtype=self.dtype) for numel in self.numels]

    def exact(self, workers):
        return [sum(given) for given in zip(*map(self.given, range(workers)), strict=True)]

    def __call__(self, ctx):
        control = ctx.group(range(ctx.world_size))
        if ctx.role != "worker":
            ctx.spawn(lambda: serve(ctx, self.settings), "serve", daemon=True)
            for worker in range(ctx.num_workers):
                dist.recv(torch.zeros(1), group=control, group_src=worker)
            return None
        summed = SwitchedSum(ctx, self.settings, ctx.num_workers)
        tensors, took = self.given(ctx.rank), []
        for tensor in tensors:
            dist.barrier(ctx.workers)
            if ctx.rank == self.absent:
                break
            ctx.clock.sleep(self.pause * (1 + ctx.rank / 10))
            begun = ctx.clock.now()
            summed(tensor, ctx.workers)
            took.append(ctx.clock.now() - begun)
        dist.send(torch.zeros(1), group=control, group_dst=ctx.num_workers)
        summed.close()
        return tensors, took


def packets_sent(record, rank):
    """(bytes, packets) that a rank sent in the protocol."""
    ops = [op for op in record.logs[rank].ops if str(op.key[0]).startswith("datagrams")]
    return sum(op.nbytes for op in ops), sum(op.messages for op in ops)
