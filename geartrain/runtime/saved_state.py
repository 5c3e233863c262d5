"""A rank's state in files: nested plain values and tensors, as a checkpoint of `torch.distributed.checkpoint`.

Each tensor stands under its path in the state, so that other tools find it; all else is pickled into one more tensor.
Reading therefore needs no state of the same shape to read into. Read only what you trust: unpickling runs code.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from geartrain.errors import ConfigurationError

_REST = "everything else"
_ERRORS = (OSError, ValueError, KeyError, EOFError, pickle.UnpicklingError, CheckpointException)


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write nested plain values and tensors: each tensor under its path, all else as one."""
    tensors: dict[str, Tensor] = {}
    rest = pickle.dumps(_pack(state, "", tensors))
    flat = {**tensors, _REST: torch.frombuffer(bytearray(rest), dtype=torch.uint8)}
    with _alone():
        save(flat, storage_writer=FileSystemWriter(folder), no_dist=True)


def read_state(folder: Path) -> Any:
    """What `write_state` wrote; tensors are on the CPU. ConfigurationError when it cannot be read."""
    try:
        reader = FileSystemReader(folder)
        flat: dict[str, Any] = {}
        for name, found in reader.read_metadata().state_dict_metadata.items():
            if isinstance(found, TensorStorageMetadata):
                flat[name] = torch.empty(found.size, dtype=found.properties.dtype)
        with _alone():
            planner = DefaultLoadPlanner(flatten_state_dict=False)
            load(flat, storage_reader=reader, planner=planner, no_dist=True)
        return _unpack(pickle.loads(flat.pop(_REST).numpy().tobytes()), flat)
    except _ERRORS as error:
        raise ConfigurationError(
            f"the state in {str(folder)!r} cannot be read: {error}\n  go on from another checkpoint of the run"
        ) from error


@contextmanager
def _alone() -> Iterator[None]:
    """A rank that saves by itself is meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


@dataclass(frozen=True)
class _Place:
    """Where a tensor was."""

    name: str


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        while path in tensors or path == _REST:
            path += "'"  # names with dots in them may meet
        tensors[path] = value.detach()
        return _Place(path)
    if isinstance(value, Mapping):
        return {key: _pack(item, f"{path}.{key}" if path else str(key), tensors) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_pack(item, f"{path}.{index}", tensors) for index, item in enumerate(value))
    return value


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, _Place):
        return tensors[value.name]
    if isinstance(value, dict):
        return {key: _unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_unpack(item, tensors) for item in value)
    return value
