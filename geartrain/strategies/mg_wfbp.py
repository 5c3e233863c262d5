"""MG-WFBP: gradients are all-reduced during backward, in groups that are merged by what a message costs to start.

    measured:  r_k when the gradient of tensor k is there;  a + b n for a message of n bytes
    merge:     tensor k+1 joins the group of k if it is ready before that group would have gone, and either the wire is
               busy until then or waiting takes less than a             (`geartrain.exchange.fusion`)
    then:      each group is all-reduced when its last member is ready, one after another

The first step sends everything in one message after backward, and then measures messages. After the second one, which
is warm, gradients are merged anew by the times that it took. What was measured is averaged over the workers, so that
all of them merge alike.

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247, as in the
authors' code. Limits: the weights are those of `synchronous`; with a = 0 it merges only while the wire is busy, with a
large a it is one message (BSP).
Differs from the paper: tensors under 8192 elements are not merged in any case; a and b are measured in the run instead
of taken from a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Cost, Traffic
from geartrain.exchange.all_reduce import begin_all_reduce
from geartrain.exchange.fusion import merged_groups
from geartrain.exchange.pipeline import BucketCost
from geartrain.runtime.attachment import Alone, Attachment, GradientAttachment, Loop
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, Layout, bucket_layouts, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.bucket_times import groups_cost
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import render
from geartrain.workload.spec import Workload

MEASURED = 2
"""So many first steps are measured."""

_PROBES = 5


@dataclass(frozen=True, kw_only=True)
class MGWFBP(Strategy):
    """Merged-gradient wait-free backpropagation.

        groups from measured ready times and message costs, each all-reduced when its last gradient is there

    Costs, per worker and step, for M bytes of gradients on W workers by a ring: 2 M (W - 1)/W bytes in 2 (W - 1)
    messages per group. Once: two all-reduces of 8 bytes per tensor, and twelve to measure what a message costs.

        T = max(t_f + t_b, end of the last group) + t_u

    Use it where messages cost much to start and layers are many: it sends no more of them than pay. On a noisy machine
    the two measured steps may be no good ones; `synchronous` with a bucket size of one's own depends on no measurement.

    Example:
        >>> str(MGWFBP())
        'mg_wfbp'

    Source: Shi et al., 2021, arXiv 2005.13247; the rule: Shi, Chu, Li, 2019, arXiv 1811.11141, by its code.
    """

    name: ClassVar[str] = "mg_wfbp"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(attachable=True)

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return _MergingWorker(ctx, task)

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        return Alone() if ctx.num_workers == 1 else _MergingLoop(ctx, loop)

    def limits(self) -> Sequence[Limit]:
        return (Limit(MGWFBP(), "equals", Synchronous()), Limit(MGWFBP(), "equals", Single(), num_workers=1))

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        compute = closed_forms.slowest(workload, place, batch, model)
        if place.num_workers == 1:
            memory = closed_forms.worker_memory(workload, compute.samples, gradients="moved")
            return Cost(compute=compute.gradient + compute.update, sent=(Traffic(),), memory=memory)
        size = workload.element_size

        def one(shapes: tuple[torch.Size, ...], dtype: torch.dtype) -> BucketCost:
            nbytes = sum(shape.numel() for shape in shapes) * size
            seconds, sent = native_collective(place, "all_reduce", nbytes, size)
            return BucketCost(encode=0.0, wire=seconds, decode=0.0, sent=sent)

        order = [k for k in reversed(range(len(workload.parameters))) if workload.parameters[k].numel]
        nbytes = [workload.parameters[k].numel * size for k in order]
        ready = _ascending(closed_forms.ready_times(compute, workload, [[k] for k in order]))
        least, most = (native_collective(place, "all_reduce", n, size)[0] for n in (size, sum(nbytes)))
        alpha, beta = _line(least, most, nbytes)
        groups = [[order[j] for j in group] for group in merged_groups(ready, nbytes, alpha, beta)]
        return replace(
            groups_cost(workload, place, compute, groups, True, one), memory=_memory(workload, compute.samples)
        )


def _memory(workload: Workload, samples: int) -> dict[str, int]:
    """Of the first step, which has no optimizer's state yet and no groups, or of a later one.

    After the first one the cost of messages is measured, with one as large as the model.
    """
    first = closed_forms.worker_memory(workload, samples, optimizer=0.0, gradients="moved")
    later = closed_forms.worker_memory(workload, samples, afterwards=workload.gradient_bytes)
    return max(first, later, key=lambda kinds: sum(kinds.values()))


def _line(least: float, most: float, nbytes: Sequence[int]) -> tuple[float, float]:
    """Start-up cost and seconds per byte from the times of the smallest message and of all together."""
    return least, max(0.0, most - least) / sum(nbytes)


def _ascending(moments: Sequence[float]) -> list[float]:
    """A tensor cannot go before those that stand before it."""
    return list(accumulate(moments, max))


class _Measurement:
    """When gradients arrive, what messages cost, and the groups that follow from both."""

    def __init__(self, ctx: Context, parameters: Sequence[nn.Parameter]) -> None:
        self._ctx = ctx
        self._order = [parameter for parameter in reversed(parameters) if parameter.numel()]
        self._empty = [parameter for parameter in parameters if not parameter.numel()]
        self._arrived: dict[nn.Parameter, float] = {}
        self.costs: tuple[float, float] | None = None  # of the smallest message and of all tensors in one

    def begin(self) -> None:
        self._arrived.clear()

    def arrived(self, parameter: nn.Parameter) -> None:
        self._arrived[parameter] = self._ctx.clock.now()

    def layouts(self) -> list[Layout]:
        """The groups, the same on all workers."""
        latest = max(self._arrived.values(), default=0.0)
        moments = [self._arrived.get(parameter, latest) for parameter in self._order]
        nbytes = [parameter.nbytes for parameter in self._order]
        costs = self.costs or self._message_costs(sum(nbytes))
        numbers = [*costs, *(moment - min(moments) for moment in moments)]
        device = "cpu" if self._ctx.meta else self._ctx.device  # times are numbers also where tensors have none
        agreed = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(agreed, group=self._ctx.workers)
        least, most, *ready = [total / self._ctx.num_workers for total in agreed.tolist()]
        self.costs = (least, most)
        groups = merged_groups(_ascending(ready), nbytes, *_line(least, most, nbytes))
        found = [part for group in groups for part in _by_kind([self._order[k] for k in group])]
        return [*found, *(Layout((parameter,), (0, 0)) for parameter in self._empty)]

    def _message_costs(self, nbytes: int) -> tuple[float, float]:
        like = max(self._order, key=lambda parameter: parameter.nbytes)
        whole = torch.zeros(nbytes // like.element_size(), dtype=like.dtype, device=like.device)
        return self._seconds(whole[:1]), self._seconds(whole)

    def _seconds(self, tensor: Tensor) -> float:
        """The least time of some all-reduces; the one before brings the workers together."""
        times = []
        for _ in range(_PROBES + 1):
            before = self._ctx.clock.now()
            dist.all_reduce(tensor, group=self._ctx.workers)
            times.append(self._ctx.clock.now() - before)
        return min(times[1:])


def _by_kind(parameters: Sequence[nn.Parameter]) -> list[Layout]:
    """Layouts of parameters in order, each of one type and device."""
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
    return [Layout(tuple(kind), (0, sum(p.numel() for p in kind))) for kind in kinds.values()]


class _Sums:
    """Sums flat tensors over the workers, in place."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._works: list[dist.Work] = []

    def start(self, flat: Tensor) -> None:
        if self._ctx.num_workers > 1 and flat.numel():
            self._works.append(begin_all_reduce(flat, self._ctx.workers, dist.ReduceOp.SUM))

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works.clear()

    def close(self) -> None:
        """Nothing runs beside."""


def _saved(layouts: Sequence[Layout], parameters: Sequence[nn.Parameter]) -> list[list[int]]:
    index = {parameter: k for k, parameter in enumerate(parameters)}
    return [[index[parameter] for parameter in layout.parameters] for layout in layouts]


def _restored(groups: Sequence[Sequence[int]], parameters: Sequence[nn.Parameter]) -> list[Layout]:
    tensors = [tuple(parameters[k] for k in group) for group in groups]
    return [Layout(group, (0, sum(p.numel() for p in group))) for group in tensors]


class _MergingWorker(Worker):
    def __init__(self, ctx: Context, task: Task) -> None:
        self._ctx, self._task = ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        self._parameters = trainable(self.model)
        self._optimizer = task.optimizer(self._parameters)
        self._sums, self._measurement = _Sums(ctx), _Measurement(ctx, self._parameters)
        self._steps, self._merged = 0, False
        self._layouts = bucket_layouts(self._parameters, None)
        self._buckets = GradientBuckets(self._layouts, lambda bucket: self._sums.start(bucket.flat), overlap=False)
        self._hooks: list[RemovableHandle] = []
        if ctx.num_workers > 1:
            arrived = self._measurement.arrived
            self._hooks = [p.register_post_accumulate_grad_hook(arrived) for p in self._parameters]

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(batches.take(), self._ctx.device)
        self._measurement.begin()
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        self._sums.wait()
        self._optimizer.step()
        self._steps += 1
        if self._hooks:
            self._merge(self._measurement.layouts())
            self._forget_hooks()
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples)

    def _forget_hooks(self) -> None:
        if self._steps >= MEASURED:
            for hook in self._hooks:
                hook.remove()
            self._hooks.clear()

    def _merge(self, layouts: Sequence[Layout]) -> None:
        self._buckets.close()
        self._layouts, self._merged = list(layouts), True
        self._buckets = GradientBuckets(layouts, lambda bucket: self._sums.start(bucket.flat), overlap=True)

    def state_dict(self) -> dict[str, Any]:
        groups = _saved(self._layouts, self._parameters) if self._merged else None
        state = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {**state, "steps": self._steps, "groups": groups, "costs": self._measurement.costs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._steps = state["steps"]
        self._measurement.costs = state["costs"]
        self._forget_hooks()
        if state["groups"] is not None:
            self._merge(_restored(state["groups"], self._parameters))

    def close(self) -> None:
        self._buckets.close()
        self._steps = MEASURED
        self._forget_hooks()


class _MergingLoop(Attachment):
    def __init__(self, ctx: Context, loop: Loop) -> None:
        self._ctx, self._loop = ctx, loop
        self._parameters = trainable(loop.model)
        self._measurement = _Measurement(ctx, self._parameters)
        self._steps, self._merged = 0, False
        self._use(bucket_layouts(self._parameters, None), overlap=False)

    def _use(self, layouts: Sequence[Layout], *, overlap: bool) -> None:
        self._layouts, self._merged = list(layouts), overlap
        self._inner = GradientAttachment(self._loop, layouts, _Sums(self._ctx), self._ctx.workers, overlap=overlap)

    def arrived(self, parameter: nn.Parameter, *, last: bool) -> None:
        self._inner.arrived(parameter, last=last)
        if last and self._steps < MEASURED:
            self._measurement.arrived(parameter)

    def gradients_ready(self) -> None:
        self._inner.gradients_ready()

    def after_step(self) -> None:
        self._steps += 1
        if self._steps <= MEASURED:
            self._use(self._measurement.layouts(), overlap=True)
            self._measurement.begin()

    def state_dict(self) -> dict[str, Any]:
        groups = _saved(self._layouts, self._parameters) if self._merged else None
        return {"steps": self._steps, "groups": groups, "costs": self._measurement.costs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._steps, self._measurement.costs = state["steps"], state["costs"]
        if state["groups"] is not None:
            self._use(_restored(state["groups"], self._parameters), overlap=True)

    def close(self) -> None:
        self._inner.close()
