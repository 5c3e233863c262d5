"""`Preset`: a model whose training step becomes a workload, with the number of parameters that it must have."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.runtime.tracing import OptimizerFactory, trace_workload
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a named workload is made of.

    Attributes:
        model: makes the model; called where new tensors have shapes only, so it allocates nothing.
        example: makes the input of one sample.
        num_parameters: how many trainable numbers the model has by the literature; checked when it is traced.
        source: where the definition comes from, and the size of a sample.
        loss: from what the model returns to one number.
        optimizer: to count the update; SGD with momentum if left out.
    """

    model: Callable[[], nn.Module]
    example: Callable[[], Tensor]
    num_parameters: int
    source: str
    loss: Callable[[Tensor], Tensor]
    optimizer: OptimizerFactory | None = None

    def workload(self, name: str) -> Workload:
        """One training step, traced under `name`; takes under ten seconds and no memory for any preset."""
        with torch.device("meta"):
            model, example = self.model(), self.example()
        found = trace_workload(model, [example], self.loss, name=name, source=self.source, optimizer=self.optimizer)
        # An assert and no error of the user's: the definition is wrong if the counts differ.
        assert found.num_parameters == self.num_parameters, f"{name}: {found.num_parameters} != {self.num_parameters}"
        return found


def class_loss(scores: Tensor) -> Tensor:
    """Cross entropy of (..., classes) against labels whose values do not matter."""
    rows = scores.flatten(0, -2)
    return F.cross_entropy(rows, rows.new_empty(len(rows), dtype=torch.long))


def image(size: int = 224) -> Callable[[], Tensor]:
    """Makes one picture of three colours."""
    return lambda: torch.empty(1, 3, size, size)


def tokens(length: int) -> Callable[[], Tensor]:
    """Makes one sequence of words."""
    return lambda: torch.empty(1, length, dtype=torch.long)


def adamw(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW that takes all parameters at a time."""
    return torch.optim.AdamW(params, lr=1e-4, foreach=True)
