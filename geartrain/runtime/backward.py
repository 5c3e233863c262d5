"""One worker's forward and backward, as all methods that exchange gradients do it."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from geartrain.runtime.buckets import GradientBuckets, trainable
from geartrain.runtime.worker import Batch, Task


class StepBuckets(Protocol):
    """Where backward leaves the gradients: `GradientBuckets`, or who has them."""

    def taint(self, parameter: nn.Parameter, value: Tensor) -> None: ...

    def flush(self) -> None: ...


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`."""
    return Batch(batch.inputs.to(device), batch.targets.to(device), batch.weight)


def backward(task: Task, model: nn.Module, batch: Batch, buckets: GradientBuckets, witness: nn.Parameter) -> Tensor:
    """Leave this worker's share of the gradient of the global batch in the buckets.

        g_i = weight_i * d(mean loss of worker i)/dw,    so that sum_i g_i is the gradient of the mean over the global
        batch

    Args:
        witness: of the model, see `witness_of`; it carries a loss that is not finite to all workers.

    Returns:
        The mean loss over the worker's samples, a scalar without a graph.
    """
    buckets.begin()
    return backward_from(task.loss(model, batch), batch.weight, buckets, witness)


def backward_from(loss: Tensor, weight: float, buckets: StepBuckets, witness: nn.Parameter) -> Tensor:
    """What `backward` does from the loss on, for methods that have something to do between forward and backward."""
    # loss - loss is 0, or NaN where the loss is NaN or infinite. It goes, without a look at the number, into the
    # gradient element that `is_poisoned` looks at, so all workers stop in the same step; no message is needed for it.
    buckets.taint(witness, loss.detach() - loss.detach())
    loss.backward(gradient=torch.full_like(loss, weight))
    buckets.flush()
    return loss.detach()


def is_poisoned(witness: nn.Parameter) -> bool:
    """Whether some worker's loss was not finite in the step that was just taken."""
    return not math.isfinite(witness.detach().view(-1)[0].item())


def witness_of(model: nn.Module) -> nn.Parameter:
    """The last trainable parameter that has elements. Find it once: walking through a model takes its time."""
    return [parameter for parameter in trainable(model) if parameter.numel()][-1]
