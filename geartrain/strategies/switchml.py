"""SwitchML: the switch adds gradients as they pass, so a worker sends and receives each number once.

    worker i:  for each bucket, in chunks of k numbers, at most s chunks under way:
                   q_i = round(f_c * weight_i * g_i)  as 32-bit integers            f_c a factor of the chunk
                   send packet (i, sequence, q_i);  on the result:  g <- (sum_i q_i) / f_c
                   no result in time: send the same packet again
    switch:    slot = sequence mod s,  version = (sequence div s) mod 2
                   add to pool[version][slot], once for each worker;  all n are there: send the sum to all workers
    w <- w - lr * g                    on every worker, with the task's optimizer

The protocol is in `geartrain.collectives.aggregation`: `switch` (two pools, so that any packet may be lost), `stream`
(the worker's window), `numbers` (block floating point, whose exponents travel one window ahead).

Paper: Sapio and others, NSDI 2021, arXiv 1903.06701, algorithms 1 to 4. Limits: with a power of two as the factor it is
`synchronous`, up to the rounding to multiples of 1 / f; one worker is `single`.
Differs from the paper:
    - The switch is a program at the place of the switch: it has no limit of operations, and it sends a copy of every
      result to each worker itself.
    - A factor of block floating point is rounded down to a power of two, so that integers stay exact.
    - The switch also keeps each worker's newest packet of a slot: a copy that comes late by two phases, which wires of
      one rack do not deliver, would be added to the wrong sum.
    - A retransmission timeout follows the answers that came, and doubles when it passes in vain.
    - What is not finite is told by its exponent and becomes NaN on all workers.
    - One switch at the core; several racks are not aggregated rack by rack.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Matrix
from geartrain.collectives.aggregation.drive import Settings, SwitchedSum, quantising, restoring, serve
from geartrain.collectives.aggregation.packets import HEADER_SIZE
from geartrain.collectives.aggregation.stream import extra_packets
from geartrain.collectives.lane import CollectiveLane
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.memory import Gradients
from geartrain.cost.terms import Cost, Traffic
from geartrain.errors import StrategyError
from geartrain.runtime.buckets import Layout, deal
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Roles, Strategy
from geartrain.runtime.worker import Service, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.gradient_worker import GradientWorker
from geartrain.strategies.papers import SWITCHML
from geartrain.strategies.single import Single
from geartrain.strategies.switchml_cost import Path, aggregation_time
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import Size, check_fields, check_most, render
from geartrain.workload.spec import Workload

PAPER_PAYLOAD = 1024
"""Bytes of integers in a packet where the cluster was not looked at: the larger of the authors' two."""
_USUAL_MTU = 9000  # of a wire whose packets the cluster does not describe, as in the emulated engine
_IP_UDP = 28
_LARGEST = 65_488  # bytes of integers in one UDP packet
_END = 1


@dataclass(frozen=True, kw_only=True)
class SwitchML(Strategy):
    """Gradients are summed in the switch.

        g <- (sum_i round(f weight_i g_i)) / f,   |error| <= n / (2 f),   w <- w - lr * g

    Args:
        payload: bytes of integers in a packet, a multiple of 4; none: what the cluster's mtu leaves beside headers of
            44 bytes, and 1024, the paper's, where a program does not look at its cluster first. The switch of the paper
            takes 256 or 1024.
        slots: packets that a worker may have under way; the switch keeps two pools of so many. The paper's is the
            bandwidth-delay product over the size of a packet, rounded up to a power of two: 128 at 10 Gbit/s, 512 at
            100 Gbit/s. Fewer are used where receive buffers are too small for n windows.
        factor: the same for all chunks; none: block floating point. A gradient above (2^31 - n) / (n factor) ends the
            run, so know your gradients. A power of two keeps exact what is exact.
        timeout: seconds without a result after which a packet is sent again, at least. 0.01 in the authors' code, 0.001
            in the paper; on a busy host a short one floods.
        loss: probability that a packet is thrown away when it comes, in each direction; drawn from the seed.
        burst: packets that are handed over together, though no more than an eighth of a bucket. On the simulated
            engine they are one message, so 1 gives the times of single packets, and simulating megabytes takes time
            that grows with 1 / burst.
        bucket_size, overlap: as for `synchronous`.

    Costs, per worker and bucket of L numbers in P = ceil(L / k) packets: P (16 + payload) bytes and, with block
    floating point, min(s, P) packets of 16 bytes before; the switch sends n times as much. Independent of n, exact
    without loss.

        T = RTT + P b / B  at the least; see `geartrain.strategies.switchml_cost`.   Ring: 2 (n - 1) / n L / B

    Use it where a switch can add, buckets are large and the wires are the bottleneck: up to twice as fast as a ring.
    Not where gradients of one chunk differ by more than 2^30 / n, as the small ones are lost, and not for doubles whose
    last bits matter. It needs a star or two-level cluster.

    Example:
        >>> str(SwitchML(slots=512, payload=1024))
        'switchml:payload=1KiB,slots=512'

    Source: Sapio and others, NSDI 2021, arXiv 1903.06701, and the authors' code; the closed forms are derived.
    """

    name: ClassVar[str] = "switchml"
    paper: ClassVar[Paper] = SWITCHML
    needs: ClassVar[Needs] = Needs(lanes=True, regroups=True)

    payload: Size | None = None
    slots: int = 128
    factor: float | None = None
    timeout: float = 0.01
    loss: float = 0.0
    burst: int = 16
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, payload=4, slots=1, loss=0, burst=1, bucket_size=1)
        check_most(self, loss=0.5, payload=_LARGEST)
        if self.payload is not None and self.payload % 4:
            raise StrategyError(
                f"switchml: payload={self.payload} holds no whole 32-bit integers; give a multiple of 4"
            )
        for key in ("factor", "timeout"):
            value = getattr(self, key)
            if value is not None and not 0 < value < math.inf:
                raise StrategyError(f"switchml: {key}={value!r} does not fit; give a finite number above 0")

    def __str__(self) -> str:
        return render(self)

    def roles(self, num_workers: int) -> Roles:
        return Roles((ServicePlace("switch", "switch"),) if num_workers > 1 else ())

    def planned(
        self, workload: Workload | None, place: Placement, batch: int, model: ComputeModel = ROOFLINE
    ) -> Strategy:
        topology = place.cluster.topology
        if self.payload is not None or isinstance(topology, Matrix):
            return self
        mtu = topology.wire.mtu or _USUAL_MTU
        return replace(self, payload=min(_LARGEST, max(4, (mtu - _IP_UDP - HEADER_SIZE) // 4 * 4)))

    def bind(self, ctx: Context, task: Task) -> Worker | Service:
        if ctx.role != "worker":
            return _Switch(self, ctx)

        def make(layouts: Sequence[Layout], optimizer: Optimizer) -> Aggregation:
            return Aggregation(self, ctx)

        return GradientWorker(ctx, task, bucket_size=self.bucket_size, overlap=self.overlap, make=make)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(SwitchML(factor=2.0**20), "close", Synchronous(), tolerance=1e-3),
            Limit(SwitchML(), "close", Synchronous(), tolerance=1e-3),
            Limit(SwitchML(loss=0.05, slots=4), "close", Synchronous(), tolerance=1e-3),
            Limit(SwitchML(), "equals", Single(), num_workers=1),
        )

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        return states[0]

    @property
    def settings(self) -> Settings:
        """What workers and switch agree on."""
        return Settings(
            slots=self.slots,
            width=(self.payload or PAPER_PAYLOAD) // 4,
            factor=self.factor,
            timeout=self.timeout,
            loss=self.loss,
            burst=self.burst,
        )

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        self._check_services(place)
        compute = closed_forms.slowest(workload, place, batch, model)
        parameters, size = workload.parameters, workload.element_size
        dealt = deal([p.numel * size for p in parameters], [0] * len(parameters), self.bucket_size)
        numels = [sum(parameters[index].numel for index in group) for group in dealt]
        traffic = [self._traffic(numel, place.num_workers) for numel in numels]
        path = self._path(place)
        wires = [self._wire(numel, path) for numel in numels]
        codecs = [self._codec(numel, workload, place, model) for numel in numels]
        seconds = [wire + codec for wire, codec in zip(wires, codecs, strict=True)]
        ready = [compute.gradient] * len(dealt)
        if self.overlap:
            ready = closed_forms.ready_times(compute, workload, dealt)
        exposed = max(0.0, closed_forms.one_after_another(ready, seconds) - compute.gradient)
        sent = sum(traffic, Traffic())
        many = Traffic(nbytes=place.num_workers * sent.nbytes, messages=place.num_workers * sent.messages)
        return Cost(
            compute=compute.gradient + compute.update,
            exposed_communication=exposed,
            hidden_communication=sum(seconds) - exposed,
            sent=(*[sent] * place.num_workers, *[many] * len(place.services)),
            memory=self._memory(workload, compute.samples, max(numels, default=0)),
            notes=self._notes(place),
        )

    def _memory(self, workload: Workload, samples: int, numel: int) -> dict[str, int]:
        """A bucket that is no whole number of packets is copied, with what is missing."""
        copied = numel * workload.element_size if numel % self.settings.width else 0
        gradients: Gradients = "kept" if self.overlap else "moved"
        return closed_forms.worker_memory(workload, samples, gradients=gradients, beside=copied)

    def _notes(self, place: Placement) -> tuple[str, ...]:
        pools = 2 * self.slots * (self.settings.width * 4 + place.num_workers / 8)
        notes = [f"the switch keeps {pools:.0f} bytes of pools and bits; integers are made before and after the wire"]
        if self.loss:
            notes.append("without packets that are lost and sent again")
        return tuple(notes)

    def _check_services(self, place: Placement) -> None:
        services = self.roles(place.num_workers).services
        if not closed_forms.services_match(place, services):
            raise StrategyError(
                f"{self} needs {len(services)} service(s) in the placement, which has {len(place.services)}.\n"
                "  make it with the services of strategy.roles(num_workers)"
            )

    def _packets(self, numel: int) -> tuple[int, int]:
        """Packets of a bucket with integers in them, and without."""
        chunks = -(-numel // self.settings.width)
        return chunks, extra_packets(chunks, self.slots, ahead=self.factor is None)

    def _traffic(self, numel: int, num_workers: int) -> Traffic:
        if num_workers == 1:
            return Traffic()
        full, short = self._packets(numel)
        return Traffic(nbytes=full * self.settings.packet_size + short * HEADER_SIZE, messages=full + short)

    def _path(self, place: Placement) -> Path | None:
        """From a worker to the switch and back, for packets of all workers at once; None for a worker alone."""
        workers = range(place.num_workers)
        if place.num_workers == 1:
            return None
        switch, settings = place.num_workers, self.settings
        up = closed_forms.travel(place, [(worker, switch, settings.packet_size) for worker in workers])
        down = closed_forms.travel(place, [(switch, worker, settings.packet_size) for worker in workers])
        there = max(place.route(worker, switch).latency for worker in workers)
        back = max(place.route(switch, worker).latency for worker in workers)
        rate = settings.packet_size / max(up - there, down - back)
        return Path(round_trip=there + back, rate=rate)

    def _wire(self, numel: int, path: Path | None) -> float:
        if path is None or not numel:
            return 0.0
        settings = self.settings
        return aggregation_time(
            path,
            num_packets=self._packets(numel)[0],
            packet=settings.packet_size,
            slots=self.slots,
            burst=self.burst,
            ahead=self.factor is None,
        )

    def _codec(self, numel: int, workload: Workload, place: Placement, model: ComputeModel) -> float:
        """Seconds in which the slowest worker makes integers of numbers, and numbers of sums."""
        if place.num_workers == 1:
            return 0.0
        works = [make(numel, workload.element_size, workload.dtype) for make in (quantising, restoring)]
        return sum(closed_forms.slowest_time(work, place, model) for work in works)


class Aggregation:
    """A worker's exchange: buckets go through the switch one after another, in the order in which they are started."""

    def __init__(self, strategy: SwitchML, ctx: Context) -> None:
        self._ctx, self._switch = ctx, ctx.num_workers
        self._control = _control_group(ctx)
        self._sum = SwitchedSum(ctx, strategy.settings, self._switch)
        self._lane: CollectiveLane | None = None
        if strategy.overlap:
            self._lane = CollectiveLane(ctx, ctx.workers, self._sum, "aggregation")

    def start(self, flat: Tensor) -> None:
        """Begin with the next bucket; without overlap, sum it."""
        if self._lane is not None:
            self._lane.start(flat)
        else:
            self._sum(flat, self._ctx.workers)

    def wait(self) -> None:
        """Until all that was started is summed."""
        if self._lane is not None:
            self._lane.wait()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: packets are numbered anew when a run goes on, on the switch, too."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return

    def close(self) -> None:
        """Tell the switch that this worker has finished."""
        if self._lane is not None:
            self._lane.close()
        end = torch.zeros(1, device=self._ctx.device)
        wait_all(post_send(end, self._switch, self._control, _END))
        self._sum.close()


class _Switch(Service):
    def __init__(self, strategy: SwitchML, ctx: Context) -> None:
        self._ctx, self._settings = ctx, strategy.settings
        self._control = _control_group(ctx)

    def run(self) -> None:
        """Serve in a lane until every worker has said that it ends; what the lane then waits for never comes."""
        ctx = self._ctx
        ctx.spawn(lambda: serve(ctx, self._settings), "serve", daemon=True)
        ends = [torch.zeros(1, device=ctx.device) for _ in range(ctx.num_workers)]
        wait_all([work for worker, end in enumerate(ends) for work in post_recv(end, worker, self._control, _END)])


def _control_group(ctx: Context) -> dist.ProcessGroup:
    """For saying that the run ends, beside the lane that serves."""
    group = ctx.group(range(ctx.world_size))
    assert group is not None, "every rank is in it"
    return group
