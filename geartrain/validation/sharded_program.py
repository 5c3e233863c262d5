"""The step of `geartrain.validation.sharded` as a program: every rank gathers, computes and scatters, on shapes.

    forward     gather layer 1;  for each layer: gather the next one beside computing this one
    backward    for each layer, last to first: scatter the one after beside computing this one;  scatter layer 1

What travels beside computing is a lane of its own, in which one collective follows the other. Simulated, it is what the
closed form is held against.

Source: derived, as the closed form is. For the same on real processes see examples/fsdp2.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.cluster.spec import Cluster, Device, NodeGroup, Star, Wire
from geartrain.cost.compute import Roofline, Work
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.charging import charge
from geartrain.runtime.context import Context
from geartrain.validation.sharded import BYTES, Generation, Layout, Transformer

Collective = Callable[[], object]


def cluster_of(generation: Generation) -> Cluster:
    """Nodes of a generation round one switch; a step of a ring takes the latency of a wire."""
    device = Device(
        name="device",
        flops={"fp32": generation.peak, "bf16": generation.peak},
        memory=80 << 30,
        memory_rate=1e15,  # nothing but products takes time
        source="chosen",
    )
    group = NodeGroup(count="any", device=device, devices_per_node=generation.devices)
    topology = Star(
        wire=Wire(rate=generation.wire, latency=generation.hop),
        inner=Wire(rate=generation.inner, latency=generation.inner_hop),
    )
    return Cluster(name="generation", nodes=(group,), topology=topology, source="chosen")


def simulated_step(
    model: Transformer, generation: Generation, layout: Layout, *, batch: int, length: int = 4096
) -> float:
    """Seconds of one step, simulated; no pipeline, and shards over all replicas."""
    program = _Program(model, layout, batch, length)
    engine = SimulatedEngine(Roofline(generation.efficiency))
    record = engine.run(program, cluster_of(generation), workers=layout.ranks, meta=True)
    marks = [log.steps[0] for log in record.logs]
    return max(mark.end for mark in marks) - min(mark.begin for mark in marks)


@dataclass(frozen=True)
class _Program:
    model: Transformer
    layout: Layout
    batch: int
    length: int

    def __call__(self, ctx: Context) -> None:
        ctx.mark_step(0, "begin")
        _Rank(self, ctx).step()
        ctx.mark_step(0, "end")


class _Rank:
    """One rank's share of a layer, which is the same for all layers, and what is done with it."""

    def __init__(self, program: _Program, ctx: Context) -> None:
        model, layout = program.model, program.layout
        self._ctx, self._layers, self._reshard = ctx, model.layers, layout.reshard
        self._tensor = layout.tensor
        ranks = range(layout.ranks)
        makes = [ctx.group(ranks[first : first + layout.tensor]) for first in ranks[:: layout.tensor]]
        shares = [ctx.group(ranks[first :: layout.tensor]) for first in range(layout.tensor)]
        self._together = next(group for group in makes if group is not None)
        self._replicas = next(group for group in shares if group is not None)
        tokens = program.batch / layout.replicas * program.length
        flop = model.flop_per_token(program.length) / model.layers * tokens / layout.tensor
        self._forward = Work("forward", flop=flop / 3, nbytes=0.0, dtype="bf16")
        self._backward = Work("backward", flop=2 * flop / 3, nbytes=0.0, dtype="bf16")
        numel = round(model.parameters / model.layers / layout.tensor / layout.replicas)
        self._shard = self._empty(numel)
        self._layer = self._empty(numel * layout.replicas)
        self._activations = self._empty(round(tokens * model.width))

    def _empty(self, numel: int) -> torch.Tensor:
        tensor = torch.empty(numel, dtype=torch.bfloat16, device=self._ctx.device)
        assert tensor.element_size() == BYTES
        return tensor

    def step(self) -> None:
        self._gather()
        for layer in range(self._layers):
            self._beside(self._forward, [self._gather] * (layer + 1 < self._layers))
        for layer in reversed(range(self._layers)):
            collectives: list[Collective] = [self._scatter] * (layer + 1 < self._layers)
            collectives += [self._gather] * (self._reshard and layer > 0)
            self._beside(self._backward, collectives)
        self._scatter()

    def _beside(self, work: Work, collectives: list[Collective]) -> None:
        """Compute a layer while collectives follow each other in a lane."""

        def travel() -> None:
            for collective in collectives:
                collective()

        lane = self._ctx.spawn(travel, "parameters")
        charge(work)
        if self._tensor > 1:
            for _ in range(2):
                dist.all_reduce(self._activations, group=self._together)
        lane.join()

    def _gather(self) -> None:
        dist.all_gather_single(self._layer, self._shard, group=self._replicas)

    def _scatter(self) -> None:
        dist.reduce_scatter_single(self._shard, self._layer, group=self._replicas)
