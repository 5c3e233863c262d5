"""Models that cannot be traced on shapes alone: which line of the user's stops it, and what to do.

A traced step has tensors with shapes and no numbers. What a model does may depend on shapes; it may not depend on
values.
"""

from __future__ import annotations

import linecache
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from geartrain.errors import GeartrainError, TaskError

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = (str(Path(torch.__file__).parent), sysconfig.get_paths()["stdlib"], _OURS)

_VALUES = (
    "cannot be called on meta tensors",
    "Cannot copy out of meta tensor",
    "convert meta device type tensor to numpy",
)
_SIZES = ("raises unimplemented by default", "aten::_unique", "repeat_interleave a meta tensor without output_size")
_REAL = ("is not on the expected device meta", "Expected all tensors to be on the same device")
_BRANCHES = ("if ", "elif ", "while ", "assert ")


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Around what runs a model on shapes alone: its errors become a TaskError with the line that they come from.

    Args:
        name: of the model, for messages about what has no line of the user's.
    """
    try:
        yield
    except GeartrainError:
        raise
    except Exception as error:
        place, text = _line(error)
        raise TaskError(f"{place or name}: {_reason(error, text)}") from error


def _line(error: Exception) -> tuple[str, str]:
    """("file.py:41", "the text of that line") of the innermost one that is neither torch's nor ours, if any."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_LIBRARIES)]
    frames = [frame for frame in frames if Path(frame.filename).is_file() and frame.lineno]
    if not frames:
        return "", ""
    last = frames[-1]
    text = linecache.getline(last.filename, last.lineno or 0).strip()
    return f"{Path(last.filename).name}:{last.lineno}", text


def _reason(error: Exception, text: str) -> str:
    message = str(error)
    shown = f'"{text}" ' if text else "it "
    if any(part in message for part in _VALUES):
        if text.startswith(_BRANCHES):
            return (
                f"{shown}decides by the values of a tensor, and a traced step has shapes only; "
                "use torch.where, or give the branch as a setting"
            )
        return (
            f"{shown}takes a number out of a tensor, and a traced step has shapes only; "
            "keep it a tensor, or give the number as a setting"
        )
    if any(part in message for part in _SIZES):
        return (
            f"{shown}has a result whose size depends on the values of a tensor, and a traced step has shapes only; "
            "use a mask of fixed size (torch.where, multiplication), or give the size as a setting"
        )
    if any(part in message for part in _REAL):
        return (
            f"{shown}mixes a tensor made outside of the model with those of the traced step, which have shapes only; "
            "make it a buffer of the module (register_buffer), or make it on the device of its input"
        )
    return (
        f"{shown}fails on a step of shapes alone: {type(error).__name__}: {message.splitlines()[0] if message else ''}"
    )
