"""Why a simulated run cannot go on: for every rank what it waits for, where it stands in its own program, and the likely cause."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

import geartrain
from geartrain.errors import CollectiveMismatch, DeadlockError, GeartrainError, RankFailed, RunError, ScriptError
from geartrain.sim.fabric import Fabric, ranks_text
from geartrain.sim.kernel import Activity
from geartrain.sim.meeting import Meeting, Message
from geartrain.units import format_time

_LIBRARIES = tuple(
    str(Path(place).resolve())
    for place in {
        Path(torch.__file__).parent,
        Path(geartrain.__file__).parent,
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    }
)
_OURS = str(Path(geartrain.__file__).resolve().parent)
_MACHINERY = tuple(str(Path(_OURS) / part) for part in ("sim", "engines", "torch_private.py", "runtime/context.py"))


class Explainer:
    """Makes the error that a run ends with."""

    def __init__(self) -> None:
        self.fabric: Fabric

    def __call__(self, error: BaseException | None, activity: Activity | None) -> BaseException:
        if activity is None:
            return self._stuck()
        if error is None:
            return ScriptError(
                f"rank {activity.rank} waits for something outside the simulated world, which the virtual clock cannot see: "
                f"a thread, a lock, a process, a socket or input\n{_where_text(activity)}\n"
                "  change:  leave it out under `geartrain simulate`, or start second activities with ctx.spawn"
            )
        if isinstance(error, KeyboardInterrupt):
            return error
        if isinstance(error, CollectiveMismatch):
            return CollectiveMismatch(f"{error}\n{self._places()}", rank=activity.rank, step=_step(activity))
        if isinstance(error, GeartrainError):
            if isinstance(error, RunError) and error.rank is None:
                error.rank, error.step = activity.rank, _step(activity)
            return error
        text, change = self._raised(error, activity), advice(error)
        if change:
            return ScriptError(f"{text}\n{change}")
        failed = RankFailed(text, rank=activity.rank, step=_step(activity))
        failed.__cause__ = error
        return failed

    # --- nobody can go on -------------------------------------------------------------------------------------------

    def _stuck(self) -> BaseException:
        ended = self._ended_early()
        awaited = [rank for rank in ended if any(rank in _awaited(a) for a in self._waiting())]
        if awaited:
            return RankFailed(
                f"{ranks_text(awaited)} ended while others wait for it (t = {format_time(self.fabric.kernel.now)})\n"
                f"{self._places()}\n"
                f"  likely:  the program of {ranks_text(awaited)} returned or exited before the others were done with it; "
                "all ranks must make the same calls",
                rank=awaited[0],
            )
        return DeadlockError(
            f"no rank can continue at t = {format_time(self.fabric.kernel.now)}\n"
            f"{self._places()}\n  likely:  {self._likely()}"
        )

    def _waiting(self) -> list[Activity]:
        return [a for a in self.fabric.kernel.activities if a.waits_for is not None and not a.daemon]

    def _ended_early(self) -> list[int]:
        return [a.rank for a in self.fabric.kernel.activities if not a.name and a.ended.done]

    def _places(self, most: int = 32) -> str:
        """One line per rank and lane; ranks that stand at the same place are told together."""
        grouped: dict[str, list[Activity]] = {}
        for activity in self.fabric.kernel.activities:
            if activity.daemon:
                continue
            if activity.ended.done:
                text = "has ended"
            elif activity.waits_for is not None:
                text = f"waits in {activity.waits_for}\n{_where_text(activity)}"
            else:
                text = f"can continue\n{_where_text(activity)}"
            grouped.setdefault(text, []).append(activity)
        lines = []
        for text, activities in list(grouped.items())[:most]:
            names = sorted({a.name for a in activities})
            lane = f" lane {', '.join(names)}" if names != [""] else ""
            lines.append(f"  {ranks_text([a.rank for a in activities])}{lane}  {text}")
        if len(grouped) > most:
            lines.append(f"  ... and {len(grouped) - most} more places")
        return "\n".join(lines)

    def _likely(self) -> str:
        waiting = self._waiting()
        cycle = _cycle({a.rank: _awaited(a) for a in waiting if not a.name})
        meetings = [m for a in waiting if (m := _meeting(a)) is not None and m.missing()]
        if meetings:
            first = min(meetings, key=lambda m: m.sequence)
            absent = first.missing()
            return (
                f"{ranks_text(absent)} skipped {first.signature[0]} #{first.sequence} of group {first.channel.name}, "
                f"or made its calls in another order; {ranks_text(first.entered())} wait{'s' * (len(first.entered()) == 1)} in it"
            )
        if cycle:
            chain = " -> ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])
            return (
                f"a cycle of waits: {chain}; a blocking send or recv waits for its other end: order the calls so that one "
                "side sends while the other receives, or use isend/irecv or batch_isend_irecv"
            )
        messages = [m for a in waiting if (m := _message(a)) is not None and not m.matched]
        if messages:
            return f"{messages[0].done}: its other end is never posted (another tag, group or peer, or none at all)"
        return "each waits for something that no rank is going to do"

    # --- a rank raised ----------------------------------------------------------------------------------------------

    def _raised(self, error: BaseException, activity: Activity) -> str:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if is_users(f.filename)]
        frames = frames or list(traceback.extract_tb(error.__traceback__))[-1:]
        place = "\n".join(f"    {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames[-3:])
        return f"rank {activity.rank} raised {type(error).__name__}: {error}\n{place}"


def advice(error: BaseException) -> str:
    """What to change in a script that asked for what a simulated run cannot give, or nothing."""
    text = str(error)
    if "CUDA" in text or "NVIDIA" in text or "cuda" in text and "not" in text:
        return (
            "  this host has no CUDA, and a simulated run computes on the CPU\n"
            '  change:  device = torch.device("cuda" if torch.cuda.is_available() else "cpu"), and use .to(device) '
            "instead of .cuda()"
        )
    if "signal only works in main thread" in text:
        return "  ranks of a simulated run are threads and cannot set signal handlers\n  change:  leave the handler out"
    return ""


def where(activity: Activity) -> Sequence[tuple[str, int, str]]:
    """(file, line, function) of a thread's frames in the user's own files, innermost last; else its innermost of ours."""
    return _places(sys._current_frames().get(activity.thread.ident or 0))


def here() -> str:
    """The innermost line of the user's own files in the calling thread, as text."""
    return _text_of(_places(sys._getframe()), 1)


def _places(frame: FrameType | None) -> Sequence[tuple[str, int, str]]:
    frames: list[tuple[str, int, str]] = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    frames.reverse()
    users = [f for f in frames if is_users(f[0])]
    if users:
        return users
    ours = [f for f in frames if _resolved(f[0]).startswith(_OURS) and not _resolved(f[0]).startswith(_MACHINERY)]
    return ours[-1:] or frames[-1:]


def _where_text(activity: Activity, most: int = 3) -> str:
    return _text_of(where(activity), most)


def _text_of(places: Sequence[tuple[str, int, str]], most: int) -> str:
    lines = []
    for filename, line, function in list(places)[-most:]:
        source = linecache.getline(filename, line).strip()
        lines.append(f"      {filename}:{line} in {function}: {source}")
    return "\n".join(lines)


_resolved_names: dict[str, str] = {}


def _resolved(filename: str) -> str:
    known = _resolved_names.get(filename)
    if known is None:
        known = _resolved_names[filename] = filename if filename.startswith("<") else str(Path(filename).resolve())
    return known


def is_users(filename: str) -> bool:
    """Whether a file is the user's own: not of PyTorch, of Python, of an installed package or of geartrain."""
    name = _resolved(filename)
    return not name.startswith("<") and not name.startswith(_LIBRARIES)


def _step(activity: Activity) -> int | None:
    step: int | None = activity.state.rank.step
    return step


def _meeting(activity: Activity) -> Meeting | None:
    owner = getattr(activity.waits_for.describe, "__self__", None) if activity.waits_for else None
    return owner if isinstance(owner, Meeting) else None


def _message(activity: Activity) -> Message | None:
    owner = getattr(activity.waits_for.describe, "__self__", None) if activity.waits_for else None
    return owner if isinstance(owner, Message) else None


def _awaited(activity: Activity) -> list[int]:
    """Global ranks that a blocked activity waits for."""
    meeting, message = _meeting(activity), _message(activity)
    if meeting is not None:
        return meeting.missing()
    if message is not None and message.peer is not None and not message.matched:
        return [message.channel.ranks[message.peer]]
    return []


def _cycle(awaited: dict[int, list[int]]) -> list[int]:
    """A cycle in who waits for whom, or nothing."""
    for start in sorted(awaited):
        path, rank = [start], start
        while True:
            following = [r for r in awaited.get(rank, []) if r in awaited]
            if not following:
                break
            rank = following[0]
            if rank in path:
                return path[path.index(rank) :]
            path.append(rank)
    return []
