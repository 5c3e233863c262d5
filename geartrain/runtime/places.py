"""Where a thread stands in the user's own program: not in PyTorch, Python, an installed package or geartrain."""

from __future__ import annotations

import linecache
import os
import sysconfig
import traceback
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

Place = tuple[str, int, str]
"""File, line, function."""

_OURS = str(Path(__file__).resolve().parents[1]) + os.sep
_MACHINERY = tuple(
    _OURS + part for part in ("sim" + os.sep, "engines" + os.sep, "torch_private.py", "runtime" + os.sep + "context.py")
)
_LIBRARIES = (
    _OURS,
    str(Path(torch.__file__ or "").resolve().parent) + os.sep,
    *(str(Path(sysconfig.get_path(name)).resolve()) + os.sep for name in ("stdlib", "purelib", "platlib")),
)


@lru_cache(maxsize=4096)
def _resolved(filename: str) -> str:
    return filename if filename.startswith("<") else str(Path(filename).resolve())


def is_users(filename: str) -> bool:
    """Whether a file is the user's own."""
    name = _resolved(filename)
    return not name.startswith("<") and not name.startswith(_LIBRARIES)


def places(frame: FrameType | None) -> Sequence[Place]:
    """The user's own places from a frame outwards, innermost last; where there are none, see `_innermost_of_ours`."""
    found: list[Place] = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return _users(found[::-1])


def places_of_error(error: BaseException) -> Sequence[Place]:
    """The user's own places through which an error came, innermost last."""
    return _users([(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)])


def _users(found: Sequence[Place]) -> Sequence[Place]:
    return [place for place in found if is_users(place[0])] or _innermost_of_ours(found)


def _innermost_of_ours(found: Sequence[Place]) -> Sequence[Place]:
    """The innermost place in a method, a task or the loop, rather than in what runs ranks."""
    names = [_resolved(place[0]) for place in found]
    ours = [
        place
        for place, name in zip(found, names, strict=True)
        if name.startswith(_OURS) and not name.startswith(_MACHINERY)
    ]
    return ours[-1:] or found[-1:]


def place_text(place: Place) -> str:
    """`file:line in function: source`."""
    filename, line, function = place
    return f"{filename}:{line} in {function}: {linecache.getline(filename, line).strip()}"


def innermost(frame: FrameType | None) -> str:
    """The innermost of the user's own places, as text; empty where there is no frame."""
    found = places(frame)
    return place_text(found[-1]) if found else ""
