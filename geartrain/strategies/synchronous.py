"""Synchronous: bucketed all-reduce of gradients, beside backward.

    g <- sum_i weight_i * g_i          bucket by bucket, as soon as a bucket's gradients are there
    w <- w - lr * g                    on every worker, with the task's optimizer

Paper: Salem Alqahtani, Murat Demirbas, 2019, arXiv 1909.02061, ring all-reduce. Limits: one bucket without overlap, and
any exchange, give the same weights; one worker is `single`.
Differs from the paper: there Horovod fuses ready tensors within a time window; here the buckets are fixed before
    training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.collectives.lane import CollectiveLane
from geartrain.collectives.registry import collective
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost, Traffic, summed
from geartrain.runtime.attachment import Alone, Attachment, GradientAttachment, Loop
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, bucket_layouts, deal, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import PS_P2P_RING
from geartrain.strategies.single import Single
from geartrain.strategies.text import Size, check_fields, render
from geartrain.workload.spec import Workload

Exchange = Literal["native", "ring", "halving_doubling", "tree", "hierarchical"]


@dataclass(frozen=True, kw_only=True)
class Synchronous(Strategy):
    """All workers sum their gradients and take the same step.

        g <- sum_i weight_i * g_i,   w <- w - lr * g

    Args:
        overlap: start a bucket's all-reduce during backward (the paper's ring does); otherwise all buckets after
            backward, one after another.
        bucket_size: bytes with which a bucket is full and closed; none: one bucket for the whole model. 25 MiB is
            chosen, as in PyTorch's DDP; Horovod's default is 64 MB.
        exchange: "native": the backend's all-reduce. The others are written in sends and receives, the same on every
            engine: "ring", and, not in the paper, "halving_doubling" and "tree" for small buckets, "hierarchical" for
            nodes with several workers.

    Costs, per worker and step, for M bytes of gradients on W workers: ring 2 M (W - 1)/W bytes in 2 (W - 1) messages
    per bucket, uneven chunks counted exactly; the others as `geartrain.collectives` says; native what the backend's
    algorithm for that size sends. One extra copy of the gradients.

        T_ring(M) = 2 (W - 1) alpha + 2 (W - 1)/W M/B + (W - 1)/W M gamma
        cycle     = max(t_f + t_b, end of the last bucket) + t_u,   buckets one after another from when each is ready

    Use it first: its traffic does not grow with W. On slow, long wires with many small buckets latency dominates; take
    larger buckets. Batch-norm statistics stay local to each worker, and parameters that got no gradient are updated
    with zero.

    Example:
        >>> str(Synchronous(bucket_size=None, exchange="ring"))
        'synchronous:bucket_size=none,exchange=ring'

    Source: Alqahtani and Demirbas, 2019, arXiv 1909.02061; the closed forms are derived.
    """

    name: ClassVar[str] = "synchronous"
    paper: ClassVar[Paper] = PS_P2P_RING
    needs: ClassVar[Needs] = Needs(lanes=True, attachable=True, regroups=True)

    overlap: bool = True
    bucket_size: Size | None = 25 * 2**20
    exchange: Exchange = "native"

    def __post_init__(self) -> None:
        check_fields(self, bucket_size=1)

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return _SynchronousWorker(self, ctx, task)

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        if ctx.num_workers == 1:
            return Alone()
        layouts = bucket_layouts(trainable(loop.model), self.bucket_size)
        return GradientAttachment(loop, layouts, GradientSum(self, ctx), ctx.workers, overlap=self.overlap)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(Synchronous(bucket_size=None, overlap=False), "equals", Synchronous()),
            *(Limit(Synchronous(exchange=exchange), "equals", Synchronous()) for exchange in get_args(Exchange)[1:]),
            Limit(Synchronous(exchange="ring", overlap=False), "equals", Synchronous()),
            Limit(Synchronous(), "equals", Single(), num_workers=1),
        )

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        return states[0]

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        compute = closed_forms.slowest(workload, place, batch, model)
        parameters, size = workload.parameters, workload.element_size
        dealt = deal([p.numel * size for p in parameters], [0] * len(parameters), self.bucket_size)
        numels = [sum(parameters[index].numel for index in group) for group in dealt]
        parts = [self._bucket_cost(numel, workload, place, model) for numel in numels]
        seconds = [part[0] for part in parts]
        begin = compute.gradient
        ready = closed_forms.ready_times(compute, workload, dealt) if self.overlap else [begin] * len(dealt)
        exposed = max(0.0, closed_forms.one_after_another(ready, seconds) - begin)
        return Cost(
            compute=compute.gradient + compute.update,
            exposed_communication=exposed,
            hidden_communication=sum(seconds) - exposed,
            sent=summed((traffic for _, traffic in parts), place.num_ranks),
            memory=closed_forms.worker_memory(workload, compute.samples, gradients="kept" if self.overlap else "moved"),
            notes=(f"{len(dealt)} bucket(s), exchanged one after another",),
        )

    def _bucket_cost(
        self, numel: int, workload: Workload, place: Placement, model: ComputeModel
    ) -> tuple[float, Sequence[Traffic]]:
        """Seconds of one bucket's all-reduce, and what each rank sends in it."""
        if self.exchange != "native":
            return closed_forms.own_collective(place, "all_reduce", self.exchange, numel, workload, model)
        return closed_forms.native_all_reduce(place, numel, workload)


class GradientSum:
    """Sums flat tensors over the workers, in place and in the order in which they come, as the settings say."""

    def __init__(self, strategy: Synchronous, ctx: Context) -> None:
        self._ctx = ctx
        self._works: list[dist.Work] = []
        self._lane: CollectiveLane | None = None
        self._begin = self._way(strategy)

    def _way(self, strategy: Synchronous) -> Callable[[Tensor], None]:
        ctx = self._ctx
        if ctx.num_workers == 1:
            return lambda flat: None
        if strategy.exchange == "native":
            return self._start_native if strategy.overlap else self._run_native
        function = collective("all_reduce", strategy.exchange, ctx.nodes[: ctx.num_workers])
        if not strategy.overlap:
            return lambda flat: function(flat, ctx.workers)
        group = ctx.group(range(ctx.num_workers))
        assert group is not None, "every worker is in it"
        self._lane = CollectiveLane(ctx, group, function, strategy.exchange)
        return self._lane.start

    def _start_native(self, flat: Tensor) -> None:
        work = dist.all_reduce(flat, group=self._ctx.workers, async_op=True)
        assert work is not None, "every worker is in the group"
        self._works.append(work)

    def _run_native(self, flat: Tensor) -> None:
        dist.all_reduce(flat, group=self._ctx.workers)

    def start(self, flat: Tensor) -> None:
        """Begin to sum; without overlap, sum."""
        self._begin(flat)

    def wait(self) -> None:
        """Until all that was started is summed."""
        for work in self._works:
            work.wait()
        self._works.clear()
        if self._lane is not None:
            self._lane.wait()

    def close(self) -> None:
        """End the lane, if there is one."""
        if self._lane is not None:
            self._lane.close()


class _SynchronousWorker(Worker):
    def __init__(self, strategy: Synchronous, ctx: Context, task: Task) -> None:
        self._ctx, self._task = ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        self._optimizer = task.optimizer(trainable(self.model))
        layouts = bucket_layouts(trainable(self.model), strategy.bucket_size)
        self._sum = GradientSum(strategy, ctx)
        self._buckets = GradientBuckets(layouts, lambda bucket: self._sum.start(bucket.flat), overlap=strategy.overlap)

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(batches.take(), self._ctx.device)
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        self._sum.wait()
        self._optimizer.step()
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        self._buckets.close()
        self._sum.close()
