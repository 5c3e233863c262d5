"""Compression against what there is: our PowerSGD beside PyTorch's DDP hook, and the bytes of top-k, in one run.

    python benchmarks/compression.py [--steps 20] [--turns 8]

Two real processes on gloo take turns with the same model and data. Both start PowerSGD from the same weights, the same
momentum and the same Q, after the two dense steps that PyTorch's hook wants; so they compute the same thing in another
order. Checked, and told:

    time     the median over the turns of ours / PyTorch's; the bar is 1.05
    losses   the largest difference relative to the loss; the bar is 1e-4: sums are made in another order, and a power
             iteration hands differences on to the next step
    bytes    a payload of `top_k:density=0.01` against the gradients' bytes; the bar is 3 %. What goes on the wire
             besides depends on the number of workers, and is told for two.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from dataclasses import dataclass

import torch
from synchronous_vs_ddp import Fixed, Mlp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from geartrain.cluster import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.engines.real import RealEngine
from geartrain.engines.recording import RecordingGroup
from geartrain.runtime.context import Context
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from geartrain.strategies.gradient_worker import GradientWorker
from geartrain.strategies.powersgd import LowRankExchange, PowerSGD
from geartrain.torch_private import enter_group

RANK, BUCKET = 2, 25 * 2**20
TIME_BAR, LOSS_BAR, BYTES_BAR = 1.05, 1e-4, 0.03


@dataclass(frozen=True)
class Turns:
    """What each rank runs: (our seconds, theirs, our losses, theirs)."""

    steps: int
    turns: int

    def __call__(self, ctx: Context) -> tuple[list[float], list[float], list[float], list[float]]:
        torch.manual_seed(0)
        task, batches = Mlp(), Fixed(ctx.rank, ctx.num_workers)
        assert isinstance(ctx.workers, RecordingGroup)
        plain = ctx.workers.inner
        enter_group(plain, "plain", "gloo", range(ctx.num_workers))
        ddp = nn.parallel.DistributedDataParallel(
            task.model(ctx.seed), process_group=plain, bucket_cap_mb=BUCKET / 2**20
        )
        state = powerSGD_hook.PowerSGDState(plain, RANK, start_powerSGD_iter=2, min_compression_rate=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = task.optimizer(ddp.parameters())
        ours = PowerSGD(rank=RANK, bucket_size=BUCKET).bind(ctx, task)
        assert isinstance(ours, GradientWorker)

        def their_step() -> float:
            optimizer.zero_grad()
            loss = task.loss(ddp, batches.batch)
            loss.backward()
            optimizer.step()
            return loss.item()

        def our_step() -> float:
            loss = ours.step(batches).loss
            assert loss is not None
            return loss

        for _ in range(2):  # dense, as the hook wants it
            their_step()
        exchange = ours._exchange
        assert isinstance(exchange, LowRankExchange) and len(exchange.buckets) == 1
        state.q_memory_dict[0] = exchange.buckets[0].second.clone()
        state.p_memory_dict[0] = torch.empty(exchange.buckets[0].num_p)
        alike = {"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}
        ours.load_state_dict({**ours.state_dict(), **copy.deepcopy(alike)})
        seconds: tuple[list[float], list[float]] = ([], [])
        losses: tuple[list[float], list[float]] = ([], [])
        for turn in range(self.turns):
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            for which in order:
                plain.barrier().wait()
                began = time.perf_counter()
                for _ in range(self.steps):
                    losses[which].append((our_step, their_step)[which]())
                seconds[which].append((time.perf_counter() - began) / self.steps)
        ours.close()
        return *seconds, *losses


def bytes_of_top_k() -> tuple[float, float]:
    """Share of the gradients' bytes that a payload has, and of the all-reduce's that two workers send."""
    place, workload = Placement(load_cluster("local"), 2), task_workload(Mlp())
    sparse = parse("top_k:density=0.01").cost(workload, place, 64).sent[0].nbytes
    dense = parse("synchronous").cost(workload, place, 64).sent[0].nbytes
    return sparse / workload.gradient_bytes, sparse / dense


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    record = RealEngine().run(Turns(options.steps, options.turns), load_cluster("local"), workers=2)
    ours, theirs, our_losses, their_losses = record.results[0]
    ratios = [a / b for a, b in zip(ours[1:], theirs[1:], strict=True)]  # the first turn of both warms up
    median = statistics.median(ratios)
    apart = max(abs(a - b) / b for a, b in zip(our_losses, their_losses, strict=True))
    payload, wire = bytes_of_top_k()
    print(f"powersgd {statistics.median(ours) * 1e3:.2f} ms, PyTorch's hook {statistics.median(theirs) * 1e3:.2f} ms")
    print("ratios of the turns:", ", ".join(f"{ratio:.3f}" for ratio in ratios))
    met = [
        _told(f"median ratio {median:.3f}", median, TIME_BAR),
        _told(f"losses apart by {apart:.1e} at most, in {len(our_losses)} steps", apart, LOSS_BAR),
        _told(f"top-k 1 %: {payload:.2%} of the gradients' bytes, {wire:.2%} of an all-reduce's", payload, BYTES_BAR),
    ]
    return 0 if all(met) else 1


def _told(text: str, value: float, bar: float) -> bool:
    print(f"{text} (bar {bar}){'' if value <= bar else '   MISSED'}")
    return value <= bar


if __name__ == "__main__":
    sys.exit(main())
