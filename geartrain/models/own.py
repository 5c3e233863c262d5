"""Workloads of a user's own: `path/to/file.py:function`, whose function returns a `Model`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.errors import TaskError
from geartrain.models.settings import Settings
from geartrain.models.traced import Model as Model
from geartrain.models.traced import traced
from geartrain.runtime.own_file import own_function
from geartrain.runtime.untraceable import explained
from geartrain.workload.spec import Workload

_WANTED = "a geartrain.Model(module=..., inputs=[...], loss=...), or a module with its inputs as `example_input_array`"


def own_workload(path: Path, function: str, settings: Settings | None = None, *, name: str = "") -> Workload:
    """The workload of the model that a function of a file makes.

    Args:
        path: of the file, which is run once as long as it stays the same.
        function: is called with the settings that are not common to all workloads, by name. It returns a `Model`, or a
            module that has its inputs as `example_input_array`; then the loss is the mean of all that it returns.
        settings: behind the name.
        name: of the workload, if it is to be another than "path:function".

    Tensors that the function makes have shapes only; where it needs their values, it is called once more with real
    ones.

    Raises TaskError where the file, what it returns or the model cannot be used; it names the line of a model that
    takes values out of tensors. UnknownName where the file has no such function.
    """
    settings, what = settings or Settings(), f"{path}:{function}"
    make = own_function(path, function, "model", TaskError)
    model = _as_model(_made(make, settings, what), what)
    return traced(model, settings, name=name or what, source=str(path))


def _made(make: Callable[..., Any], settings: Settings, name: str) -> Any:
    try:
        with torch.device("meta"):
            return make(**settings.own)
    except (RuntimeError, NotImplementedError):  # its constructors look at numbers
        with explained(name):
            return make(**settings.own)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in settings.own.items()) or "no arguments"
        raise TaskError(f"{name} cannot be called with {given}: {error}") from error


def _as_model(value: Any, name: str) -> Model:
    if isinstance(value, Model):
        return value
    inputs = getattr(value, "example_input_array", None)
    if not isinstance(value, nn.Module) or inputs is None:
        raise TaskError(f"{name} returned {type(value).__name__}; it must return {_WANTED}")
    return Model(module=value, inputs=[inputs] if isinstance(inputs, Tensor) else list(inputs), loss=_mean)


def _mean(output: Any) -> Tensor:
    """The mean of all floating-point numbers that a model returns."""
    return sum((tensor.mean() for tensor in _tensors(output)), torch.zeros((), device="meta"))


def _tensors(value: Any) -> Sequence[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    items = value.values() if hasattr(value, "values") else value if isinstance(value, list | tuple) else ()
    return [tensor for item in items for tensor in _tensors(item)]
