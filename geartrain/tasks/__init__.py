"""Real small tasks, and the stand-in for a workload. A new task adds a line to `TASKS`."""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from geartrain.errors import TaskError, UnknownName
from geartrain.models import WORKLOADS, get_workload
from geartrain.runtime.own_file import own_class
from geartrain.runtime.worker import Task
from geartrain.tasks.characters import Characters
from geartrain.tasks.digits import Digits
from geartrain.tasks.packages_text import PackagesText
from geartrain.tasks.workload_task import WorkloadTask

TASKS: Mapping[str, type[Task]] = {
    "characters": Characters,
    "digits": Digits,
    "packages-text": PackagesText,
}
"""Name -> class. What a task is stands in the first line of its docstring, where it comes from in its `source`."""


def get_task(name: str) -> Task:
    """The task that a text stands for.

    Args:
        name: of a task, with its settings if there are any ("digits:hidden=1536"); of a workload (a model without
            numbers, for simulation); or "path/to/file.py:ClassName" for a task of the user's own, made without
            arguments.

    Raises UnknownName when nothing is called so, TaskError when the file or class cannot be used.
    """
    if name in TASKS:
        return TASKS[name]()
    if name in WORKLOADS:
        return WorkloadTask(get_workload(name))
    known, _, settings = name.partition(":")
    if known in TASKS:
        return TASKS[known](**_settings(known, settings))
    path, separator, class_name = name.rpartition(":")
    if separator and path.endswith(".py"):
        return _own_task(Path(path), class_name)
    raise UnknownName("task", name, [*TASKS, *WORKLOADS])


def _settings(name: str, text: str) -> dict[str, Any]:
    """The values in `key=value,key=value` for a task that comes with the package: whole numbers, true and false."""
    kind = TASKS[name]
    hints = get_type_hints(kind)
    known: dict[str, Any] = {field.name: hints[field.name] for field in fields(kind)} if is_dataclass(kind) else {}
    values: dict[str, Any] = {}
    for piece in text.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or key in values:
            raise TaskError(
                f"{piece.strip()!r} in {name + ':' + text!r} is no setting, or comes twice; write key=value"
            )
        if key not in known:
            raise UnknownName(f"setting of task {name!r}", key, known)
        try:
            values[key] = {"true": True, "false": False}[value] if known[key] is bool else known[key](value)
        except (KeyError, ValueError):
            expected = "true or false" if known[key] is bool else "a whole number"
            raise TaskError(f"{name}: {key}={value!r} does not fit; give {expected}") from None
    return values


def _own_task(path: Path, class_name: str) -> Task:
    found = own_class(path, class_name, Task, "task", TaskError)  # type: ignore[type-abstract]
    # Another process knows nothing of the file: there, unpickling a task takes it from the file again.
    copyreg.pickle(found, functools.partial(_again, f"{path.resolve()}:{class_name}"))
    try:
        return found()
    except TypeError as error:
        raise TaskError(f"{class_name} of {str(path)!r} cannot be made without arguments: {error}") from error


def _again(text: str, task: object) -> tuple[Callable[[str], Task], tuple[str]]:
    """How a task of the user's own is pickled: as the text that it stands for."""
    return get_task, (text,)
