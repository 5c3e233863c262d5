"""Sums through an emulated switch against rings, ours and gloo's, on the same wires with the same packets.

    python benchmarks/switchml.py [MBIT/S ...]            100 and 400 unless given

A star of `WORKERS` nodes, tensors of `SIZE` bytes, an mtu of 1500 and of 9000. Prints, for each way, the best of
`TRIES` turns (of each, the worker that took longest) and their median; then by what factor the switch beats our ring,
and which share that is of 2 (n - 1) / n, what the bytes allow. A busy host slows everything down, and what computes
most first: look at the share of its cores in use. Needs the right to make network namespaces.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
import torch.distributed as dist

from geartrain.cluster import Cluster, Device, NodeGroup, Placement, ServicePlace, Star, Wire
from geartrain.collectives.aggregation.drive import SwitchedSum, serve
from geartrain.collectives.ring import ring_all_reduce
from geartrain.engines.emulated import EmulatedEngine
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context
from geartrain.strategies.switchml import SwitchML
from geartrain.strategies.switchml_cost import gain_over_ring

WORKERS, SIZE, TRIES = 8, 5_000_000, 5
SWITCH = (ServicePlace("switch", "switch"),)
Way = Literal["switch", "ring", "gloo"]


@dataclass(frozen=True)
class Sums:
    """Seconds of sums, one way; the first one, in which buffers and connections grow, is left out.

    Args:
        way: how.
        strategy: says what packets are like.
    """

    way: Way
    strategy: SwitchML

    def __call__(self, ctx: Context) -> tuple[list[float], int]:
        control = ctx.group(range(ctx.world_size))
        if ctx.role != "worker":
            ctx.spawn(lambda: serve(ctx, self.strategy.settings), "serve", daemon=True)
            for worker in range(ctx.num_workers):
                dist.recv(torch.zeros(1), group=control, group_src=worker)
            return [], 0
        summed = SwitchedSum(ctx, self.strategy.settings, ctx.num_workers)
        ways = {
            "switch": lambda tensor: summed(tensor, ctx.workers),
            "ring": lambda tensor: ring_all_reduce(tensor, ctx.workers),
            "gloo": lambda tensor: dist.all_reduce(tensor, group=ctx.workers),
        }
        took = []
        for _ in range(TRIES + 1):
            tensor = torch.full((SIZE // 4,), float(ctx.rank))
            dist.barrier(ctx.workers)
            begun = time.monotonic()
            ways[self.way](tensor)
            took.append(time.monotonic() - begun)
            assert bool((tensor == sum(range(ctx.num_workers))).all())
        dist.send(torch.zeros(1), group=control, group_dst=ctx.num_workers)
        return took[1:], summed.packets


def cluster(rate: float, mtu: int) -> Cluster:
    device = Device(name="any", flops={"fp32": 1e12}, memory=1 << 30, memory_rate=1e11, source="chosen")
    wire = Wire(rate=rate / 8, latency="0 s", mtu=f"{mtu} B")
    return Cluster(
        name="bench", source="chosen", nodes=(NodeGroup(count=WORKERS, device=device),), topology=Star(wire=wire)
    )


def slowest(record: RunRecord) -> list[float]:
    """Of each turn, the time of the worker that took longest."""
    return [max(times) for times in zip(*(took for took, _ in record.results[:WORKERS]), strict=True)]


def compare(rate: float, mtu: int) -> None:
    on = cluster(rate, mtu)
    strategy = SwitchML(slots=256 if mtu < 4000 else 96, burst=32 if mtu < 4000 else 12, timeout=0.1)
    planned = strategy.planned(None, Placement(on, WORKERS, SWITCH), WORKERS)
    assert isinstance(planned, SwitchML)
    best: dict[Way, float] = {}
    for way in ("switch", "ring", "gloo"):
        record = EmulatedEngine().run(Sums(way, planned), on, workers=WORKERS, services=SWITCH)
        took, allowed = (
            slowest(record),
            SIZE / on.topology.wire.goodput * (1 if way == "switch" else gain_over_ring(WORKERS)),
        )
        best[way] = min(took)
        told = f"best {min(took):.3f} s, median {median(took):.3f} s, the wire allows {allowed:.3f} s"
        again = ""
        if way == "switch":
            sent = sum(op.messages for op in record.logs[0].ops if str(op.key[0]).startswith("datagrams"))
            again = f", {sent - record.results[0][1]} of {sent} packets sent again"
        busy = record.emulation["host_busy"]
        print(f"{rate / 1e6:g} Mbit/s, mtu {mtu}, {way:<6}  {told}, host {busy:.0%}{again}", flush=True)
    gain = best["ring"] / best["switch"]
    print(
        f"    {gain:.2f} times as fast as the ring, {gain / gain_over_ring(WORKERS):.0%} of what the bytes allow; "
        f"{best['gloo'] / best['switch']:.2f} times as fast as gloo",
        flush=True,
    )


if __name__ == "__main__":
    for rate in [float(word) * 1e6 for word in sys.argv[1:]] or [100e6, 400e6]:
        for mtu in (9000, 1500):
            compare(rate, mtu)
