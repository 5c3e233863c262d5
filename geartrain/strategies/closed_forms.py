"""What the strategies' `cost()` share: compute of the slowest worker, messages that travel at once, sums and updates.

time of messages that start together = max over messages of (latency of the route + max over its links of (bytes on the
link / its rate)), which is exact where the busiest link is the same for all or nothing contends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, StepTimes, Work, step_times, update_work
from geartrain.workload.spec import UNUSED, Workload

Flow = tuple[int, int, int]
"""Sender, receiver, bytes."""


def share(batch: int, num_workers: int, rank: int) -> int:
    """Samples of one worker in a global batch; the first `batch % num_workers` workers have one more."""
    return batch // num_workers + (rank < batch % num_workers)


@dataclass(frozen=True)
class Compute:
    """The compute of the slowest worker in one step, in seconds.

    Attributes:
        forward: of the whole model.
        backward: per layer, in forward order.
        update: of all parameters.
        samples: how many samples that worker has.
    """

    forward: float
    backward: tuple[float, ...]
    update: float
    samples: int

    @property
    def gradient(self) -> float:
        """Forward and backward, added up in the order of time as in `ready_times`."""
        return reduce(add, reversed(self.backward), self.forward)


def slowest(workload: Workload, place: Placement, batch: int, model: ComputeModel, *, buckets: bool = True) -> Compute:
    """The worker whose forward, backward and update take longest. Jitter and stragglers are not in a closed form.

    Args:
        model: prices what devices compute.
        buckets: gradients are moved into flat tensors.
    """
    found: dict[tuple[Device, float, int], tuple[StepTimes, float, int]] = {}
    for rank in range(place.num_workers):
        device, speed, samples = place.device(rank), place.speed(rank), share(batch, place.num_workers, rank)
        if (device, speed, samples) not in found:
            times = step_times(workload, device, samples, model)
            times = _with_buckets(times, workload, device, model) if buckets else times
            found[device, speed, samples] = (times, speed, samples)
    times, speed, samples = max(found.values(), key=lambda entry: entry[0].total / entry[1])
    backward = tuple(seconds / speed for seconds in times.backward)
    return Compute(sum(times.forward) / speed, backward, times.update / speed, samples)


def _with_buckets(times: StepTimes, workload: Workload, device: Device, model: ComputeModel) -> StepTimes:
    """Each gradient is read and written once more, in backward, when it moves into its bucket."""
    backward = []
    for seconds, layer in zip(times.backward, workload.layers, strict=True):
        nbytes = 0 if layer.name == UNUSED else sum(p.numel for p in layer.parameters) * workload.element_size
        moving = Work("copy", 0.0, 2 * nbytes, workload.dtype, len(layer.parameters))
        backward.append(seconds + (model.seconds(moving, device) if nbytes else 0.0))
    return StepTimes(times.forward, tuple(backward), times.update)


def travel(place: Placement, flows: Iterable[Flow]) -> float:
    """Seconds until messages that start together have all arrived; empty ones are not sent."""
    load: dict[int, int] = defaultdict(int)
    routes = []
    for source, target, nbytes in flows:
        if nbytes:
            routes.append(place.route(source, target))
            for link in routes[-1].links:
                load[link] += nbytes
    busy = {link: nbytes / place.links[link].capacity for link, nbytes in load.items()}
    return max((route.latency + max((busy[k] for k in route.links), default=0.0) for route in routes), default=0.0)


def reduce_time(place: Placement, rank: int, numel: int, workload: Workload, model: ComputeModel) -> float:
    """Seconds in which a rank adds one tensor to another: two are read, one is written."""
    nbytes = 3 * numel * workload.element_size
    work = Work("reduce", flop=numel, nbytes=nbytes, dtype=workload.dtype)
    return work_time(work, place, rank, model) if numel else 0.0


def update_time(
    place: Placement, rank: int, numel: int, num_tensors: int, workload: Workload, model: ComputeModel
) -> float:
    """Seconds in which a rank updates a shard that consists of so many tensors."""
    whole = update_work(workload)
    part = numel / workload.num_parameters
    kernels = round(whole.num_kernels * num_tensors / len(workload.parameters))
    work = Work("update", whole.flop * part, whole.nbytes * part, workload.dtype, max(1, kernels))
    return work_time(work, place, rank, model) if numel else 0.0


def work_time(work: Work, place: Placement, rank: int, model: ComputeModel) -> float:
    """Seconds of a piece of work on the device of a rank."""
    device: Device = place.device(rank)
    return model.seconds(work, device) / place.speed(rank)


def ready_times(compute: Compute, workload: Workload, groups: Sequence[Sequence[int]]) -> list[float]:
    """When, from the start of forward, the gradients of groups of parameters are all there.

        ready of a parameter in layer l = t_f + sum_{j >= l} t_b,j

    Args:
        groups: positions in `workload.parameters`.
    """
    layer_of = {p.index: k for k, layer in enumerate(workload.layers) for p in layer.parameters}
    arrived, moment = [0.0] * len(workload.layers), compute.forward
    for k in reversed(range(len(workload.layers))):
        moment += compute.backward[k]
        arrived[k] = moment
    parameters = workload.parameters
    return [max((arrived[layer_of[parameters[i].index]] for i in group), default=0.0) for group in groups]


def one_after_another(ready: Sequence[float], seconds: Sequence[float]) -> float:
    """When the last transfer ends: start_k = max(ready_k, end_{k-1}), end_k = start_k + seconds_k."""
    end = 0.0
    for moment, duration in zip(ready, seconds, strict=True):
        end = max(moment, end) + duration
    return end


def worker_memory(workload: Workload, samples: int, *, optimizer: float = 1.0, **more: int) -> dict[str, int]:
    """Bytes by kind on a worker: parameters, one copy of gradients, activations, its part of the optimizer, ..."""
    size = workload.gradient_bytes
    return {
        "parameters": size,
        "gradients": size,
        "optimizer": round(size * workload.optimizer_state * optimizer),
        "activations": round(samples * sum(layer.activation for layer in workload.layers)),
        **more,
    }


def services_match(place: Placement, services: Sequence[ServicePlace]) -> bool:
    """Whether a placement has exactly these services."""
    return tuple(place.services) == tuple(services)
