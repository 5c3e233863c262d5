"""`Workload` from any module: one step on the meta device, seen operation by operation.

Every operation belongs to the leaf module that runs it, or to a layer of its own where no leaf does (a residual sum, a
loss). In backward it belongs to the layer whose forward made the node of the autograd graph that runs it. The step is
traced at two batch sizes; a line through both gives what is fixed and what grows with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from geartrain.cost.compute import Work
from geartrain.errors import TaskError
from geartrain.runtime.chain import parts_of
from geartrain.runtime.memory import Footprint, Watch, memory_shape, tensors_in
from geartrain.runtime.meta import OptimizerFactory as OptimizerFactory
from geartrain.runtime.meta import Step as Step
from geartrain.runtime.meta import on_meta as on_meta
from geartrain.runtime.opcost import FREE, OpCosts, dtype_key
from geartrain.runtime.traced_kernels import Kernels
from geartrain.runtime.untraceable import explained
from geartrain.runtime.worker import Batch, Task
from geartrain.torch_private import DispatchMode
from geartrain.workload.spec import UNUSED, Layer, Parameter, Part, Workload

_BATCHES = (2, 4)  # not 1: a batch of one takes other paths in some operations


@dataclass
class _Sum:
    flop: float = 0.0
    nbytes: float = 0.0
    kernels: int = 0
    works: list[Work] = field(default_factory=list)

    def add(self, work: Work) -> None:
        self.flop += work.flop
        self.nbytes += work.nbytes
        self.kernels += work.num_kernels
        if work.num_kernels:
            self.works.append(work)


@dataclass(eq=False)
class _Record:
    """What one layer did in one traced step; `parameters` are the indices of those that it is the first to use."""

    name: str
    forward: _Sum = field(default_factory=_Sum)
    backward: _Sum = field(default_factory=_Sum)
    activation: int = 0
    parameters: list[int] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not (self.forward.kernels or self.backward.kernels or self.parameters)


class _Graph:
    """Which layer made which node of the autograd graph.

    Holding the nodes keeps their Python objects the same, so that a node met twice is recognised.
    """

    def __init__(self, indices: Mapping[Tensor, int]) -> None:
        self.owners: dict[Any, _Record] = {}
        self._indices = indices

    def claim(self, value: Any, record: _Record) -> None:
        """All nodes behind `value` that have no owner yet belong to `record`."""
        stack = [tensor.grad_fn for tensor in tensors_in(value)]
        while stack:
            node = stack.pop()
            if node is None or node in self.owners:
                continue
            self.owners[node] = record
            variable = getattr(node, "variable", None)  # only a node that accumulates a gradient has one
            if variable is not None and variable in self._indices:
                record.parameters.append(self._indices[variable])
            stack.extend(before for before, _ in node.next_functions)


class _Tracer:
    """One traced step. `current` is the layer that is running."""

    def __init__(self, module: nn.Module, costs: OpCosts) -> None:
        self.records: list[_Record] = []
        self.in_backward = False
        self._costs = costs
        self._module = module
        self._calls: list[tuple[str, _Record]] = []
        trainable = [p for p in module.parameters() if p.requires_grad]
        self._graph = _Graph({p: index for index, p in enumerate(trainable)})
        self._kept = {StorageWeakRef(t.untyped_storage()) for t in (*module.parameters(), *module.buffers())}
        self.memory = Watch(module)
        self.current = self._new("(loss)")

    def _new(self, name: str) -> _Record:
        record = _Record(name)
        self.records.append(record)
        return record

    def run(self, step: Step, samples: int) -> None:
        """Forward and backward of one step."""
        with ExitStack() as stack:
            for name, module in self._module.named_modules():
                for handle in self._watch(name, module):
                    stack.callback(handle.remove)
            stack.enter_context(torch.enable_grad())
            stack.enter_context(saved_tensors_hooks(self._pack, lambda tensor: tensor))
            stack.callback(self.memory.close)
            stack.enter_context(self.memory)
            stack.enter_context(_Operations(self))
            with _Calls(self):
                loss = step(self._module, samples)
            self.claim(loss)
            self._enter_backward(loss)

    def _enter_backward(self, loss: Tensor) -> None:
        if loss.numel() != 1 or loss.grad_fn is None:
            raise TaskError(f"a loss is one number that depends on trainable parameters, not {tuple(loss.shape)}")
        self.in_backward = True
        self.memory.backward_begins()
        for node, record in self._graph.owners.items():
            node.register_prehook(lambda _, record=record: setattr(self, "current", record))
        loss.backward()

    def _watch(self, name: str, module: nn.Module) -> Iterator[Any]:
        leaf = next(module.children(), None) is None

        def before(_: nn.Module, inputs: Any) -> None:
            self.claim(inputs)
            self._calls.append((name, self.current))
            self.current = self._new(name if leaf else _between(name))

        def after(_: nn.Module, inputs: Any, output: Any) -> None:
            self.claim(output)
            self._calls.pop()
            # What follows is a stretch of its own: its backward runs before this module's.
            self.current = self._new(_between(self._calls[-1][0]) if self._calls else "(loss)")

        yield module.register_forward_pre_hook(before)
        yield module.register_forward_hook(after)

    def claim(self, value: Any) -> None:
        self._graph.claim(value, self.current)

    def seen(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> None:
        work = self._costs(func, args, kwargs, out)
        if work is not FREE:
            (self.current.backward if self.in_backward else self.current.forward).add(work)

    def _pack(self, tensor: Tensor) -> Tensor:
        """Counts what is kept for backward, once. It is detached, or it would hold its own graph.

        Weak references are kept, so that the address of a storage that has gone does not come again.
        """
        storage = tensor.untyped_storage()
        ref = StorageWeakRef(storage)
        if ref not in self._kept:
            self._kept.add(ref)
            self.current.activation += storage.nbytes()
        return tensor.detach()


class _Operations(DispatchMode):
    """Sees every operation, below autograd."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._tracer.seen(func, args, kwargs or {}, out)
        return out


class _Calls(TorchFunctionMode):
    """Sees every call of a torch function, above autograd, where results have their nodes."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._tracer.claim(out)
        return out


def _between(parent: str) -> str:
    return f"{parent}.(functional)" if parent else "(functional)"


def trace_step(
    module: nn.Module, step: Step, *, name: str, source: str, optimizer: OptimizerFactory | None = None
) -> Workload:
    """The workload of any training step.

    Args:
        module: on any device; it is not changed.
        step: runs the forward pass of the module that it is given, on the meta device, and returns the loss.
        name, source: of the workload.
        optimizer: makes an optimizer from parameters, to count the update; SGD with momentum if left out.
    """
    costs = OpCosts()
    traces, memory = [], []
    for samples in _BATCHES:
        tracer = _Tracer(on_meta(module), costs)
        with explained(name):
            tracer.run(step, samples)
        traces.append([record for record in tracer.records if not record.empty])
        memory.append(tracer.memory)
    small, large = traces
    if [record.name for record in small] != [record.name for record in large]:
        raise TaskError(f"{name}: the model runs other layers on {_BATCHES[0]} samples than on {_BATCHES[1]}")
    parameters, kernels = _parameters(module), Kernels(_BATCHES)
    layers = [_layer(*pair, parameters, kernels) for pair in zip(_unique(small), large, strict=True)]
    used = {p.index for layer in layers for p in layer.parameters}
    if unused := tuple(p for p in parameters if p.index not in used):
        layers.append(Layer(name=UNUSED, parameters=unused, num_kernels=0, num_backward_kernels=0))
    first = next(p for p in module.parameters() if p.requires_grad)
    workload = Workload(
        name=name,
        source=source,
        layers=tuple(layers),
        dtype=dtype_key(first.dtype),
        element_size=first.element_size(),
        memory=memory_shape(memory[0], memory[1], _BATCHES, update=0),
    )
    return workload if optimizer is None else _with_update(workload, on_meta(module), optimizer, costs)


def _parameters(module: nn.Module) -> list[Parameter]:
    trainable = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    return [Parameter(name, tuple(p.shape), index) for index, (name, p) in enumerate(trainable)]


def _unique(records: Iterable[_Record]) -> Iterator[_Record]:
    """The records, a name that comes again followed by "#2", "#3", ..."""
    times: dict[str, int] = {}
    for record in records:
        count = times[record.name] = times.get(record.name, 0) + 1
        if count > 1:
            record.name += f"#{count}"
        yield record


def _layer(small: _Record, large: _Record, parameters: Sequence[Parameter], kernels: Kernels) -> Layer:
    forward_fixed_flop, forward_flop = kernels.line(small.forward.flop, large.forward.flop)
    forward_fixed_bytes, forward_bytes = kernels.line(small.forward.nbytes, large.forward.nbytes)
    backward_fixed_flop, backward_flop = kernels.line(small.backward.flop, large.backward.flop)
    backward_fixed_bytes, backward_bytes = kernels.line(small.backward.nbytes, large.backward.nbytes)
    return Layer(
        name=small.name,
        parameters=tuple(parameters[index] for index in sorted(small.parameters)),
        forward_flop=forward_flop,
        backward_flop=backward_flop,
        forward_bytes=forward_bytes,
        backward_bytes=backward_bytes,
        forward_fixed_flop=forward_fixed_flop,
        backward_fixed_flop=backward_fixed_flop,
        forward_fixed_bytes=forward_fixed_bytes,
        backward_fixed_bytes=backward_fixed_bytes,
        activation=kernels.line(small.activation, large.activation)[1],
        num_kernels=small.forward.kernels,
        num_backward_kernels=small.backward.kernels,
        forward_kernels=kernels.of(small.forward.works, large.forward.works),
        backward_kernels=kernels.of(small.backward.works, large.backward.works),
    )


def _with_update(workload: Workload, module: nn.Module, optimizer: OptimizerFactory, costs: OpCosts) -> Workload:
    """Counts the second update, when the optimizer's state exists."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    update = optimizer(parameters)
    counted = _Sum()
    for count in (False, True):
        for p in parameters:
            p.grad = torch.empty_like(p)
        footprint = Footprint()
        with footprint, _Counter(costs) as counter:
            update.step()
        counted = counter.total if count else counted
    numel, nbytes = workload.num_parameters, workload.gradient_bytes
    state = {id(t): t.numel() * t.element_size() for t in tensors_in([*update.state.values()]) if t.numel() > 1}
    return replace(
        workload,
        optimizer_state=sum(state.values()) / nbytes,
        update_flop=counted.flop / numel,
        update_traffic=counted.nbytes / nbytes,
        update_kernels=counted.kernels,
        update_operations=Kernels(_BATCHES).of(counted.works, counted.works),
        memory=workload.memory and replace(workload.memory, update=footprint.most),
    )


class _Counter(DispatchMode):
    """Adds up the work of all operations inside."""

    def __init__(self, costs: OpCosts) -> None:
        super().__init__()
        self.total = _Sum()
        self._costs = costs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.total.add(self._costs(func, args, kwargs or {}, out))
        return out


def trace_workload(
    module: nn.Module,
    example_inputs: Sequence[Tensor],
    loss_fn: Callable[..., Tensor],
    *,
    name: str,
    source: str,
    optimizer: OptimizerFactory | None = None,
) -> Workload:
    """The workload of training a module: one forward pass, a loss, one backward pass, one update.

    Args:
        module: on any device; it is neither run nor changed.
        example_inputs: what its forward takes, samples first; only shapes and types count.
        loss_fn: from the module's output (on the meta device) to a scalar.
        name, source: of the workload.
        optimizer: makes an optimizer from parameters, to count the update; SGD with momentum if left out.

    Memory: none, whatever the size of the model, when it was built under `torch.device("meta")`.

        trace_workload(nn.Linear(4, 2), [torch.empty(1, 4)], lambda out: out.sum(), name="linear", source="chosen")
    """

    def step(copied: nn.Module, samples: int) -> Tensor:
        return loss_fn(copied(*(_resized(example, samples) for example in example_inputs)))

    return trace_step(module, step, name=name, source=source, optimizer=optimizer)


def task_workload(task: Task, seed: int = 0) -> Workload:
    """The workload of a task: its own model, loss and optimizer on a batch like its own, and the parts of `cuts()`."""
    model = task.model(seed)
    example = task.batches(rank=0, num_workers=1, batch=_BATCHES[0], seed=seed).take()

    def step(copied: nn.Module, samples: int) -> Tensor:
        inputs, targets = _resized(example.inputs, samples), _resized(example.targets, samples)
        return task.loss(copied, Batch(inputs, targets, 1.0))

    workload = trace_step(model, step, name=task.name, source=task.source, optimizer=task.optimizer)
    return replace(workload, parts=task_parts(task, model))


def task_parts(task: Task, model: nn.Module) -> tuple[Part, ...]:
    """The parts of a task's model in order, see `geartrain.runtime.chain`; none where the task has no cuts.

    Args:
        model: of the task; it is neither run nor changed.
    """
    if task.cuts() is None:
        return ()
    example = task.batches(rank=0, num_workers=1, batch=_BATCHES[0], seed=0).take()
    return parts_of(task, on_meta(model), _resized(example.inputs, _BATCHES[0]))


def _resized(example: Tensor, samples: int) -> Tensor:
    return torch.empty((samples, *example.shape[1:]), dtype=example.dtype, device="meta")
