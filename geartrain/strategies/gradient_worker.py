"""What methods share that make gradients global bucket by bucket: the worker of a task, and its like in a user's loop.

    g <- exchange(weight_i * g_i)   bucket by bucket,    w <- step of the task's optimizer with g

The method's own part is an exchange with a state: residuals, random streams, what it warms up with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from geartrain.runtime.attachment import Attachment, GradientAttachment, Loop
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, Layout, bucket_layouts, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batches, StepResult, Task, Worker


class StatefulExchange(Protocol):
    """A `BucketExchange` that keeps something between steps."""

    def start(self, flat: Tensor) -> None: ...

    def wait(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


Make = Callable[[Sequence[Layout], Optimizer], StatefulExchange]
"""Makes the exchange of these buckets; it may take the optimizer's momentum away."""


class GradientWorker(Worker):
    """Trains a task with global gradients.

    One worker has nobody to send to: it sends nothing and leaves its gradients as they are.

    Args:
        bucket_size: bytes with which a bucket is closed; none: one bucket for all.
        overlap: start a bucket as soon as its gradients are there.
        make: the method's exchange.
    """

    def __init__(self, ctx: Context, task: Task, *, bucket_size: int | None, overlap: bool, make: Make) -> None:
        self._ctx, self._task = ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        self._optimizer = task.optimizer(trainable(self.model))
        layouts = bucket_layouts(trainable(self.model), bucket_size)
        self._exchange = make(layouts, self._optimizer) if ctx.num_workers > 1 else None
        self._buckets = GradientBuckets(layouts, lambda bucket: self._start(bucket.flat), overlap=overlap)

    def _start(self, flat: Tensor) -> None:
        if self._exchange is not None:
            self._exchange.start(flat)

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(batches.take(), self._ctx.device)
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        if self._exchange is not None:
            self._exchange.wait()
        self._optimizer.step()
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        exchange = self._exchange.state_dict() if self._exchange is not None else {}
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), "exchange": exchange}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._exchange is not None:
            self._exchange.load_state_dict(state["exchange"])

    def close(self) -> None:
        self._buckets.close()
        if self._exchange is not None:
            self._exchange.close()


class GradientLoop(Attachment):
    """The same inside a user's loop, on one of several workers; arguments as for `GradientWorker`."""

    def __init__(self, ctx: Context, loop: Loop, *, bucket_size: int | None, overlap: bool, make: Make) -> None:
        layouts = bucket_layouts(trainable(loop.model), bucket_size)
        self._momenta = [(group, group["momentum"]) for group in loop.optimizer.param_groups if "momentum" in group]
        self._exchange = make(layouts, loop.optimizer)
        self._inner = GradientAttachment(loop, layouts, self._exchange, ctx.workers, overlap=overlap)

    def arrived(self, parameter: nn.Parameter, *, last: bool) -> None:
        self._inner.arrived(parameter, last=last)

    def gradients_ready(self) -> None:
        self._inner.gradients_ready()

    def state_dict(self) -> dict[str, Any]:
        return self._exchange.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._exchange.load_state_dict(state)

    def close(self) -> None:
        self._inner.close()
        for group, momentum in self._momenta:
            group["momentum"] = momentum
