"""What the strategies' `cost()` share: compute of the slowest worker, sums and updates, and when transfers end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Device
from geartrain.cost import own_collectives, placed
from geartrain.cost.compute import ComputeModel, StepTimes, Work, step_times, update_work
from geartrain.cost.memo import Memo, Same
from geartrain.cost.memory import server_memory as server_memory
from geartrain.cost.memory import worker_memory as worker_memory
from geartrain.cost.placed import Flow as Flow
from geartrain.cost.placed import travel as travel
from geartrain.cost.terms import Cost, Traffic
from geartrain.workload.spec import UNUSED, Workload


def share(batch: int, num_workers: int, rank: int) -> int:
    """Samples of one worker in a global batch; the first `batch % num_workers` workers have one more."""
    return batch // num_workers + (rank < batch % num_workers)


@dataclass(frozen=True)
class Compute:
    """The compute of the slowest worker in one step, in seconds.

    Attributes:
        forward: of the whole model.
        forwards: of each layer, in forward order.
        backward: per layer, in forward order.
        update: of all parameters.
        samples: how many samples that worker has.
    """

    forward: float
    forwards: tuple[float, ...]
    backward: tuple[float, ...]
    update: float
    samples: int

    @property
    def gradient(self) -> float:
        """Forward and backward, added up in the order of time as in `ready_times`."""
        return reduce(add, reversed(self.backward), self.forward)


@dataclass(frozen=True)
class Merge:
    """What averaging models moves in a worker's memory, beside the all-reduce.

    Attributes:
        passes: how many times all parameters are read or written.
        kernels: in how many kernels.
        copies: of the model that it keeps.
    """

    passes: int
    kernels: int
    copies: int


def slowest(
    workload: Workload,
    place: Placement,
    batch: int,
    model: ComputeModel,
    *,
    buckets: bool = True,
    shares: Sequence[int] | None = None,
) -> Compute:
    """The worker whose forward, backward and update take longest. Jitter and stragglers are not in a closed form.

    Args:
        model: prices what devices compute.
        buckets: gradients are moved into flat tensors.
        shares: samples of each worker; equal ones unless given.
    """
    if shares is None:
        shares = [share(batch, place.num_workers, rank) for rank in range(place.num_workers)]
    found: dict[tuple[Device, float, int], tuple[StepTimes, float, int]] = {}
    for rank, samples in enumerate(shares):
        device, speed = place.device(rank), place.speed(rank)
        if (device, speed, samples) not in found:
            times = (_bucket_times if buckets else step_times)(workload, device, samples, model)
            found[device, speed, samples] = (times, speed, samples)
    times, speed, samples = max(found.values(), key=lambda entry: entry[0].total / entry[1])
    backward = tuple(seconds / speed for seconds in times.backward)
    forwards = tuple(seconds / speed for seconds in times.forward)
    return Compute(sum(times.forward) / speed, forwards, backward, times.update / speed, samples)


def speeds(workload: Workload, place: Placement, batch: int, model: ComputeModel) -> list[float]:
    """Samples per second of each worker alone with its equal share of the batch."""
    found = []
    for rank in range(place.num_workers):
        samples = share(batch, place.num_workers, rank)
        found.append(samples * place.speed(rank) / step_times(workload, place.device(rank), samples, model).total)
    return found


_known: Memo[StepTimes] = Memo(512)


def _bucket_times(workload: Workload, device: Device, samples: float, model: ComputeModel) -> StepTimes:
    """`step_times` where each gradient is read and written once more, when it moves into its bucket in backward."""

    def make() -> StepTimes:
        return _with_buckets(step_times(workload, device, samples, model), workload, device, model)

    return _known.get((workload, device, samples, Same(model)), make)


def _with_buckets(times: StepTimes, workload: Workload, device: Device, model: ComputeModel) -> StepTimes:
    backward = []
    for seconds, layer in zip(times.backward, workload.layers, strict=True):
        nbytes = 0 if layer.name == UNUSED else sum(p.numel for p in layer.parameters) * workload.element_size
        moving = Work("copy", 0.0, 2 * nbytes, workload.dtype, len(layer.parameters))
        backward.append(seconds + (model.seconds(moving, device) if nbytes else 0.0))
    return StepTimes(times.forward, tuple(backward), times.update)


def native_collective(place: Placement, kind: str, numel: int, workload: Workload) -> tuple[float, tuple[Traffic, ...]]:
    """Seconds of a backend's own collective of so many elements, and what each worker sends in it."""
    return placed.native_collective(place, kind, numel * workload.element_size, workload.element_size)


def native_all_reduce(place: Placement, numel: int, workload: Workload) -> tuple[float, tuple[Traffic, ...]]:
    """`native_collective` for an all-reduce."""
    return native_collective(place, "all_reduce", numel, workload)


def own_collective(
    place: Placement, kind: str, algorithm: str, numel: int, workload: Workload, model: ComputeModel
) -> tuple[float, tuple[Traffic, ...]]:
    """Seconds of a collective written in sends and receives, and what each worker sends in it.

    Args:
        kind, algorithm, numel: see `geartrain.cost.own_collectives`.
    """
    call = (kind, algorithm, numel, workload.element_size, place.nodes[: place.num_workers])
    asked = ("own collective", *call, workload.dtype, Same(model))
    if asked not in place.known:
        seconds = sum(_stage_time(stage, place, workload, model) for stage in own_collectives.stages(*call))
        place.known[asked] = (seconds, own_collectives.traffic(*call))
    found: tuple[float, tuple[Traffic, ...]] = place.known[asked]
    return found


def _stage_time(stage: own_collectives.Stage, place: Placement, workload: Workload, model: ComputeModel) -> float:
    """Seconds of rounds alike: the messages of a round at once, then adding what has arrived."""
    seconds = travel(place, stage.messages)
    if stage.adds:
        arrived = [(target, nbytes // workload.element_size) for _, target, nbytes in stage.messages]
        seconds += max((reduce_time(place, *one, workload, model) for one in arrived), default=0.0)
    return stage.count * seconds


def local_updates(
    workload: Workload,
    place: Placement,
    compute: Compute,
    model: ComputeModel,
    *,
    period: int,
    hidden_steps: int,
    merge: Merge,
    notes: Sequence[str] = (),
) -> Cost:
    """The mean step of a method that averages models every `period` steps, in one all-reduce.

        round = period * t_c + merge + max(0, A - hidden_steps * t_c),    t_c a step, A the all-reduce

    Args:
        compute: of the slowest worker.
        hidden_steps: steps that are taken while an average travels.
        merge: what averaging moves in memory.
    """
    step = compute.gradient + compute.update
    seconds, sent = native_all_reduce(place, workload.num_parameters, workload)
    exposed = max(0.0, seconds - hidden_steps * step)
    merging = passes_time(place, merge.passes, merge.kernels, workload, model) if place.num_workers > 1 else 0.0
    return Cost(
        compute=step + merging / period,
        exposed_communication=exposed / period,
        hidden_communication=(seconds - exposed) / period,
        sent=tuple(traffic.per(period) for traffic in sent),
        memory=worker_memory(
            workload, compute.samples, gradients="fresh", averaging=merge.copies * workload.gradient_bytes
        ),
        notes=tuple(notes),
    )


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


def passes_time(place: Placement, passes: float, kernels: int, workload: Workload, model: ComputeModel) -> float:
    """Seconds in which the slowest worker reads or writes all parameters so many times, in so many kernels."""
    nbytes = passes * workload.num_parameters * workload.element_size
    work = Work("merge", flop=0.0, nbytes=nbytes, dtype=workload.dtype, num_kernels=kernels)
    return slowest_time(work, place, model)


def slowest_time(work: Work, place: Placement, model: ComputeModel) -> float:
    """Seconds of a piece of work on the worker that takes longest for it."""
    return max(work_time(work, place, rank, model) for rank in place.unlike)


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


def services_match(place: Placement, services: Sequence[ServicePlace]) -> bool:
    """Whether a placement has exactly these services."""
    return tuple(place.services) == tuple(services)
