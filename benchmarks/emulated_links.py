"""How true emulated networks are: rates, delays, the load a relay carries, all-reduces against closed forms, starts.

    python benchmarks/emulated_links.py [rates] [delays] [collectives] [start]

Prints a line per case with what was asked for, what came and the error; the best of `TRIES`, as a busy host slows a
short measurement down and never speeds it up, and the median beside it. The share of the host's cores in use meanwhile
says how far to trust it. Needs the right to make network namespaces.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch
import torch.distributed as dist

from geartrain.cluster import Cluster, Device, Matrix, NodeGroup, Star, Wire
from geartrain.collectives.ring import ring_all_reduce
from geartrain.cost.collectives import plan_collective
from geartrain.engines.emulated import EmulatedEngine
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context

TRIES = 5


def cluster(topology: Star | Matrix) -> Cluster:
    device = Device(name="any", flops={"fp32": 1e12}, memory=1 << 30, memory_rate=1e11, source="chosen")
    count = len(topology.rate) if isinstance(topology, Matrix) else 16
    return Cluster(name="bench", source="chosen", nodes=(NodeGroup(count=count, device=device),), topology=topology)


class Stream:
    """Seconds in which rank 1 gets `size` bytes from rank 0 in one message."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, ctx: Context) -> list[float]:
        tensor, took = torch.zeros(self.size // 4), []
        for _ in range(TRIES):
            dist.barrier(ctx.workers)
            begun = time.monotonic()
            if ctx.rank == 0:
                dist.send(tensor, 1)
            elif ctx.rank == 1:
                dist.recv(tensor, 0)
            took.append(time.monotonic() - begun)
        return took


class AllReduce:
    """Seconds of all-reduces, gloo's or our own ring's; the first one, in which connections grow, is left out."""

    def __init__(self, size: int, own: bool) -> None:
        self.size, self.own = size, own

    def __call__(self, ctx: Context) -> list[float]:
        tensor, took = torch.zeros(self.size // 4), []
        for _ in range(TRIES + 1):
            dist.barrier(ctx.workers)
            begun = time.monotonic()
            if self.own:
                ring_all_reduce(tensor, ctx.workers)
            else:
                dist.all_reduce(tensor, group=ctx.workers)
            took.append(time.monotonic() - begun)
        return took[1:]


def nothing(ctx: Context) -> None:
    dist.barrier(ctx.workers)


def line(name: str, wanted: float, took: list[float], record: RunRecord) -> None:
    best, usual = min(took), median(took)
    busy = record.emulation["host_busy"]
    errors = f"{best / wanted - 1:+.1%} (median {usual / wanted - 1:+.1%})"
    print(f"{name:<52} wanted {wanted * 1e3:9.2f} ms  best {best * 1e3:9.2f} ms  {errors}  host {busy:.0%}", flush=True)


def slowest(record: RunRecord) -> list[float]:
    """Of each turn, the time of the rank that took longest."""
    return [max(times) for times in zip(*record.results, strict=True)]


def rates() -> None:
    for mtu in ("1500 B", "9000 B"):
        for rate in (50e6, 100e6, 400e6, 1e9, 2.5e9, 10e9):
            wire = Wire(rate=rate / 8, latency="0 s", mtu=mtu)
            size = int(min(rate / 8 * 0.5, 200e6))
            record = EmulatedEngine().run(Stream(size), cluster(Star(wire=wire)), workers=2)
            line(f"stream, {rate / 1e6:g} Mbit/s, mtu {mtu}", size / wire.goodput, record.results[1], record)


def delays() -> None:
    for latency in (200e-6, 500e-6, 1e-3, 5e-3, 20e-3):
        record = EmulatedEngine().run(nothing, cluster(Star(wire=Wire(rate="1 Gbit/s", latency=latency))), workers=2)
        (ping,) = record.emulation["delay"]["pings"]
        print(
            f"delay by {record.emulation['delay']['by']}: asked {latency * 1e6:g} us, least {ping['least'] * 1e6:.0f}, "
            f"median {ping['median'] * 1e6:.0f}",
            flush=True,
        )
    for rate in (400e6, 1e9, 2.5e9):
        wire = Wire(rate=rate / 8, latency="1 ms")
        size = int(rate / 8 * 0.5)
        record = EmulatedEngine().run(Stream(size), cluster(Star(wire=wire)), workers=2)
        line(f"stream through the relay, {rate / 1e6:g} Mbit/s, 1 ms", size / wire.goodput, record.results[1], record)
        print(f"    relay: {record.emulation['delay']['relay']}")


def collectives() -> None:
    cases = ((4, 400e6, 10), (4, 400e6, 40), (8, 100e6, 10))
    for workers, rate, megabytes in cases:
        for own in (False, True):
            for mtu in ("1500 B", "9000 B"):
                wire = Wire(rate=rate / 8, latency="0 s", mtu=mtu)
                size = megabytes * 1_000_000
                record = EmulatedEngine().run(AllReduce(size, own), cluster(Star(wire=wire)), workers=workers)
                plan = plan_collective("all_reduce", workers, size, element=4, algorithm="ring")
                whose = "own ring" if own else "gloo"
                name = f"{whose} all-reduce {megabytes} MB, {workers} at {rate / 1e6:g} Mbit/s, mtu {mtu}"
                line(name, plan.time(0.0, wire.goodput), slowest(record), record)


def start() -> None:
    for workers in (2, 4, 8):
        took = []
        for _ in range(4):
            begun = time.monotonic()
            EmulatedEngine().run(nothing, cluster(Star(wire=Wire(rate="1 Gbit/s", latency="0 s"))), workers=workers)
            took.append(time.monotonic() - begun)
        print(f"{workers} nodes, whole run of nothing: first {took[0]:.2f} s, then {min(took[1:]):.2f} s", flush=True)


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["rates", "delays", "collectives", "start"]
    parts = {"rates": rates, "delays": delays, "collectives": collectives, "start": start}
    for part in chosen:
        parts[part]()
