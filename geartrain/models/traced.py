"""`Model`: a module with all that its training step needs, and the workload that tracing it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.models.settings import Settings
from geartrain.runtime.tracing import OptimizerFactory, trace_workload
from geartrain.workload.choices import checkpointed, with_dtype, with_master_weights
from geartrain.workload.spec import Layer, Workload


@dataclass(frozen=True, kw_only=True)
class Model:
    """A module with all that one training step needs. Its values do not matter, and it may be on the meta device.

    Args:
        module: what is trained.
        inputs: what its forward takes, for any number of samples, samples first in each.
        loss: from what the module returns to one number.
        optimizer: makes the optimizer from parameters; SGD with momentum if left out.

    Use it: to say what `--workload path/to/file.py:function` shall look at; the function returns one.

        Model(module=nn.Linear(4, 2), inputs=[torch.empty(1, 4)], loss=lambda out: out.sum())
    """

    module: nn.Module
    inputs: Sequence[Tensor]
    loss: Callable[[Any], Tensor]
    optimizer: OptimizerFactory | None = None


def sgd(params: Any) -> torch.optim.Optimizer:
    """SGD that takes all parameters at a time."""
    return torch.optim.SGD(params, lr=0.1, foreach=True)


def momentum(params: Any) -> torch.optim.Optimizer:
    """SGD with momentum that takes all parameters at a time."""
    return torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=True)


def adamw(params: Any) -> torch.optim.Optimizer:
    """AdamW that takes all parameters at a time."""
    return torch.optim.AdamW(params, lr=1e-4, foreach=True)


_OPTIMIZERS: Mapping[str, OptimizerFactory] = {"sgd": sgd, "momentum": momentum, "adamw": adamw}
_TWO_BYTES = {"bf16": torch.bfloat16, "bf16_mixed": torch.bfloat16, "fp16": torch.float16}


def traced(model: Model, settings: Settings, *, name: str, source: str) -> Workload:
    """The workload of a model under the settings that every workload has; no memory where the model takes none.

    Args:
        model: whose module may be changed: it is cast where a type of two bytes was asked for.
        settings: `own` is not looked at.
        name, source: of the workload.
    """
    module, inputs = model.module, list(model.inputs)
    dtype = _TWO_BYTES.get(settings.dtype or "")
    if dtype is not None:
        module = module.to(dtype)
        inputs = [one.to(dtype) if one.is_floating_point() else one for one in inputs]
    optimizer = _OPTIMIZERS[settings.optimizer] if settings.optimizer else model.optimizer
    found = trace_workload(module, inputs, model.loss, name=name, source=source, optimizer=optimizer)
    found = replace(found, layers=tuple(_scores_again(layer) for layer in found.layers))
    if settings.dtype == "bf16_mixed":
        found = with_master_weights(found)
    elif settings.dtype == "tf32":
        found = with_dtype(found, "tf32")
    return checkpointed(found, settings.checkpointing)


def _scores_again(layer: Layer) -> Layer:
    """Fused attention computes its scores once more in backward: one of its five products, which no model asks for."""
    flop = sum(
        kernel.count * kernel.flop[1] / 5
        for kernel in layer.backward_kernels
        if "flash_attention_backward" in kernel.op
    )
    return replace(layer, recomputed_flop=flop) if flop else layer
