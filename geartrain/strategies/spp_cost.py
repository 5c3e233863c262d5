"""What the pipelines of `spp` take on a cluster: prices for the planner, and the closed form of a plan.

    work       of the parts of a piece on the largest share of a micro-batch, the slowest replica; backward with what
               adding gradients up over micro-batches takes
    channel    the messages of one micro-batch between two pieces at once, on the cluster's links
    sum        the backend's all-reduce of a stage's gradients and one number more, over its replicas
    step       the event loop of `geartrain.parallel.list_order` over these times, then the slowest update

Not in it: messages of different channels and sums on one link at a time, and micro-batches that differ by a sample
(the larger size counts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, Work, backward_work, forward_work
from geartrain.cost.placed import native_collective, travel
from geartrain.cost.terms import Cost, Traffic
from geartrain.parallel.list_order import Channel, Timeline, Times
from geartrain.parallel.partition import Plan, deliveries, shares
from geartrain.parallel.schedule_table import Block
from geartrain.strategies import closed_forms
from geartrain.workload.spec import UNUSED, Layer, Parameter, Workload


@dataclass(frozen=True, eq=False)
class PipelinePrices:
    """Prices of a workload's parts on a placement, see `geartrain.parallel.planning.Prices`.

    Args:
        workload: with its parts.
        place, model: where the workers live, and what prices computing.
        batch: global, in samples.
        num_micro_batches: of one step.
    """

    workload: Workload
    place: Placement
    batch: int
    num_micro_batches: int
    model: ComputeModel
    duplex: bool = True  # links of a cluster have two directions

    @property
    def num_parts(self) -> int:
        return len(self.workload.parts)

    @property
    def num_devices(self) -> int:
        return self.place.num_workers

    @property
    def micro_batch(self) -> int:
        """Samples of the largest micro-batch."""
        return -(-self.batch // self.num_micro_batches)

    @cached_property
    def layers(self) -> tuple[tuple[Layer, ...], ...]:
        """Of each part; what belongs to no part, as the loss, goes with the part before it."""
        found: list[list[Layer]] = [[] for _ in self.workload.parts]
        here = 0
        for layer in self.workload.layers:
            if layer.name == UNUSED:
                continue
            homes = [index for index, part in enumerate(self.workload.parts) if part.holds(layer.name)]
            here = homes[0] if homes else here
            found[here].append(layer)
        return tuple(map(tuple, found))

    @cached_property
    def parameters(self) -> tuple[tuple[Parameter, ...], ...]:
        """Of each part, those that get no gradient among them."""
        parts = self.workload.parts
        return tuple(tuple(p for p in self.workload.parameters if part.holds(p.name)) for part in parts)

    def numel(self, parts: Sequence[int]) -> int:
        """Trainable elements of some parts."""
        return sum(self._numels[part] for part in parts)

    @cached_property
    def _numels(self) -> tuple[int, ...]:
        return tuple(sum(p.numel for p in parameters) for parameters in self.parameters)

    @cached_property
    def _like(self) -> tuple[int, ...]:
        """Of each worker the first one with the same device and speed."""
        first = dict[tuple[Device, float], int]()
        kinds = ((self.place.device(rank), self.place.speed(rank)) for rank in range(self.num_devices))
        return tuple(first.setdefault(kind, rank) for rank, kind in enumerate(kinds))

    @cached_property
    def _known(self) -> dict[tuple[range, int, int], tuple[float, float]]:
        """What `_alone` has found: a search asks for the same again and again."""
        return {}

    def work(self, parts: range, ranks: tuple[int, ...]) -> tuple[float, float]:
        samples = -(-self.micro_batch // len(ranks))
        both = []
        for rank in sorted({self._like[rank] for rank in ranks}):
            if (parts, rank, samples) not in self._known:
                self._known[parts, rank, samples] = self._alone(parts, rank, samples)
            both.append(self._known[parts, rank, samples])
        return max(both, key=sum)

    def _alone(self, parts: range, rank: int, samples: int) -> tuple[float, float]:
        """Forward and backward on one device."""
        device, speed, workload = self.place.device(rank), self.place.speed(rank), self.workload
        layers = [layer for part in parts for layer in self.layers[part]]
        forward = sum(self.model.seconds(forward_work(workload, layer, samples), device) for layer in layers)
        backward = sum(self.model.seconds(backward_work(workload, layer, samples), device) for layer in layers)
        return forward / speed, backward / speed + self._adding_up(parts, rank)

    def _adding_up(self, parts: range, rank: int) -> float:
        """Adding the gradients of a micro-batch to those before it, as a mean over all."""
        count, numel = sum(len(self.parameters[part]) for part in parts), self.numel(parts)
        nbytes = 3 * numel * self.workload.element_size
        work = Work("add", flop=numel, nbytes=nbytes, dtype=self.workload.dtype, num_kernels=count)
        again = (self.num_micro_batches - 1) / self.num_micro_batches
        return again * closed_forms.work_time(work, self.place, rank, self.model) if count else 0.0

    def channel(self, cut: int, senders: tuple[int, ...], receivers: tuple[int, ...]) -> Channel:
        there, back = self._messages(cut, senders, receivers, self.micro_batch)
        latency = max(self.place.route(source, target).latency for source, target, _ in there)
        return Channel(travel(self.place, there) - latency, travel(self.place, back) - latency, latency)

    def _messages(
        self, cut: int, senders: tuple[int, ...], receivers: tuple[int, ...], samples: int
    ) -> tuple[list[closed_forms.Flow], list[closed_forms.Flow]]:
        """One micro-batch's activations, and its gradients with a loss each, between part cut - 1 and part cut."""
        part, there, back = self.workload.parts[cut - 1], [], []
        for one in deliveries(samples, len(senders), len(receivers)):
            numel = one.samples * part.numel
            there.append((senders[one.sender], receivers[one.receiver], numel * part.element_size))
            back.append((receivers[one.receiver], senders[one.sender], (numel + 1) * part.element_size))
        return there, back

    def gradient_sum(self, parts: Sequence[int], ranks: tuple[int, ...]) -> float:
        return self._summed(parts, ranks)[0]

    def _summed(self, parts: Sequence[int], ranks: tuple[int, ...]) -> tuple[float, tuple[Traffic, ...]]:
        size = self.workload.element_size
        return native_collective(self.place, "all_reduce", (self.numel(parts) + 1) * size, size, ranks)

    def fits(self, parts: range, ranks: tuple[int, ...]) -> bool:
        if len(ranks) > self.batch // self.num_micro_batches:
            return False  # some replica would have no sample of some micro-batch
        needed = sum(self.memory(parts, len(ranks)).values())
        return all(needed <= self.place.device(rank).memory for rank in ranks)

    def memory(self, parts: Sequence[int], replicas: int) -> dict[str, int]:
        """Bytes by kind on a worker with these parts, with all micro-batches under way; the whole model is there."""
        size = self.numel(parts) * self.workload.element_size
        samples = self.num_micro_batches * -(-self.micro_batch // replicas)
        activation = sum(layer.activation for part in parts for layer in self.layers[part])
        return {
            "parameters": self.workload.gradient_bytes,
            "gradients": size,
            "optimizer": round(size * self.workload.optimizer_state),
            "activations": round(samples * activation),
        }

    def memory_in(self, plan: Plan, stage: int, row: Sequence[Block]) -> dict[str, int]:
        """The same for a stage with this order of blocks: a micro-batch is there from its forward to its backward."""
        replicas = len(plan.stages[stage].ranks)
        held = most = 0.0
        for block in row:
            layers = [layer for part in plan.pieces[block.piece] for layer in self.layers[part]]
            activation = -(-self.micro_batch // replicas) * sum(layer.activation for layer in layers)
            held += activation if block.kind == "F" else -activation
            most = max(most, held)
        return self.memory(self.parts_of(plan, stage), replicas) | {"activations": round(most)}

    # --- a whole plan -----------------------------------------------------------------------------------------------

    def times(self, plan: Plan) -> Times:
        """What the blocks of a plan take."""
        work = [self.work(parts, plan.ranks_of(piece)) for piece, parts in enumerate(plan.pieces)]
        channels = tuple(
            self.channel(parts.stop, plan.ranks_of(piece), plan.ranks_of(piece + 1))
            for piece, parts in enumerate(plan.pieces[:-1])
        )
        sums = tuple(self.gradient_sum(self.parts_of(plan, stage), s.ranks) for stage, s in enumerate(plan.stages))
        forward, backward = zip(*work, strict=True)
        return Times(forward=forward, backward=backward, channels=channels, sums=sums, duplex=self.duplex)

    def parts_of(self, plan: Plan, stage: int) -> list[int]:
        """All parts of a stage."""
        return [part for parts in plan.pieces[stage :: len(plan.stages)] for part in parts]

    def update(self, plan: Plan, stage: int) -> float:
        """Seconds of a stage's update, with the copies that a sum over replicas takes."""
        parts, ranks = self.parts_of(plan, stage), plan.stages[stage].ranks
        count, numel = sum(len(self.parameters[part]) for part in parts), self.numel(parts)
        copies = Work("copy", 0.0, 4 * numel * self.workload.element_size, self.workload.dtype, count + 1)
        return max(
            closed_forms.update_time(self.place, rank, numel, count, self.workload, self.model)
            + (closed_forms.work_time(copies, self.place, rank, self.model) if len(ranks) > 1 else 0.0)
            for rank in ranks
        )

    def sent(self, plan: Plan) -> tuple[Traffic, ...]:
        """What each rank sends in a step, exactly."""
        sent = [Traffic()] * self.place.num_ranks
        for span in shares(self.batch, self.num_micro_batches):
            for piece, parts in enumerate(plan.pieces[:-1]):
                pair = plan.ranks_of(piece), plan.ranks_of(piece + 1)
                for flows in self._messages(parts.stop, *pair, len(span)):
                    for source, _, nbytes in flows:
                        sent[source] += Traffic(nbytes=nbytes, messages=1)
        for stage, one in enumerate(plan.stages):
            _, summed = self._summed(self.parts_of(plan, stage), one.ranks)
            for rank, traffic in zip(one.ranks, summed, strict=True):
                sent[rank] += traffic
        idle = len(plan.idle(self.place.num_workers))
        sent[plan.stages[0].ranks[0]] += Traffic(nbytes=idle * self.workload.element_size, messages=idle)
        return tuple(sent)


def seconds(prices: PipelinePrices, plan: Plan, timeline: Timeline) -> float:
    """Of a step: until the last stage has updated its parameters."""
    return max(end + prices.update(plan, stage) for stage, end in enumerate(timeline.ends))


def free(times: Times) -> Times:
    """The same pipeline with a network that takes no time."""
    return replace(times, channels=(Channel(),) * len(times.channels), sums=(0.0,) * len(times.sums))


def cost(prices: PipelinePrices, plan: Plan, timeline: Timeline, alone: Timeline, times: Times) -> Cost:
    """The closed form of one step.

    Args:
        timeline: of the plan's order.
        alone: of the same order on a network that takes no time; what it takes beyond computing is the bubble.
        times: of the plan.
    """
    stages, count = len(plan.stages), prices.num_micro_batches
    work = [f + b for f, b in zip(times.forward, times.backward, strict=True)]
    compute = max(count * sum(work[stage::stages]) + prices.update(plan, stage) for stage in range(stages))
    bubble = max(0.0, seconds(prices, plan, alone) - compute)
    exposed = max(0.0, seconds(prices, plan, timeline) - compute - bubble)
    in_flight = count * sum(c.forward + c.backward + 2 * c.latency for c in times.channels) + max(times.sums)
    memory = [prices.memory_in(plan, stage, row) for stage, row in enumerate(timeline.table.rows)]
    return Cost(
        compute=compute,
        bubble=bubble,
        exposed_communication=exposed,
        hidden_communication=max(0.0, in_flight - exposed),
        sent=prices.sent(plan),
        memory=max(memory, key=lambda kinds: sum(kinds.values())),
        notes=(f"plan {plan} (parts@workers of each stage), {count} micro-batch(es)",),
    )
