"""PipeSGD: the sum of the last gradients travels while the next ones are computed.

    step t, on worker i, weights x_t, the same everywhere:
        g_i(t)    <- gradient at x_t                          while the sum of g_j(t-1) travels
        x_(t+1)   <- x_t - lr * sum_j p_j * g_j(t-1)          with the optimizer; x_1 = x_0, as nothing has come yet
        sum_j p_j * g_j(t) begins to travel

so a gradient is applied one step late, at every t, and none is lost: the last one is applied at the end.

Paper: Youjie Li and others, 2018, arXiv 1811.03619, recalled, with a pipeline of width 2; a baseline of CoCoD-SGD's
paper. Limits: none here is this rule; with equal shares `abs_sgd` in rounds of one micro-batch of a worker's share is
(a test).
Differs from the paper: workers weigh by their samples, which is the same where all take as many; it compresses what
travels, too, which is left out; one worker alone is as late as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Attachment, Loop
from geartrain.runtime.averaging import FlatSum
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.local_worker import LocalWorker
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import PIPE_SGD
from geartrain.strategies.text import render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class PipeSGD(Strategy):
    """Synchronous SGD whose gradients are one step late, so that their sum travels during a whole step.

        x_(t+1) <- x_t - lr * sum_j p_j * g_j(t-1)

    Costs, per worker and step, for M bytes of gradients on W workers: an all-reduce, with a ring 2 M (W - 1)/W bytes in
    2 (W - 1) messages. Two extra copies of the gradients.

        cycle = max(t_c, A),    t_c a step, A the all-reduce

    Use it where an all-reduce takes about as long as a step, of which `synchronous` can hide a part only. Not with a
    learning rate above half of what SGD bears, or with much momentum: with a delay of one, lr * curvature must stay
    below 1. All workers have the same weights after every step. Attached, what a loop finds in the gradients after
    backward, and may clip, is the sum of the step before; nothing in the first step, and what is applied when the block
    is left is not clipped. Not with a gradient scaler, whose scale is that of another step. Batch-norm statistics stay
    local to each worker, and parameters that got no gradient are updated with zero.

    Example:
        >>> str(PipeSGD())
        'pipe_sgd'

    Source: Li and others, 2018, arXiv 1811.03619, recalled; the closed form is derived.
    """

    name: ClassVar[str] = "pipe_sgd"
    paper: ClassVar[Paper] = PIPE_SGD
    needs: ClassVar[Needs] = Needs(attachable=True)

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return LocalWorker(ctx, task, lambda loop: self.attach(ctx, loop))

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        return _PipeSGD(ctx, loop)

    def limits(self) -> Sequence[Limit]:
        return ()

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        compute = closed_forms.slowest(workload, place, batch, model, buckets=False)
        # Copy into a flat tensor and out of the other one, tensor by tensor.
        copying = closed_forms.passes_time(place, 4, 2 * len(workload.parameters), workload, model)
        # Between two sums, so nothing hides behind it.
        weighing = closed_forms.passes_time(place, 2, 1, workload, model) if place.num_workers > 1 else 0.0
        step = compute.gradient + compute.update + copying
        seconds, sent = closed_forms.native_all_reduce(place, workload.num_parameters, workload)
        exposed = max(0.0, seconds - step)
        return Cost(
            compute=step + weighing,
            exposed_communication=exposed,
            hidden_communication=seconds - exposed,
            sent=sent,
            memory=closed_forms.worker_memory(
                workload, compute.samples, gradients="fresh", travelling=2 * workload.gradient_bytes
            ),
        )


class _PipeSGD(Attachment):
    """Attributes: owns_step, as the last sum is applied after the loop, when no hook may see it."""

    owns_step: ClassVar[bool] = True

    def __init__(self, ctx: Context, loop: Loop) -> None:
        if loop.skip_unused:
            raise StrategyError("pipe_sgd gives parameters that nobody used a gradient of zero; leave out skip_unused")
        self._loop, self._parameters = loop, trainable(loop.model)
        self._sent, self._next = FlatSum(ctx, self._parameters), FlatSum(ctx, self._parameters)
        self._in_flight = False

    def gradients_ready(self) -> None:
        self._next.pack_gradients()
        self._sent.wait()
        self._next.start(self._loop.share())
        self._arrive()
        self._sent, self._next, self._in_flight = self._next, self._sent, True

    def _arrive(self) -> None:
        """What has been summed becomes the gradients; before the first sum there are none."""
        if self._in_flight:
            self._sent.unpack_gradients()
        else:
            for parameter in self._parameters:
                parameter.grad = None

    def finish(self) -> None:
        """Apply what is in flight."""
        if self._in_flight:
            self._sent.wait()
            self._arrive()
            self._in_flight = False
            self._loop.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        self._sent.wait()
        return {"sum": self._sent.flats if self._in_flight else None}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sent.wait()
        self._in_flight = state["sum"] is not None
        if self._in_flight:
            for flat, saved in zip(self._sent.flats, state["sum"], strict=True):
                flat.copy_(saved)
