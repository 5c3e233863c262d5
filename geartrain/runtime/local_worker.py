"""`LocalWorker`: takes steps of its own with the task's optimizer; what it exchanges between them is an attachment.

A method that leaves gradients and steps to the loop, and exchanges something between them, is written once, as an
`Attachment`: it serves an unchanged loop (`geartrain.attach`) and, through this worker, a task.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.runtime.attachment import Attachment, Loop
from geartrain.runtime.backward import on_device
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.same_start import check_equal
from geartrain.runtime.worker import Batch, Batches, StepResult, Task, Worker


class LocalWorker(Worker):
    """Trains on its own samples:  w_i <- step of the optimizer with d(mean loss of worker i)/dw

    All workers start from the same weights, which is checked. A parameter that a batch did not use keeps None as its
    gradient, so the optimizer leaves it alone, as in a plain loop.

    Args:
        ctx: of the rank.
        task: what is trained.
        between: makes the attachment for this worker's loop.
        take: how a step gets its samples; the worker's share of the next global batch unless given.
    """

    def __init__(
        self,
        ctx: Context,
        task: Task,
        between: Callable[[Loop], Attachment],
        take: Callable[[Batches], Batch] = lambda batches: batches.take(),
    ) -> None:
        self._ctx, self._task, self._take = ctx, task, take
        self.model = task.model(ctx.seed).to(ctx.device)
        check_equal(self.model, ctx)
        self._optimizer = task.optimizer(trainable(self.model))
        self._share = 0.0
        self._between = between(Loop(self.model, self._optimizer, 1, lambda: self._share, False))

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(self._take(batches), self._ctx.device)
        self._share = batch.weight
        self._optimizer.zero_grad()
        loss = self._task.loss(self.model, batch)
        loss.backward()
        self._between.gradients_ready()
        self._between.before_step()
        self._between.step(self._optimizer.step)
        self._between.after_step()
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        # The attachment first: it waits for what is in flight.
        between = self._between.state_dict()
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), "between": between}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._between.load_state_dict(state["between"])

    def finish(self) -> None:
        self._between.finish()

    def close(self) -> None:
        self._between.close()
        self._optimizer.zero_grad()
