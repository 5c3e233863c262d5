"""DeAR: each all-reduce in two halves, the first behind backward, the second behind the next forward.

Modules in forward order lie in groups 1..G: neighbours, up to a threshold. P workers:

    backward     when the gradients of group g are there, and those of g+1..G are under way
                     RS(g):  shard_j <- sum_i weight_i * g_i         on worker j, its P-th part of the group
    step         wait for all RS;  start AG(1)
    forward      before the first module of group g runs
                     wait for AG(g):  all workers get all shards;  start AG(g+1)
                     w_g <- step of the optimizer with the sum       for the parameters of the group

so gradients are gathered, not parameters, and the optimizer's work and state are the same on every worker. When each
of these starts and ends: `geartrain.strategies.dear_cost`.

    t_DeAR = max(t_ff, t_ag) + max(t_bp, t_rs)      divisible transfers, t_rs = t_ag = t_ar / 2 (derived)
    t_WFBP = t_ff + max(t_bp, t_ar)                 at t_bp = 2 t_ff the gain is at most 1.25, at t_ar = 4 t_ff

Paper: Lin Zhang, Shaohuai Shi, Xiaowen Chu, Wei Wang, Bo Li, Chengjian Liu, ICDCS 2023, arXiv 2302.12445; the rules are
those of the authors' code. Limits: any grouping and exchange gives the weights of `synchronous`; one worker: `single`.
Differs from the paper: modules may run in any order, in another one than that of registration with less overlap; a
group is updated as a whole, before its first module; the update that is pending is applied before an evaluation, a
checkpoint and the end (there the last one is lost); sums carry the workers' weights instead of being divided by P;
native halves are padded by less than P elements a group, a ring's not at all; the authors' bounds for the threshold
are 1 to 100 MB in one place and 1 to 256 MB in another: the former are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel, Work, update_work
from geartrain.cost.terms import Cost, Traffic, summed
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Alone, Attachment, Loop
from geartrain.runtime.backward import backward_from, is_poisoned, on_device, witness_of
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.tuner import Tuner
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.dear_cost import Groups, layers_of, module_groups, timeline
from geartrain.strategies.halves import Exchange, Pipeline, Way, faster
from geartrain.strategies.papers import DEAR
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import Size, check_fields, render
from geartrain.workload.spec import Workload

_THRESHOLD = 25 * 2**20
_BOUNDS = (10**6, 10**8)
"""Bytes between which the threshold is tuned."""


@dataclass(frozen=True, kw_only=True)
class DeAR(Strategy):
    """Reduce-scatter behind backward, all-gather of gradients behind the next forward, update just before use.

        start RS(g) = max(r_g, end RS(g+1));   begin of g = max(end of g-1, end AG(g));   start AG(g+1) = begin of g

    Args:
        threshold: bytes below which a group takes the next module; none: one group. 25 MB in the paper's code, here
            25 MiB, as in `synchronous`.
        neighbours: modules in a group, in place of the threshold; 1: no fusion. The paper's code has 4.
        exchange: "native": the backend's halves; "ring": ours in sends and receives; "measured": for each size the
            faster of the two, timed on the group before the first step (gloo's reduce-scatter is slow).
        tune: choose the threshold while training goes on, between 1 and 100 MB, from `threshold` on: 10 trials of 5
            steps, by Bayesian optimisation. Worker 0's choice holds for all.

    Costs, per worker and step, for M bytes of gradients on P workers: 2 M (P - 1)/P bytes in 2 (P - 1) messages a
    group, as an all-reduce; native halves less than 4 P bytes more for each half of a group. One extra copy of the
    gradients and, native, 1/P of one. Tuning: 8 bytes to each worker every 5 steps, 10 times.

    Use it where communicating takes about as long as computing: then it hides in forward too what backward cannot
    hide. Not for an optimizer that looks at all gradients at once, or after clipping by a global norm: the sum is never
    there as a whole, and neither can be noticed. Attached, gradients are None after backward: not with a gradient
    scaler, which looks for infinities there. Not where forward is done for its own sake between steps: the update
    waits for it. Small first groups expose less; large groups save latency.

    Example:
        >>> str(DeAR(neighbours=4, exchange="ring"))
        'dear:neighbours=4,exchange=ring'

    Source: Zhang et al., 2023, arXiv 2302.12445, abstract and authors' code; the closed forms are derived.
    """

    name: ClassVar[str] = "dear"
    paper: ClassVar[Paper] = DEAR
    needs: ClassVar[Needs] = Needs(lanes=True, attachable=True, regroups=True)

    threshold: Size | None = _THRESHOLD
    neighbours: int | None = None
    exchange: Exchange = "native"
    tune: bool = False

    def __post_init__(self) -> None:
        check_fields(self, threshold=1, neighbours=1)
        if self.neighbours is not None and (self.threshold != _THRESHOLD or self.tune):
            raise StrategyError(
                f"dear: neighbours={self.neighbours} says what a group is, and so does a threshold.\n"
                "  give neighbours alone, or threshold and tune without it"
            )
        if self.tune and not (self.threshold and _BOUNDS[0] <= self.threshold <= _BOUNDS[1]):
            raise StrategyError("dear: tune=true needs a threshold to start from, between 1 MB and 100 MB")

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return Single().bind(ctx, task) if ctx.num_workers == 1 else _DeARWorker(self, ctx, task)

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        return Alone() if ctx.num_workers == 1 else _DeARAttachment(self, ctx, loop)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(DeAR(), "equals", Synchronous()),
            Limit(DeAR(threshold=None), "equals", Synchronous()),
            Limit(DeAR(neighbours=1), "equals", Synchronous()),
            Limit(DeAR(neighbours=1, exchange="ring"), "equals", Synchronous(exchange="ring")),
            Limit(DeAR(threshold=None, exchange="ring"), "equals", Synchronous(exchange="ring")),
            Limit(DeAR(), "equals", Single(), num_workers=1),
        )

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        return states[0]

    # --- closed form ------------------------------------------------------------------------------------------------

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        if place.num_workers == 1:
            return Single().cost(workload, place, batch, model)
        compute = closed_forms.slowest(workload, place, batch, model)
        groups = module_groups(workload, self.threshold if self.neighbours is None else None, self.neighbours)
        numels = [sum(workload.parameters[i].numel for i in group) for group in groups]
        halves = {numel: self._halves(numel, workload, place, model) for numel in set(numels)}
        parts = [halves[numel] for numel in numels]
        update = [_update_time(group, workload, place, model) for group in groups]
        scatter, gather = [part.scatter for part in parts], [part.gather for part in parts]
        rows = Groups(layers=layers_of(workload, groups), scatter=scatter, gather=gather, update=update)
        times = timeline(compute.forwards, compute.backward, rows)
        return Cost(
            compute=times.seconds - times.exposed,
            exposed_communication=times.exposed,
            hidden_communication=sum(scatter) + sum(gather) - times.exposed,
            sent=summed((part.sent for part in parts), place.num_ranks),
            memory=closed_forms.worker_memory(workload, compute.samples, shards=sum(part.shard for part in parts)),
            notes=(f"{len(groups)} group(s), their halves one after another", *self._assumed(parts)),
        )

    def _halves(self, numel: int, workload: Workload, place: Placement, model: ComputeModel) -> _Pair:
        """The halves of one group, in the way that is asked for; for "measured" the one that wins by closed forms."""
        workers = place.num_workers
        ways: dict[Way, _Pair] = {}
        if self.exchange != "ring":
            padded = numel + -numel % workers
            scatter, first = closed_forms.native_collective(place, "reduce_scatter", padded, workload)
            gather, second = closed_forms.native_collective(place, "all_gather", padded, workload)
            sent = tuple(a + b for a, b in zip(first, second, strict=True))
            ways["native"] = _Pair("native", scatter, gather, sent, padded // workers * workload.element_size)
        if self.exchange != "native":
            scatter, _ = closed_forms.own_collective(place, "reduce_scatter", "ring", numel, workload, model)
            gather, _ = closed_forms.own_collective(place, "all_gather", "ring", numel, workload, model)
            # As in an all-reduce, worker r ends the first half with chunk r + 1.
            _, sent = closed_forms.own_collective(place, "all_reduce", "ring", numel, workload, model)
            ways["ring"] = _Pair("ring", scatter, gather, sent, 0)
        return ways[faster({way: halves.scatter + halves.gather for way, halves in ways.items()})]

    def _assumed(self, parts: Sequence[_Pair]) -> list[str]:
        notes = []
        if self.exchange == "measured":
            rings = sum(part.way == "ring" for part in parts)
            notes.append(f"exchange=measured: ring for {rings} group(s), by closed forms; a run takes what it times")
        if self.tune:
            notes.append("tune=true: the threshold that tuning starts from; not the messages of tuning")
        return notes


@dataclass(frozen=True)
class _Pair:
    """Both halves of one group's all-reduce: seconds of each, what each worker sends, bytes of its shard."""

    way: Way
    scatter: float
    gather: float
    sent: tuple[Traffic, ...]
    shard: int


def _update_time(group: Sequence[int], workload: Workload, place: Placement, model: ComputeModel) -> float:
    """Seconds of a group's update on the slowest worker."""
    part = update_work(workload, sum(workload.parameters[i].numel for i in group))
    # A fused update launches the same kernels whatever it is given, one that is not so many for each tensor.
    per_tensor = workload.update_kernels // len(workload.parameters)
    kernels = per_tensor * len(group) or workload.update_kernels
    work = Work(part.name, part.flop, part.nbytes, part.dtype, kernels)
    return closed_forms.slowest_time(work, place, model)


def _pipeline(strategy: DeAR, ctx: Context, model: nn.Module, optimizer: Optimizer) -> Pipeline:
    return Pipeline(
        ctx,
        model,
        optimizer,
        threshold=strategy.threshold,
        neighbours=strategy.neighbours,
        exchange=strategy.exchange,
        tuner=Tuner(*_BOUNDS, start=float(strategy.threshold or 0)) if strategy.tune else None,
    )


class _DeARWorker(Worker):
    def __init__(self, strategy: DeAR, ctx: Context, task: Task) -> None:
        self._ctx, self._task = ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        self._optimizer = task.optimizer(trainable(self.model))
        self._pipeline = _pipeline(strategy, ctx, self.model, self._optimizer)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._made) for parameter in self._pipeline.parameters
        ]

    def _made(self, parameter: Any) -> None:
        self._pipeline.arrived(parameter)

    def step(self, batches: Batches) -> StepResult:
        ctx, pipeline = self._ctx, self._pipeline
        batch = on_device(batches.take(), ctx.device)
        pipeline.buckets.begin()
        loss = self._task.loss(self.model, batch)
        if pipeline.waits(self._witness):
            pipeline.settle_unused()
        if not ctx.meta and is_poisoned(self._witness):
            # Some worker's loss was not finite in the step before, and it is gone by now.
            return StepResult(None, batch.num_samples, updates=0)
        mean = backward_from(loss, batch.weight, pipeline, self._witness)
        pipeline.end_step()
        value = None if ctx.meta else mean.item()
        if value is not None and not math.isfinite(value):
            pipeline.settle()  # the others wait for this worker's shards before they hear of it
        return StepResult(value, batch.num_samples)

    def settle(self) -> None:
        self._pipeline.settle()

    def state_dict(self) -> dict[str, Any]:
        self._pipeline.settle()
        state = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
        return {**state, **_tuning(self._pipeline)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pipeline.forget()
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        _go_on_tuning(self._pipeline, state)

    def finish(self) -> None:
        self._pipeline.settle()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._pipeline.close()


def _tuning(pipeline: Pipeline) -> dict[str, Any]:
    return {"tuner": pipeline.tuner.state_dict()} if pipeline.tuner else {}


def _go_on_tuning(pipeline: Pipeline, state: dict[str, Any]) -> None:
    if pipeline.tuner and "tuner" in state:  # not in the state of a worker that trained alone
        pipeline.tuner.load_state_dict(state["tuner"])
        pipeline.use_threshold(pipeline.tuner.value)


class _DeARAttachment(Attachment):
    """In a loop of the user's: gradients are None after backward, for what is in them then is nobody's sum."""

    owns_step: ClassVar[bool] = True

    def __init__(self, strategy: DeAR, ctx: Context, loop: Loop) -> None:
        self._ctx, self._loop = ctx, loop
        self._pipeline = _pipeline(strategy, ctx, loop.model, loop.optimizer)
        self._open = self._exchanged = False

    def arrived(self, parameter: nn.Parameter, *, last: bool) -> None:
        if last:
            self._begin()
        self._pipeline.arrived(parameter, last=last)

    def gradients_ready(self) -> None:
        self._begin()
        parameters = self._pipeline.parameters
        used = [parameter.grad is not None for parameter in parameters]
        self._pipeline.flush()
        if self._loop.skip_unused:
            anywhere = torch.tensor(used, dtype=torch.uint8, device=parameters[0].device)
            dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self._ctx.workers)
            flags = zip(parameters, anywhere.tolist(), strict=True)
            self._pipeline.unused = frozenset(parameter for parameter, flag in flags if not flag)
        self._pipeline.wait()
        for parameter in parameters:
            parameter.grad = None
        self._open, self._exchanged = False, True

    def _begin(self) -> None:
        if not self._open:
            self._open, self._pipeline.weight = True, self._loop.share()
            self._pipeline.buckets.open()

    def step(self, take: Callable[[], Any]) -> None:
        if self._exchanged:  # a loop may step before its first backward
            self._pipeline.end_step()
            self._exchanged = False

    def settle(self) -> None:
        self._pipeline.settle()

    def state_dict(self) -> dict[str, Any]:
        self._pipeline.settle()
        return _tuning(self._pipeline)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._pipeline.forget()
        _go_on_tuning(self._pipeline, state)

    def finish(self) -> None:
        self._pipeline.settle()

    def close(self) -> None:
        self._pipeline.close()
