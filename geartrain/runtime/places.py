"""Where a thread stands in the user's own program: not in PyTorch, Python, an installed package or geartrain."""

from __future__ import annotations

import linecache
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FrameType

import torch

Place = tuple[str, int, str]
"""File, line, function."""

_OURS = str(Path(__file__).resolve().parent.parent)
_MACHINERY = tuple(f"{_OURS}/{part}" for part in ("sim/", "engines/", "torch_private.py", "runtime/context.py"))
_LIBRARIES = tuple(
    str(Path(place).resolve())
    for place in {
        Path(torch.__file__ or "").parent,
        Path(_OURS),
        *(Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")),
    }
)


@lru_cache(maxsize=4096)
def is_users(filename: str) -> bool:
    """Whether a file is the user's own."""
    return not filename.startswith("<") and not str(Path(filename).resolve()).startswith(_LIBRARIES)


def places(frame: FrameType | None) -> list[Place]:
    """The user's own places, innermost last; where there are none, the innermost of ours that is no machinery."""
    found: list[Place] = []
    while frame is not None:
        found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    found.reverse()
    users = [place for place in found if is_users(place[0])]
    if users:
        return users
    ours = [place for place in found if place[0].startswith(_OURS) and not place[0].startswith(_MACHINERY)]
    return ours[-1:] or found[-1:]


def place_text(place: Place) -> str:
    """`file:line in function: source`."""
    filename, line, function = place
    return f"{filename}:{line} in {function}: {linecache.getline(filename, line).strip()}"


def innermost(frame: FrameType | None) -> str:
    """The innermost of the user's own places, as text; empty where there is no frame."""
    found = places(frame)
    return place_text(found[-1]) if found else ""
