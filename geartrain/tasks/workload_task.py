"""`WorkloadTask`: trains a workload's shape, so that a model of any size is simulated for the price of its layer count.

The stand-in model lives on the meta device and has the workload's parameters by name, shape and order. Its forward
charges each layer's work; its backward charges it too and hands out a gradient for each of the layer's parameters, so
that gradients become ready in the order and at the times of the real model. Its optimizer charges the update and runs
no operation, which the engine would see and price: nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.cost.compute import Work, backward_work, forward_work, update_work
from geartrain.errors import TaskError
from geartrain.runtime.charging import charge
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import share
from geartrain.workload.spec import UNUSED, Layer, Workload

_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class _Stretch:
    """A layer with parameters and the layers without that follow it: one node of the autograd graph.

    That changes no time: backward goes through the others before it reaches the layer whose gradients it hands out.
    """

    layers: tuple[Layer, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(p.name for layer in self.layers for p in layer.parameters)


def _stretches(workload: Workload) -> list[_Stretch]:
    groups: list[list[Layer]] = []
    for layer in workload.layers:
        if layer.name == UNUSED:
            continue
        if layer.parameters or not groups:
            groups.append([])
        groups[-1].append(layer)
    return [_Stretch(tuple(group)) for group in groups]


@dataclass(frozen=True)
class _Works:
    """What a stretch charges for one batch size, in the order of the charges; `first` when no other comes before it."""

    first: bool
    forward: tuple[Work, ...]
    backward: tuple[Work, ...]


class _Charge(torch.autograd.Function):
    """Passes `signal` on, which only chains the stretches; charges, and makes the gradients of `parameters`."""

    @staticmethod
    def forward(ctx: Any, works: _Works, signal: Tensor, *parameters: Tensor) -> Tensor:
        ctx.works = works
        # Only their shapes are used, so they need not be saved for backward.
        ctx.shapes = [p.shape if p.requires_grad else None for p in parameters]
        for work in works.forward:
            charge(work)
        return torch.empty((), dtype=signal.dtype, device=signal.device)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> tuple[Tensor | None, ...]:
        for work in ctx.works.backward:
            charge(work)
        output: Tensor = outputs[0]
        before = None if ctx.works.first else output  # a gradient of the start would cost an addition per step
        # `torch.empty` because `empty_like` takes twenty times as long on the meta device.
        made = (torch.empty(s, dtype=output.dtype, device="meta") if s is not None else None for s in ctx.shapes)
        return (None, before, *made)


class StandIn(nn.Module):
    """A model of the workload's parameters that charges the workload's work; the values of its input do not matter.

    `forward(inputs)` takes any tensor whose first dimension is samples and returns a scalar, the loss.
    """

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self._workload, self._stretches = workload, _stretches(workload)
        self._works: dict[int, list[_Works]] = {}
        dtype = _DTYPES.get(workload.dtype)
        if dtype is None:
            raise TaskError(f"workload {workload.name!r} has type {workload.dtype}; known are {', '.join(_DTYPES)}")
        for p in workload.parameters:
            owner: nn.Module = self
            *path, name = p.name.split(".")
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, nn.Module())
                owner = owner.get_submodule(part)
            owner.register_parameter(name, nn.Parameter(torch.empty(p.shape, dtype=dtype, device="meta")))
        for p, (name, _) in zip(workload.parameters, self.named_parameters(), strict=True):
            if p.name != name:
                raise TaskError(
                    f"workload {workload.name!r} lists {p.name!r} where a module has {name!r}: "
                    "give a module's own parameters before those of its parts"
                )
        # Without a start that wants a gradient, a first stretch without parameters would have no backward.
        self._start = torch.empty((), dtype=dtype, device="meta", requires_grad=True)

    def forward(self, inputs: Tensor) -> Tensor:
        signal = self._start
        parameters = dict(self.named_parameters())
        for stretch, works in zip(self._stretches, self._works_of(len(inputs)), strict=True):
            own = (parameters[name] for name in stretch.names)
            signal = _Charge.apply(works, signal, *own)  # type: ignore[no-untyped-call]
        return signal

    def _works_of(self, samples: int) -> list[_Works]:
        if samples not in self._works:
            workload = self._workload
            self._works[samples] = [
                _Works(
                    first=stretch is self._stretches[0],
                    forward=tuple(forward_work(workload, layer, samples) for layer in stretch.layers),
                    backward=tuple(backward_work(workload, layer, samples) for layer in reversed(stretch.layers)),
                )
                for stretch in self._stretches
            ]
        return self._works[samples]


class StandInSGD(torch.optim.Optimizer):
    """SGD with momentum on tensors without numbers: has its state, and charges its work for parameters with gradients.

    The real one takes 8 ms on the meta device for the 161 parameters of ResNet-50, more than all the rest of the step.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], workload: Workload, lr: float = 0.1, momentum: float = 0.9
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self._workload = workload

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else closure()
        numel = 0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                numel += p.numel()
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.empty(p.shape, dtype=p.dtype, device="meta")
        if numel:
            charge(update_work(self._workload, numel))
        return loss


class _Sizes(Batches):
    """Batches that have a size and nothing else."""

    def __init__(self, rank: int, num_workers: int, batch: int) -> None:
        if batch < num_workers:
            raise TaskError(f"a global batch of {batch} has less than one sample for each of {num_workers} workers")
        self._share, self._batch = len(share(batch, num_workers, rank)), batch

    def take(self, num_samples: int | None = None) -> Batch:
        count = self._share if num_samples is None else num_samples
        inputs = torch.empty((count, 1), device="meta")
        return Batch(inputs, inputs, count / self._batch)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


class WorkloadTask(Task):
    """Training that has the shape of a workload and no numbers; SGD with momentum.

    Args:
        workload: whose step is pretended.

    When to use: to simulate how long steps take. There is no loss and no metric to look at.

        WorkloadTask(get_workload("resnet50")).model(seed=0)
    """

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.name, self.source = workload.name, workload.source  # type: ignore[misc]

    def model(self, seed: int) -> StandIn:
        return StandIn(self.workload)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return StandInSGD(params, self.workload)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch.inputs)
        return loss

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return _Sizes(rank, num_workers, batch)

    def cuts(self) -> Sequence[str] | None:
        return None
