"""ABS-SGD: while the sum of the last gradients travels, every worker computes on, as many micro-batches as it can.

    round t, on worker i, weights w_t, the same everywhere:
        start to sum (G_i, n_i) of round t-1 over the workers;   G_i, n_i <- 0
        repeat: G_i <- G_i + sum over the next micro-batch of grad(w_t),   n_i <- n_i + its samples
            until every worker has its sum and `least` micro-batches
        w_{t+1} <- w_t - lr * sum_i G_i / sum_i n_i          gradients at w_{t-1}: a delay of exactly one round

Paper: Xin Zhou, Ling Chen, Houming Wu, 2023, arXiv 2308.15164, of which the abstract was read: computing during the
sum, open batches and the delay of one are its own; when a round ends is our reading. Limits: one worker with most = 1
is SGD whose gradients are one step late (a test, as no other method here is that).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.cluster.placement import Placement
from geartrain.collectives.lane import CollectiveLane
from geartrain.cost.compute import ROOFLINE, ComputeModel, step_times
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.backward import on_device, witness_of
from geartrain.runtime.buckets import deal, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import ABS_SGD
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class ABSSGD(Strategy):
    """Open batches: nobody waits for the sum, and nobody for a slower worker by more than a micro-batch.

        w_{t+1} <- w_t - lr * sum_i G_i / sum_i n_i,     G_i: sum of n_i per-sample gradients at w_{t-1}

    Args:
        micro_batch: samples of a micro-batch, the grain of the open batch.
        least: micro-batches of each worker in a round, at least.
        most: micro-batches of each worker in a round, at most: where the sum takes long, batches would become as large;
            a worker that has them waits.
        target: samples of all workers together that a round needs, if any; the workers tell each other their counts
            until they have them.
        rate: factor of the task's learning rate, above 0. A delay of one bears half of what SGD does, and less with
            momentum.

    Costs, per worker and round, for M bytes of gradients: an all-reduce of M bytes and a count, 2 (W - 1)/W M in a
    ring, and one of 8 bytes (one more for each time that `target` is not reached). Two gradients are kept.

        round = max(time of the sum, `least` micro-batches of the slowest worker) + up to a micro-batch
        samples of worker i in a round = micro_batch * floor(round / its time for one), at most micro_batch * most

    Use it where devices differ in speed, or the sum takes about as long as computing. A round is a step of the record:
    its samples are what came of it, not `--batch`. Not for slow wires with a large model (batches of thousands), nor
    for a learning rate above half of what SGD bears: with a delay of one, lr * curvature must stay below 1.

    Example:
        >>> str(ABSSGD(micro_batch=16))
        'abs_sgd:micro_batch=16'

    Source: Zhou et al., 2023, arXiv 2308.15164 (abstract); closed forms derived.
    """

    name: ClassVar[str] = "abs_sgd"
    paper: ClassVar[Paper] = ABS_SGD
    needs: ClassVar[Needs] = Needs(lanes=True)

    micro_batch: int = 8
    least: int = 1
    most: int = 64
    target: int | None = None
    rate: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, micro_batch=1, least=1, most=self.least, target=1)
        if not 0 < self.rate < math.inf:
            raise StrategyError(f"abs_sgd: rate={self.rate!r} cannot train; give a finite number above 0")

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return _OpenBatchWorker(self, ctx, task)

    def limits(self) -> Sequence[Limit]:
        return ()

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        workers = place.num_workers
        grains = [self._grain(rank, workload, place, model) for rank in range(workers)]
        nbytes = (workload.num_parameters + 1) * workload.element_size
        seconds, sums = native_collective(place, "all_reduce", nbytes, workload.element_size)
        asking, asks = native_collective(place, "all_reduce", 8, 4)
        update = closed_forms.slowest(workload, place, workers, model).update
        # A worker asks at the end of a micro-batch, and answers come while it computes the next one.
        asked = [self._boundary(max(seconds, self.least * grain), grain) * grain for grain in grains]
        answered = max(asked) + asking
        counts = [min(self.most, self._boundary(answered, grain)) for grain in grains]
        ends = [count * grain for count, grain in zip(counts, grains, strict=True)]
        end = max(answered, *ends)
        exposed = max(0.0, seconds - min(ends))
        return Cost(
            compute=min(ends) + update,
            exposed_communication=exposed,
            wait=end - exposed - min(ends),
            hidden_communication=seconds - exposed,
            sent=tuple(one + other for one, other in zip(sums, asks, strict=True)),
            memory=closed_forms.worker_memory(workload, self.micro_batch, sent=workload.gradient_bytes),
            notes=(
                f"a round, in which workers use {self._samples(counts)} samples; one more count for each missed target",
            ),
        )

    def _grain(self, rank: int, workload: Workload, place: Placement, model: ComputeModel) -> float:
        """Seconds of one micro-batch on one worker."""
        times = step_times(workload, place.device(rank), self.micro_batch, model)
        return (sum(times.forward) + sum(times.backward)) / place.speed(rank)

    def _boundary(self, moment: float, grain: float) -> int:
        """Micro-batches until the first of them ends that does so at `moment` or later; never more than `most`."""
        return min(self.most, math.ceil(moment / grain * (1 - 1e-9)))

    def _samples(self, counts: Sequence[int]) -> str:
        return " + ".join(str(count * self.micro_batch) for count in counts)


def throughput_gain(speeds: Sequence[float], communication: float) -> float:
    """Samples per second against synchronous SGD with equal shares, for micro-batches that are short.

        (sum_i v_i) / (W min v) * (1 + A / t)

    Args:
        speeds: v_i of the devices.
        communication: A/t, time of the all-reduce by that of the slowest worker's computing.
    """
    return sum(speeds) / (len(speeds) * min(speeds)) * (1 + communication)


class _Sums:
    """The sum of the per-sample gradients of all samples since `reset`, in flat tensors that autograd adds into.

    The first of them, one per data type, ends with the number of samples.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.flats: list[Tensor] = []
        self._views: list[tuple[nn.Parameter, Tensor]] = []
        for indices in deal([p.nbytes for p in parameters], [(p.dtype, p.device) for p in parameters], None):
            group = [parameters[index] for index in indices]
            numels = [parameter.numel() for parameter in group]
            extra = 0 if self.flats else 1
            flat = torch.zeros(sum(numels) + extra, dtype=group[0].dtype, device=group[0].device)
            parts = flat[: sum(numels)].split(numels)
            self._views += [(p, part.view(p.shape)) for p, part in zip(group, parts, strict=True)]
            self.flats.append(flat)

    @property
    def count(self) -> Tensor:
        """The number of samples."""
        return self.flats[0][-1:]

    def reset(self) -> None:
        for flat in self.flats:
            flat.zero_()

    def install(self) -> None:
        """Become the gradients of the parameters."""
        for parameter, view in self._views:
            parameter.grad = view

    def divide(self) -> None:
        """From sums to means."""
        count = self.count.clone()
        for flat in self.flats:
            flat.div_(count.to(flat.dtype))

    def poison(self, witness: nn.Parameter, value: Tensor) -> None:
        """Add a scalar, zero or NaN, to the element by which workers know a loss that is not finite."""
        view = next(view for parameter, view in self._views if parameter is witness)
        view.view(-1)[0] += value


class _OpenBatchWorker(Worker):
    def __init__(self, strategy: ABSSGD, ctx: Context, task: Task) -> None:
        self._strategy, self._ctx, self._task = strategy, ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        parameters = trainable(self.model)
        self._check_types(parameters)
        self._witness = witness_of(self.model)
        self._optimizer = task.optimizer(parameters)
        for group in self._optimizer.param_groups:
            group["lr"] *= strategy.rate
        self._mine, self._sent = _Sums(parameters), _Sums(parameters)
        self._samples = 0  # in _mine
        self._told = torch.zeros(2, dtype=torch.float32, device=ctx.device)  # samples; whether that is all it may do
        if ctx.meta and strategy.target is not None:
            raise StrategyError(
                f"{strategy} reads how many samples there are, which shapes alone do not say; leave target out"
            )
        self._lanes = [self._lane(name) for name in ("sums", "counts")] if ctx.num_workers > 1 else []

    def _check_types(self, parameters: Sequence[nn.Parameter]) -> None:
        half = next((p.dtype for p in parameters if p.element_size() < 4), None)
        if half is not None:
            raise StrategyError(
                f"{self._strategy} adds up gradients and counts samples in the parameters' type, and {half} counts "
                "only to a few hundred; train in float32"
            )

    def _lane(self, name: str) -> CollectiveLane:
        group = self._ctx.group(range(self._ctx.num_workers))
        assert group is not None, "every worker is in it"
        return CollectiveLane(self._ctx, group, _all_reduce, name)

    def step(self, batches: Batches) -> StepResult:
        sending = self._samples > 0
        if sending:
            self._send()
        loss, samples = self._compute(batches)
        if sending:
            self._apply()
        self._mine.install()
        return StepResult(loss, samples, updates=int(sending), staleness=1.0 if sending else None)

    def _send(self) -> None:
        """Start to sum what the last round has left, and collect anew."""
        self._mine, self._sent = self._sent, self._mine
        self._sent.count.fill_(self._samples)
        self._mine.reset()
        self._samples = 0
        for flat in self._sent.flats if self._lanes else ():
            self._lanes[0].start(flat)

    def _compute(self, batches: Batches) -> tuple[float | None, int]:
        """Micro-batches until the round ends; mean loss, and how many samples there were."""
        strategy, total, count, asking, ended = self._strategy, 0.0, 0, False, False
        self._mine.install()
        while not ended:
            if count < strategy.most:
                loss = self._micro_batch(batches)
                # Reading it waits for the device, ahead of which a worker would take more micro-batches than it need.
                total += 0.0 if self._ctx.meta else loss.item()
                count += 1
            asking, ended = self._ask(count, asking)
        self._samples = count * strategy.micro_batch
        return None if self._ctx.meta else total / count, self._samples

    def _micro_batch(self, batches: Batches) -> Tensor:
        """Add the gradients of a micro-batch; its mean loss."""
        size = self._strategy.micro_batch
        batch = on_device(batches.take(size), self._ctx.device)
        loss = self._task.loss(self.model, batch)
        loss.backward(gradient=torch.full_like(loss, size))
        detached = loss.detach()
        self._mine.poison(self._witness, detached - detached)
        return detached

    def _ask(self, count: int, asking: bool) -> tuple[bool, bool]:
        """Whether the others have been asked if the round may end, and whether it does: the same answer for all.

        A worker asks once it has its sum and enough micro-batches, and computes on until all have asked. One that may
        compute no more waits.
        """
        samples, full = count * self._strategy.micro_batch, count >= self._strategy.most
        if not self._lanes:
            return False, count >= self._strategy.least and self._enough(samples, full)
        sums, counts = self._lanes
        if full:
            sums.wait()
        if not asking:
            if count < self._strategy.least or not sums.ready():
                return False, False
            self._told[0], self._told[1] = samples, full
            counts.start(self._told)
        if full:
            counts.wait()
        if not counts.ready():
            return True, False
        return False, self._strategy.target is None or self._enough(*self._told.tolist())

    def _enough(self, samples: float, full: float) -> bool:
        target = self._strategy.target
        return target is None or samples >= target or full == self._ctx.num_workers

    def _apply(self) -> None:
        """The sum is there: step with the mean."""
        self._sent.divide()
        self._sent.install()
        self._optimizer.step()

    def finish(self) -> None:
        """Apply what the last round has left."""
        if self._samples:
            self._send()
            for lane in self._lanes:
                lane.wait()
            self._apply()

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "sums": self._mine.flats,
            "samples": self._samples,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for mine, saved in zip(self._mine.flats, state["sums"], strict=True):
            mine.copy_(saved)
        self._samples = state["samples"]

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()
        self._optimizer.zero_grad()


def _all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(flat, group=group)
