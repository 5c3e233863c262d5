"""`Preset`: a model whose training step becomes a workload, with the number of parameters that it must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.models.settings import Settings, of_their_kind
from geartrain.models.traced import Model, traced
from geartrain.runtime.tracing import OptimizerFactory
from geartrain.workload.choices import with_skew
from geartrain.workload.spec import Workload

SKEW = "skew"
"""The setting of workloads with look-ups that says how unevenly rows are looked up; it changes no shape."""


@dataclass(frozen=True, kw_only=True)
class Preset:
    """What a named workload is made of.

    Attributes:
        model: makes the model; called where new tensors have shapes only, so it allocates nothing.
        example: makes the input of one sample, or several inputs.
        num_parameters: how many trainable numbers the model has by the literature; checked when it is traced. None:
            nobody said.
        source: where the definition comes from, and the size of a sample.
        loss: from what the model returns to one number.
        optimizer: to count the update; SGD with momentum if left out.
        settings: its own ones, with their defaults (a tuple: all that it may be, the default first). `model` and
            `example` take all of them by name, but for `SKEW`.
    """

    model: Callable[..., nn.Module]
    example: Callable[..., Tensor | tuple[Tensor, ...]]
    num_parameters: int | None
    source: str
    loss: Callable[[Any], Tensor]
    optimizer: OptimizerFactory | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def workload(self, name: str, settings: Settings | None = None) -> Workload:
        """One training step, traced under `name`; takes under ten seconds and no memory for any preset."""
        settings = settings or Settings()
        own = of_their_kind(name.partition(":")[0], settings.own, self.settings)
        skew = own.pop(SKEW, 0.0)
        with torch.device("meta"):
            module, example = self.model(**own), self.example(**own)
        inputs = example if isinstance(example, tuple) else (example,)
        model = Model(module=module, inputs=inputs, loss=self.loss, optimizer=self.optimizer)
        found = traced(model, settings, name=name, source=self.source)
        if self.num_parameters is not None and not settings.own:
            # An assert and no error of the user's: the definition is wrong if the counts differ.
            count = found.num_parameters
            assert count == self.num_parameters, f"{name}: {count} != {self.num_parameters}"
        return with_skew(found, skew) if skew else found


def class_loss(scores: Tensor) -> Tensor:
    """Cross entropy of (..., classes) against labels whose values do not matter."""
    rows = scores.flatten(0, -2)
    return F.cross_entropy(rows, rows.new_empty(len(rows), dtype=torch.long))


def image(size: int = 224) -> Callable[[], Tensor]:
    """Makes one picture of three colours."""
    return lambda: torch.empty(1, 3, size, size)


def tokens(length: int, **others: Any) -> Tensor:
    """One sequence of words; the other settings of a text model do not matter to it."""
    return torch.empty(1, length, dtype=torch.long)


TEXT_SETTINGS: Mapping[str, Any] = {"attention": ("explicit", "fused")}
"""What all text models have beside `length`; see `geartrain.models.attention`."""
