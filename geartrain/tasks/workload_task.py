"""`WorkloadTask`: trains a workload's shape, so that a model of any size is simulated for the price of its layer count.

The stand-in model lives on the meta device and has the workload's parameters by name, shape and order. Its forward
charges each layer's work; its backward charges it too and hands out a gradient for each of the layer's parameters, so
that gradients become ready in the order and at the times of the real model. Its optimizer charges the update and runs
no operation, which the engine would see and price: nothing is counted twice.

By default the walk through the layers is recorded once per distinct role and replayed (`geartrain.tasks.walk`): same
times, to the last bit, for a quarter of the real time. Then a thousand ranks run in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.cost.compute import Work, backward_work, forward_work, update_work
from geartrain.errors import TaskError
from geartrain.runtime.charging import Works, charge, charge_all
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import share
from geartrain.tasks.walk import State, Walk, record
from geartrain.torch_private import gradient_hooks, without_dispatch
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


class _Shape:
    """What all stand-ins of a workload share: its stretches, their work, and the walks recorded so far."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.stretches = workload, _stretches(workload)
        kind = workload.gradient_dtype or workload.dtype
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise TaskError(f"workload {workload.name!r} has type {kind}; known are {', '.join(_DTYPES)}")
        self.dtype = dtype
        self._works: dict[int, tuple[_Works, ...]] = {}
        self._forwards: dict[int, Works] = {}
        self._forward_parts: dict[int, tuple[Works, ...]] = {}
        self._walks: dict[tuple[int, tuple[State, ...]], Walk] = {}
        self._checked = False

    def check_order(self, model: nn.Module) -> None:
        """TaskError where no module has the workload's parameters in its order. All its stand-ins are alike."""
        if self._checked:
            return
        for p, (name, _) in zip(self.workload.parameters, model.named_parameters(), strict=True):
            if p.name != name:
                raise TaskError(
                    f"workload {self.workload.name!r} lists {p.name!r} where a module has {name!r}: "
                    "give a module's own parameters before those of its parts"
                )
        self._checked = True

    def works(self, samples: int) -> tuple[_Works, ...]:
        """The work of every stretch."""
        if samples not in self._works:
            workload = self.workload
            self._works[samples] = tuple(
                _Works(
                    first=stretch is self.stretches[0],
                    forward=tuple(forward_work(workload, layer, samples) for layer in stretch.layers),
                    backward=tuple(backward_work(workload, layer, samples) for layer in reversed(stretch.layers)),
                )
                for stretch in self.stretches
            )
        return self._works[samples]

    def forward(self, samples: int) -> Works:
        """All that forward charges."""
        if samples not in self._forwards:
            self._forwards[samples] = Works(tuple(work for part in self.works(samples) for work in part.forward))
        return self._forwards[samples]

    def forward_parts(self, samples: int) -> tuple[Works, ...]:
        """What forward charges, stretch by stretch."""
        if samples not in self._forward_parts:
            self._forward_parts[samples] = tuple(Works(part.forward) for part in self.works(samples))
        return self._forward_parts[samples]

    def walk(self, samples: int, states: tuple[State, ...]) -> Walk:
        """What backward does in a role."""
        walk = self._walks.get((samples, states))
        if walk is None:
            scratch = StandIn(self, recorded=False)
            inputs = torch.empty((samples, 1), device="meta")
            walk = self._walks[samples, states] = record(scratch, states, lambda: scratch(inputs))
        return walk


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


class _Replay(torch.autograd.Function):
    """A whole stand-in as one node of the graph. Gradients reach the parameters without the autograd engine."""

    @staticmethod
    def forward(ctx: Any, model: StandIn, samples: int, start: Tensor) -> Tensor:
        ctx.model, ctx.samples = model, samples
        return torch.empty((), dtype=start.dtype, device=start.device)

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> tuple[None, None, None]:
        ctx.model.replay(ctx.samples)
        return None, None, None


class _Part(nn.Module):
    """A module of the stand-in: running it only lets its hooks see that forward has come to it."""

    def forward(self) -> None:
        return


class StandIn(nn.Module):
    """A model of the workload's parameters that charges the workload's work; the values of its input do not matter.

    Before the work of a layer its modules run, so hooks see forward go by.

    `forward(inputs)` takes any tensor whose first dimension is samples and returns a scalar, the loss.

    Args:
        shape: shared by all of a workload.
        recorded: replay the walk through the layers; otherwise take it, layer by layer.
    """

    def __init__(self, shape: _Shape, recorded: bool) -> None:
        super().__init__()
        self.shape, self._recorded = shape, recorded
        workload, self._own = shape.workload, list[nn.Parameter]()
        modules: dict[str, nn.Module] = {"": self}
        with without_dispatch():  # memory is free, and seeing it takes longer than making it
            for p in workload.parameters:
                path, _, name = p.name.rpartition(".")
                parameter = nn.Parameter(torch.empty(p.shape, dtype=shape.dtype, device="meta"))
                _module(modules, path).register_parameter(name, parameter)
                self._own.append(parameter)
        shape.check_order(self)
        owners = (dict.fromkeys(name.rpartition(".")[0] for name in stretch.names) for stretch in shape.stretches)
        self._parts = [[modules[path] for path in paths if path] for paths in owners]
        # Without a start that wants a gradient, a first stretch without parameters would have no backward.
        self._start = torch.empty((), dtype=shape.dtype, device="meta", requires_grad=True)

    def forward(self, inputs: Tensor) -> Tensor:
        samples = len(inputs)
        if self._recorded and all(_is_plain(p, self.shape.dtype) for p in self._own):
            self._pass(samples)
            replayed: Tensor = _Replay.apply(self, samples, self._start)  # type: ignore[no-untyped-call]
            return replayed
        signal, parameters = self._start, dict(self.named_parameters())
        rows = zip(self._parts, self.shape.stretches, self.shape.works(samples), strict=True)
        for parts, stretch, works in rows:
            for part in parts:
                part()
            own = (parameters[name] for name in stretch.names)
            signal = _Charge.apply(works, signal, *own)  # type: ignore[no-untyped-call]
        return signal

    def _pass(self, samples: int) -> None:
        """Forward as recorded; where nobody watches, all of it at once."""
        if not any(part._forward_pre_hooks or part._forward_hooks for parts in self._parts for part in parts):
            charge_all(self.shape.forward(samples))
            return
        for parts, works in zip(self._parts, self.shape.forward_parts(samples), strict=True):
            for part in parts:
                part()
            charge_all(works)

    def replay(self, samples: int) -> None:
        """Backward as recorded."""
        parameters = self._own
        states = tuple([(p.requires_grad, p.grad is not None) for p in parameters])
        walk = self.shape.walk(samples, states)
        for works, position in walk.stops:
            if works.items:
                charge_all(works)
            parameter = parameters[position]
            if (parameter.grad is not None) is not states[position][1]:
                raise TaskError(
                    "a gradient came or went by another hand during backward, which a recorded walk cannot know;\n"
                    "  use WorkloadTask(workload, recorded=False)"
                )
            if parameter.grad is None:
                with without_dispatch():
                    parameter.grad = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
            for hook in gradient_hooks(parameter):
                hook(parameter)
        if walk.rest.items:
            charge_all(walk.rest)


def _module(modules: dict[str, nn.Module], path: str) -> nn.Module:
    """The part of this name, made where it is missing."""
    if path not in modules:
        above, _, name = path.rpartition(".")
        modules[path] = _Part()
        _module(modules, above).add_module(name, modules[path])
    return modules[path]


def _is_plain(parameter: nn.Parameter, dtype: torch.dtype) -> bool:
    """Whether a parameter is as it was made; one with hooks of its own on its gradient or of another type is not."""
    return parameter.dtype == dtype and not parameter._backward_hooks


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
                    with without_dispatch():
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
        recorded: walk through the layers once per distinct role and replay that; off, every rank walks in every step,
            which gives the same times. `torch.autograd.grad` finds gradients only when it is off.

    When to use: to simulate how long steps take. There is no loss and no metric to look at.

        WorkloadTask(get_workload("resnet50")).model(seed=0)
    """

    def __init__(self, workload: Workload, *, recorded: bool = True) -> None:
        self.workload, self.recorded, self._shape = workload, recorded, _Shape(workload)
        self.name, self.source = workload.name, workload.source  # type: ignore[misc]

    def model(self, seed: int) -> StandIn:
        return StandIn(self._shape, self.recorded)

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
