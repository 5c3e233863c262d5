"""The two lemmas of LargeScaleArchs as programs, simulated: devices with a serial part, servers behind computing.

    devices    each computes 1 / G of the work, all meet, and then comes what does not shrink with G
    servers    beside computing, a worker pushes a share of its gradients to each of N servers and pulls as much from it
               once that server has all pushes

What `geartrain.planner.lemmas` says by formula is measured here on the virtual clock.

Source: Zou and others, 2017, arXiv 1709.06622, lemmas 1 and 2, recalled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.cluster.placement import ServicePlace
from geartrain.cluster.spec import Cluster, Device, NodeGroup, Star, Wire
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.cost.compute import Roofline, Work
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError
from geartrain.models import get_workload
from geartrain.runtime.charging import charge
from geartrain.runtime.context import Context

_PUSH, _PULL = 1, 2
_ROUNDING = 1e-6


def parameter_bytes(*, workload: str) -> float:
    """Bytes of all parameters of a model."""
    return float(get_workload(workload).gradient_bytes)


def speedup(*, devices: int, overhead: float) -> float:
    """How many times as fast so many devices are as one, simulated.

    Args:
        overhead: time that does not shrink with devices over time that does.
    """
    return _serial_time(1, overhead) / _serial_time(devices, overhead)


def efficiency(*, devices: int, overhead: float) -> float:
    """The speed-up per device, simulated."""
    return speedup(devices=devices, overhead=overhead) / devices


def _serial_time(devices: int, overhead: float) -> float:
    def program(ctx: Context) -> None:
        ctx.mark_step(0, "begin")
        charge(_seconds(1 / devices))
        dist.barrier(group=ctx.workers)
        charge(_seconds(overhead))
        ctx.mark_step(0, "end")

    return _took(program, workers=devices, servers=0, rate=1e9, steps=1)


def round_time(*, workload: str, workers: int, servers: int, rate: float, compute: float) -> float:
    """Seconds of a round in which pushes and pulls travel beside computing, simulated.

    Args:
        workload: whose parameters travel.
        rate: bytes per second of everybody's wire, each way.
        compute: seconds of computing in a round.
    """
    program = _Round(size=parameter_bytes(workload=workload), workers=workers, servers=servers, compute=compute)
    return _took(program, workers=workers, servers=servers, rate=rate, steps=_Round.steps)


def fewest_servers(*, workload: str, workers: int, rate: float, compute: float) -> float:
    """The fewest servers with which a round takes no longer than computing, simulated; up to one for each worker."""
    for servers in range(1, workers + 1):
        seconds = round_time(workload=workload, workers=workers, servers=servers, rate=rate, compute=compute)
        if seconds <= compute * (1 + _ROUNDING):
            return float(servers)
    raise ConfigurationError(
        f"{workload} on {workers} workers is bound by the network: a server for each of them is not enough to hide "
        f"communication behind {compute:g} s; take a larger batch, or compress"
    )


@dataclass(frozen=True)
class _Round:
    """Workers push, servers answer, beside computing."""

    size: float
    workers: int
    servers: int
    compute: float
    steps = 2

    def __call__(self, ctx: Context) -> None:
        share = torch.empty(round(self.size / 4 / self.servers), device=ctx.device)
        for step in range(self.steps):
            ctx.mark_step(step, "begin")
            if ctx.role == "worker":
                lane = ctx.spawn(lambda: self._exchange(ctx, share), "exchange")
                charge(_seconds(self.compute))
                lane.join()
            else:
                self._serve(ctx, share)
            ctx.mark_step(step, "end")

    def _exchange(self, ctx: Context, share: torch.Tensor) -> None:
        servers = range(self.workers, self.workers + self.servers)
        wait_all([work for rank in servers for work in post_send(share, rank, ctx.everyone, _PUSH)])
        wait_all([work for rank in servers for work in post_recv(share, rank, ctx.everyone, _PULL)])

    def _serve(self, ctx: Context, share: torch.Tensor) -> None:
        workers = range(self.workers)
        wait_all([work for rank in workers for work in post_recv(share, rank, ctx.everyone, _PUSH)])
        wait_all([work for rank in workers for work in post_send(share, rank, ctx.everyone, _PULL)])


def _seconds(seconds: float) -> Work:
    return Work("compute", flop=seconds * 1e12, nbytes=0.0)


def _took(program: Callable[[Context], None], *, workers: int, servers: int, rate: float, steps: int) -> float:
    """Seconds of a step of the slowest worker, on devices of 1 TFLOP/s round a switch without latency."""
    device = Device(name="device", flops={"fp32": 1e12}, memory=1 << 40, memory_rate=1e15, source="chosen")
    cluster = Cluster(
        name="servers",
        nodes=(NodeGroup(count="any", device=device),),
        topology=Star(wire=Wire(rate=rate, latency=0.0)),
        source="chosen",
    )
    places = (ServicePlace("server"),) * servers
    record = SimulatedEngine(Roofline()).run(program, cluster, workers=workers, services=places, meta=True)
    marks = [mark for log in record.logs[:workers] for mark in log.steps]
    return (max(mark.end for mark in marks) - min(mark.begin for mark in marks)) / steps
