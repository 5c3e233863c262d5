"""The model of a task as a chain of parts, checked to be one: what a part hands on is all that the next one sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.errors import TaskError
from geartrain.runtime.worker import Task
from geartrain.workload.spec import Part


def parts_of(task: Task, model: nn.Module, inputs: Tensor) -> tuple[Part, ...]:
    """The parts of `task.cuts()` in order; none where the task has no cuts. TaskError where they are no chain.

    Modules that share a parameter, and all between them, are one part: a parameter has one home.

    Args:
        model: of the task, on the meta device.
        inputs: of a few samples, on the meta device.
    """
    names = task.cuts()
    if names is None:
        return ()
    outputs = _outputs(task.name, model, names, inputs)
    parts = []
    for group in _together(model, names):
        output = outputs[group[-1]]
        if output.dim() < 1 or len(output) != len(inputs):
            raise TaskError(
                f"{task.name}: {names[group[-1]]!r} hands on {tuple(output.shape)}; samples must come first"
            )
        if group[-1] < len(names) - 1 and not output.is_floating_point():
            raise TaskError(f"{task.name}: {names[group[-1]]!r} returns {output.dtype}: no gradient goes back")
        modules, dtype = tuple(names[index] for index in group), str(output.dtype).removeprefix("torch.")
        shape = tuple(output.shape[1:])
        parts.append(Part(modules=modules, shape=shape, dtype=dtype, element_size=output.element_size()))
    return tuple(parts)


def part_module(model: nn.Module, modules: Sequence[str]) -> nn.Module:
    """The submodules of these names, one after another, as one module. They stay the model's own."""
    return nn.Sequential(*(model.get_submodule(name) for name in modules))


def _outputs(task: str, model: nn.Module, names: Sequence[str], inputs: Tensor) -> list[Tensor]:
    """What each module hands on when the model runs; TaskError unless each takes just what the one before handed on."""
    calls: list[tuple[str, Any, Any]] = []
    handles = [
        model.get_submodule(name).register_forward_hook(
            lambda _, given, output, name=name: calls.append((name, given, output))
        )
        for name in names
    ]
    try:
        with torch.no_grad():
            result = model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    passed: Any = inputs
    chained = [name for name, _, _ in calls] == list(names)
    for _, given, output in calls:
        chained = chained and len(given) == 1 and given[0] is passed and isinstance(output, Tensor)
        passed = output
    if not chained or passed is not result:
        raise TaskError(
            f"the cuts of task {task!r} are no chain: each module must run once, in this order, on what the one before "
            "returned, the first on the inputs, and the model must return what the last did.\n"
            f"  cuts: {', '.join(names)}"
        )
    return [output for _, _, output in calls]


def _together(model: nn.Module, names: Sequence[str]) -> list[list[int]]:
    """The positions of `names` in groups that share no parameter with each other."""
    last: dict[int, int] = {}
    owned = [{id(p) for p in model.get_submodule(name).parameters()} for name in names]
    for index, parameters in enumerate(owned):
        last.update(dict.fromkeys(parameters, index))
    groups: list[list[int]] = []
    end = -1
    for index, parameters in enumerate(owned):
        if index > end:
            groups.append([])
        groups[-1].append(index)
        end = max([end, index, *(last[parameter] for parameter in parameters)])
    return groups
