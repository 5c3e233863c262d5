"""Single: one process, plain SGD, nothing on the wire.

    w <- w - lr * g(w)        with the task's optimizer in place of the plain rule

Source: the baseline of every comparison; W = 1 in Alqahtani and Demirbas, 2019, arXiv 1909.02061.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost, Traffic
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Alone, Attachment, Loop
from geartrain.runtime.backward import on_device
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Needs, Paper, Roles, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import PS_P2P_RING
from geartrain.strategies.text import render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class Single(Strategy):
    """One process trains alone.

        w <- w - lr * g(w)

    Costs nothing on the wire: cycle = t_f + t_b + t_u.

    Use it as the reference that the others must agree with. Not for more than one worker: each would train a model of
    its own.

    Example:
        >>> str(Single())
        'single'

    Source: the case W = 1 of Alqahtani and Demirbas, 2019, arXiv 1909.02061.
    """

    name: ClassVar[str] = "single"
    paper: ClassVar[Paper] = PS_P2P_RING
    needs: ClassVar[Needs] = Needs(attachable=True)

    def __str__(self) -> str:
        return render(self)

    def roles(self, num_workers: int) -> Roles:
        _check_alone(num_workers)
        return Roles()

    def bind(self, ctx: Context, task: Task) -> Worker:
        _check_alone(ctx.num_workers)
        return _SingleWorker(ctx, task)

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        _check_alone(ctx.num_workers)
        return Alone()

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        _check_alone(place.num_workers)
        compute = closed_forms.slowest(workload, place, batch, model, buckets=False)
        return Cost(
            compute=compute.gradient + compute.update,
            sent=(Traffic(),) * place.num_ranks,
            memory=closed_forms.worker_memory(workload, compute.samples, gradients="fresh"),
        )


def _check_alone(num_workers: int) -> None:
    if num_workers != 1:
        raise StrategyError(
            f"single trains in one process, not in {num_workers}: they would train apart.\n  use synchronous"
        )


class _SingleWorker(Worker):
    def __init__(self, ctx: Context, task: Task) -> None:
        self._ctx, self._task = ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._optimizer = task.optimizer(trainable(self.model))

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(batches.take(), self._ctx.device)
        self._optimizer.zero_grad()
        loss = self._task.loss(self.model, batch)
        loss.backward()
        self._optimizer.step()
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        self._optimizer.zero_grad()
