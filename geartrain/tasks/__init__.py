"""Real small tasks, and the stand-in for a workload. A new task adds a line to `TASKS`."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from geartrain.errors import TaskError, UnknownName
from geartrain.models import WORKLOADS, get_workload
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
    if not path.is_file():
        raise TaskError(f"there is no file {str(path)!r} to take the task {class_name!r} from")
    full = path.resolve()
    module = _module(full, full.stat().st_mtime_ns)
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Task)):
        tasks = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, Task)]
        raise UnknownName(f"task in {str(path)!r}", class_name, [name for name in tasks if name != "Task"])
    # Another process knows nothing of the file: there, unpickling a task takes it from the file again.
    copyreg.pickle(found, functools.partial(_again, f"{full}:{class_name}"))
    try:
        return found()
    except TypeError as error:
        raise TaskError(f"{class_name} of {str(path)!r} cannot be made without arguments: {error}") from error


def _again(text: str, task: object) -> tuple[Callable[[str], Task], tuple[str]]:
    """How a task of the user's own is pickled: as the text that it stands for."""
    return get_task, (text,)


@functools.cache
def _module(path: Path, changed: int) -> ModuleType:
    """The file as a module; once as long as it stays the same."""
    digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
    module_name = f"geartrain_task_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise TaskError(f"{str(path)!r} cannot be imported; a task stands in a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # what the file defines must be found again when it is unpickled
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TaskError(f"{str(path)!r} cannot be imported: {type(error).__name__}: {error}") from error
    return module
