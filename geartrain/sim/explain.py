"""Why a simulated run cannot go on: what each rank waits for, where its own program stands, and the likely cause."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from geartrain.errors import CollectiveMismatch, DeadlockError, GeartrainError, RankFailed, RunError, ScriptError
from geartrain.runtime.places import Place, place_text, places, places_of_error
from geartrain.sim.fabric import Fabric, ranks_text
from geartrain.sim.kernel import Activity
from geartrain.sim.meeting import Meeting, Message
from geartrain.units import format_size, format_time


class Explainer:
    """Makes the error that a run ends with."""

    def __init__(self) -> None:
        self.fabric: Fabric

    def __call__(self, error: BaseException | None, activity: Activity | None) -> BaseException:
        if activity is None:
            return self._stuck()
        if error is None:
            return ScriptError(
                f"rank {activity.rank} waits for something outside the simulated world, which the virtual clock "
                f"cannot see: a thread, a lock, a process, a socket or input\n{_where_text(activity)}\n"
                "  change:  leave it out under `geartrain simulate`, or start second activities with ctx.spawn"
            )
        if isinstance(error, KeyboardInterrupt):
            return error
        if isinstance(error, CollectiveMismatch):
            text = f"{error}\n{self._places(activity, error)}"
            cause = self._likely_mismatch(activity)
            text += f"\n  likely:  {cause}" if cause else ""
            return CollectiveMismatch(text, rank=activity.rank, step=_step(activity))
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
        awaited = awaited or self._ended_behind_lanes(ended)
        if awaited:
            return RankFailed(
                f"{ranks_text(awaited)} ended while others wait for {'it' if len(awaited) == 1 else 'them'} "
                f"(t = {format_time(self.fabric.kernel.now)})\n"
                f"{self._places()}\n"
                f"  likely:  the program of {ranks_text(awaited)} returned or exited before the others were done with "
                f"{'it' if len(awaited) == 1 else 'them'}; all ranks must make the same calls",
                rank=awaited[0],
            )
        return DeadlockError(
            f"no rank can continue at t = {format_time(self.fabric.kernel.now)}\n"
            f"{self._places()}\n  likely:  {self._likely()}"
        )

    def _waiting(self) -> list[Activity]:
        return [a for a in self.fabric.kernel.activities if a.waits_for is not None and not a.daemon]

    def _ended_behind_lanes(self, ended: list[int]) -> list[int]:
        """The ended ranks that a lane waits for which works for a rank that is waited for, as a server's lane does."""
        lanes = [a for a in self.fabric.kernel.activities if a.daemon and not a.ended.done]
        reached = {rank for a in self._waiting() for rank in _awaited(a)}
        return [rank for rank in ended if any(a.rank in reached and rank in _awaited(a) for a in lanes)]

    def _ended_early(self) -> list[int]:
        return [a.rank for a in self.fabric.kernel.activities if not a.name and a.ended.done]

    def _places(self, raised: Activity | None = None, error: BaseException | None = None, most: int = 32) -> str:
        """One line per rank and lane, and where it stands; ranks that stand at the same place are told together.

        Args:
            raised: the activity that raised `error`, whose own frames are gone: its place is in the traceback.
            most: places that are listed.
        """
        grouped: dict[tuple[str, str], list[Activity]] = {}
        ended = set(self._ended_early())
        for activity in self.fabric.kernel.activities:
            if activity is raised and error is not None:
                text = f"raised this\n{_text_of(places_of_error(error), 3)}"
            elif activity.daemon and ended.isdisjoint(_awaited(activity)):
                continue
            elif activity.ended.done:
                text = "has ended"
            elif activity.waits_for is not None:
                text = f"in {activity.waits_for}\n{_where_text(activity)}"
            else:
                text = f"can continue\n{_where_text(activity)}"
            grouped.setdefault((activity.name, text), []).append(activity)
        lines = []
        for (name, text), activities in list(grouped.items())[:most]:
            ranks = [a.rank for a in activities]
            verb = "" if not text.startswith("in ") else f"{_verb(ranks, 'waits', 'wait')} "
            if text == "has ended":
                text = _verb(ranks, "has ended", "have ended")
            lines.append(f"  {ranks_text(ranks)}{f' lane {name}' if name else ''}  {verb}{text}")
        if len(grouped) > most:
            lines.append(f"  ... and {len(grouped) - most} more places")
        return "\n".join(lines)

    def _likely(self) -> str:
        """The likely cause of a deadlock."""
        waiting = self._waiting()
        meetings = [meeting for a in waiting if (meeting := _meeting(a)) is not None and meeting.missing()]
        if meetings:
            first = min(meetings, key=lambda m: m.sequence)
            absent, entered = first.missing(), first.entered()
            return (
                f"{ranks_text(absent)} skipped {first.signature[0]} #{first.sequence} of group {first.channel.name}, "
                f"or {_verb(absent, 'makes', 'make')} calls in another order; {ranks_text(entered)} "
                f"{_verb(entered, 'waits', 'wait')} in it"
            )
        cycle = _cycle({a.rank: _awaited(a) for a in waiting if not a.name})
        if cycle:
            chain = " -> ".join(f"rank {rank}" for rank in [*cycle, cycle[0]])
            return (
                f"a cycle of waits: {chain}; a blocking send or recv waits for its other end: order the calls so that "
                "one side sends while the other receives, or use isend/irecv or batch_isend_irecv"
            )
        messages = [message for a in waiting if (message := _message(a)) is not None and not message.matched]
        if messages:
            return f"{messages[0].done}: its other end is never posted (another tag, group or peer, or none at all)"
        return "each waits for something that no rank is going to do"

    def _likely_mismatch(self, activity: Activity) -> str:
        """The likely cause of a collective that is not the same on all ranks; empty for a message that does not fit."""
        given = activity.state.rank.log.ops[-1]
        channel = self.fabric.channels.get((given.key[0], given.peers))
        meeting = channel.meetings.get(given.key[2]) if channel is not None and given.key[1] == "c" else None
        if meeting is None:
            return ""
        mine, others, expected = f"rank {activity.rank}", ranks_text(meeting.entered()), meeting.ops[0]
        if given.kind == expected.kind:
            if given.size != expected.size:
                return (
                    f"{mine} brings a tensor of another size than {others} ({format_size(given.size)}, not "
                    f"{format_size(expected.size)}): a smaller last batch, or another shape of the model"
                )
            return f"{mine} asks for another reduction, root or type than {others}"
        past = [(op.kind, op.size) for op in activity.state.rank.log.ops if op.key[:2] == given.key[:2]][:-1]
        following = _continued(past)
        now, instead = (given.kind, given.size), (expected.kind, expected.size)
        if following[:1] == [instead]:
            if now in following:
                return f"{mine} skipped {expected.kind} #{expected.key[2]}"
            return f"{mine} added {given.kind} #{given.key[2]}, which earlier rounds do not have"
        if following[:1] == [now]:
            verb = "skipped" if instead in following else "did not make"
            return f"{others} {verb} {given.kind} #{given.key[2]}, which earlier rounds have here"
        return (
            f"{mine} left out {expected.kind} #{expected.key[2]}, or {others} left out {given.kind} #{given.key[2]}, "
            "as a condition that not all ranks share does"
        )

    # --- a rank raised ----------------------------------------------------------------------------------------------

    def _raised(self, error: BaseException, activity: Activity) -> str:
        lane = f", lane {activity.name}," if activity.name else ""
        where = _text_of(places_of_error(error), 3)
        return f"rank {activity.rank}{lane} raised {type(error).__name__}: {_said(error)}\n{where}"


def advice(error: BaseException) -> str:
    """What to change in a script that asked for what a simulated run cannot give, or nothing."""
    text = _said(error)
    if "CUDA" in text or "NVIDIA" in text or ("cuda" in text and ("not" in text or "no attribute" in text)):
        return (
            "  this host has no CUDA, and a simulated run computes on the CPU\n"
            '  change:  device = torch.device("cuda" if torch.cuda.is_available() else "cpu"), and use .to(device) '
            "instead of .cuda()"
        )
    if "signal only works in main thread" in text:
        return "  ranks of a simulated run are threads and cannot set signal handlers\n  change:  leave the handler out"
    return ""


def _said(error: BaseException) -> str:
    """Its own text, if it has one."""
    try:
        return str(error)
    except Exception as fault:
        return f"(making its text raised {type(fault).__name__})"


def here() -> str:
    """The innermost line of the user's own files in the calling thread, as text."""
    return _text_of(places(sys._getframe()), 1)


def _where_text(activity: Activity, most: int = 3) -> str:
    return _text_of(places(sys._current_frames().get(activity.thread.ident or 0)), most)


def _text_of(found: Sequence[Place], most: int) -> str:
    return "\n".join(f"      {place_text(place)}" for place in list(found)[-most:])


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


def _verb(ranks: Sequence[int], one: str, several: str) -> str:
    return one if len(ranks) == 1 else several


def _continued(past: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """What comes next, for one round, if the last round of calls was made at least twice; else nothing."""
    for period in range(1, len(past) // 2 + 1):
        if past[-period:] == past[-2 * period : -period]:
            return list(past[-period:])
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
