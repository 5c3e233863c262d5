"""When buckets that are encoded, sent and decoded are done: the closed form of a step with a codec.

The worker encodes in the middle of backward, which is longer by that; buckets use the wire one after another; what is
decoded is waited for in order:

    start_k = max(ready_k + what was encoded before, end_{k-1} of the wire),   end_k = start_k + wire_k
    after backward, for each k:  now <- max(now, end_k) + decode_k,   standing still is exposed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, Work
from geartrain.cost.terms import Cost, Traffic, summed
from geartrain.exchange.pipeline import BucketCost
from geartrain.runtime.buckets import deal
from geartrain.runtime.counting import Price
from geartrain.strategies import closed_forms
from geartrain.workload.spec import Workload

OneBucket = Callable[[tuple[torch.Size, ...], torch.dtype], BucketCost]
"""The closed form of a bucket of tensors of these shapes, on two workers or more."""

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Timeline:
    """Seconds of a step beside forward, backward and update.

    Attributes:
        codec: encoding and decoding.
        wire: all transfers.
        exposed: standing still for them.
    """

    codec: float
    wire: float
    exposed: float


def price_on(place: Placement, model: ComputeModel) -> Price:
    """Seconds of pieces of work in a row on the worker that takes longest for them."""
    devices: set[tuple[Device, float]] = set()
    for rank in place.unlike:
        devices.add((place.device(rank), place.speed(rank)))

    def price(works: Sequence[Work]) -> float:
        return max(sum(model.seconds(work, device) for work in works) / speed for device, speed in devices)

    return price


def timeline(ready: Sequence[float], begin: float, buckets: Sequence[BucketCost], *, blocks: bool = False) -> Timeline:
    """The times of one step.

    Args:
        ready: when the gradients of each bucket are there, without a codec.
        begin: when backward ends, without a codec.
        buckets: in the order in which they are started.
        blocks: an exchange is waited for where it starts.
    """
    now = free = codec = exposed = 0.0
    ends: list[float] = []
    for moment, bucket in zip(ready, buckets, strict=True):
        now = max(now, moment + codec + (exposed if blocks else 0.0))
        spent = bucket.encode if bucket.agree is None else bucket.agree
        now, codec = now + spent, codec + spent
        free = max(now, free) + (bucket.wire if bucket.agree is None else bucket.agreement)
        ends.append(free)
        if blocks:
            now, exposed = free, exposed + free - now
    now = max(now, begin + codec)
    for k, bucket in enumerate(buckets):
        if bucket.agree is not None:
            now, exposed = max(now, ends[k]), exposed + max(0.0, ends[k] - now)
            now, codec = now + bucket.encode, codec + bucket.encode
            free = ends[k] = max(now, free) + bucket.wire
    for end, bucket in zip(ends, buckets, strict=True):
        now, exposed = max(now, end), exposed + max(0.0, end - now)
        now, codec = now + bucket.decode, codec + bucket.decode
    return Timeline(codec, sum(bucket.wire + bucket.agreement for bucket in buckets), exposed)


def buckets_cost(
    workload: Workload,
    place: Placement,
    batch: int,
    model: ComputeModel,
    bucket_size: int | None,
    overlap: bool,
    one: OneBucket,
    *,
    blocks: bool = False,
    optimizer: float = 1.0,
) -> Cost:
    """The closed form of a step whose gradients go bucket by bucket, see the module.

    Args:
        bucket_size, overlap: settings of the method.
        one: its buckets.
        blocks: see `timeline`.
        optimizer: the part of the optimizer's state that is left to it.
    """
    compute = closed_forms.slowest(workload, place, batch, model)
    if place.num_workers == 1:
        memory = closed_forms.worker_memory(workload, compute.samples, gradients="kept" if overlap else "moved")
        step = compute.gradient + compute.update
        return Cost(compute=step, sent=(Traffic(),) * place.num_ranks, memory=memory)
    parameters, size = workload.parameters, workload.element_size
    dealt = deal([p.numel * size for p in parameters], [0] * len(parameters), bucket_size)
    groups = [group for group in dealt if any(parameters[index].numel for index in group)]
    return groups_cost(workload, place, compute, groups, overlap, one, blocks=blocks, optimizer=optimizer)


def groups_cost(
    workload: Workload,
    place: Placement,
    compute: closed_forms.Compute,
    groups: Sequence[Sequence[int]],
    overlap: bool,
    one: OneBucket,
    *,
    blocks: bool = False,
    optimizer: float = 1.0,
) -> Cost:
    """The same for buckets that are given: positions in `workload.parameters`, in the order in which they start."""
    parameters = workload.parameters
    shapes = [tuple(torch.Size(parameters[index].shape) for index in group) for group in groups]
    buckets = [one(each, _DTYPES[workload.gradient_dtype or workload.dtype]) for each in shapes]
    ready = [compute.gradient] * len(groups)
    if overlap:
        ready = closed_forms.ready_times(compute, workload, groups)
    times = timeline(ready, compute.gradient, buckets, blocks=blocks)
    return Cost(
        compute=compute.gradient + compute.update,
        codec=times.codec,
        exposed_communication=times.exposed,
        hidden_communication=times.wire - times.exposed,
        sent=summed((bucket.sent for bucket in buckets), len(buckets[0].sent)),
        memory=_memory(workload, compute.samples, buckets, overlap, optimizer),
        notes=(f"{len(buckets)} bucket(s), exchanged one after another",),
    )


def _memory(
    workload: Workload, samples: int, buckets: Sequence[BucketCost], overlap: bool, optimizer: float
) -> dict[str, int]:
    """Payloads are there until those of the next step take their place; a bucket may be encoded in backward."""
    working = max((bucket.working for bucket in buckets), default=0)
    return closed_forms.worker_memory(
        workload,
        samples,
        optimizer=optimizer,
        gradients="kept" if overlap else "moved",
        beside=working if overlap and len(buckets) > 1 else 0,
        afterwards=working,
        payloads=sum(bucket.held for bucket in buckets),
        residual=sum(bucket.residual for bucket in buckets),
    )
