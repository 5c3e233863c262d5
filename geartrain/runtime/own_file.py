"""What a user's own Python file defines: a class or function, by "path/to/file.py:Name", the same in every process."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from geartrain.errors import ConfigurationError, UnknownName

_Kind = TypeVar("_Kind")


def own_class(
    path: Path, class_name: str, base: type[_Kind], what: str, error: type[ConfigurationError]
) -> type[_Kind]:
    """The class of a file.

    Args:
        path: of the file, which is run once as long as it stays the same.
        class_name: a subclass of `base` that it defines.
        what: what such a class is, for messages ("task").
        error: raised when the file cannot be used; UnknownName when it has no such class.
    """
    module = _imported(path, class_name, what, error)
    found = getattr(module, class_name, None)
    if isinstance(found, type) and issubclass(found, base):
        return found
    own = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, base)]
    raise UnknownName(f"{what} in {str(path)!r}", class_name, [kind.__name__ for kind in own if _is_of(kind, module)])


def own_function(path: Path, name: str, what: str, error: type[ConfigurationError]) -> Callable[..., Any]:
    """The function of a file, or anything else in it that can be called; arguments and errors as for `own_class`."""
    module = _imported(path, name, what, error)
    found = getattr(module, name, None)
    if callable(found):
        known: Callable[..., Any] = found
        return known
    own = [key for key, value in vars(module).items() if isinstance(value, FunctionType) and _is_of(value, module)]
    raise UnknownName(f"function in {str(path)!r}", name, own)


def _imported(path: Path, name: str, what: str, error: type[ConfigurationError]) -> ModuleType:
    if not path.is_file():
        raise error(f"there is no file {str(path)!r} to take the {what} {name!r} from")
    full = path.resolve()
    try:
        return _module(full, full.stat().st_mtime_ns)
    except Exception as problem:
        raise error(f"{str(path)!r} cannot be imported: {type(problem).__name__}: {problem}") from problem


def _is_of(kind: type | FunctionType, module: ModuleType) -> bool:
    return kind.__module__ == module.__name__


@functools.cache
def _module(path: Path, changed: int) -> ModuleType:
    digest = hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()
    module_name = f"geartrain_own_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # what the file defines must be found again when it is unpickled
    spec.loader.exec_module(module)
    return module
