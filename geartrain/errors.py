"""Everything that geartrain raises on purpose.

    GeartrainError
    ├── ConfigurationError           what the user gave does not make sense; nothing has run yet
    │   ├── UnitError                a quantity without a unit, or with one that does not fit (also a ValueError)
    │   ├── UnknownName              no strategy, preset, task, ... of that name (also a ValueError)
    │   ├── ClusterError             a cluster file or value that cannot be
    │   ├── PlacementError           the cluster has too few devices or nodes for what shall run
    │   ├── StrategyError            a strategy text or a hyperparameter that cannot be (also a ValueError)
    │   │   └── IncompatibleParts    parts of a strategy that do not fit together; names those that do
    │   ├── TaskError                a task, batch or output folder that cannot be used
    │   ├── CannotFit                no plan has room in the memory of the devices; says how much is missing
    │   └── ScriptError              a script that cannot run on this engine; names its line and the change to make
    └── RunError                     something went wrong while ranks were running; carries rank and step where known
        ├── DeadlockError            no rank can continue
        ├── CollectiveMismatch       ranks met in one collective with different calls, shapes, types or order
        ├── RankFailed               a rank raised, exited early or was killed
        └── NotFinite                a loss became NaN or infinite

A message says what was wrong, what was expected, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class GeartrainError(Exception):
    """Base of all errors raised on purpose by geartrain."""


class ConfigurationError(GeartrainError):
    """What the user gave does not make sense; nothing has run yet."""


class UnitError(ConfigurationError, ValueError):
    """A quantity without a unit, or with one that does not fit."""


class UnknownName(ConfigurationError, ValueError):
    """No `kind` of the name that was given.

    Args:
        kind: what was looked for, e.g. "strategy".
        given: the name that was given.
        known: the names there are.
    """

    def __init__(self, kind: str, given: str, known: Iterable[str]) -> None:
        names = sorted(known)
        self.kind, self.given, self.known = kind, given, tuple(names)
        near = nearest(given, names)
        hint = f"; did you mean {near!r}?" if near else ""
        super().__init__(f"no {kind} is called {given!r}{hint}\n  known: {', '.join(names) or 'none'}")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, tuple[str, ...]]]:
        return (UnknownName, (self.kind, self.given, self.known))


class ClusterError(ConfigurationError):
    """A cluster file or value that cannot be."""


class PlacementError(ConfigurationError):
    """The cluster has too few devices or nodes for what shall run on it."""


class StrategyError(ConfigurationError, ValueError):
    """A strategy text or hyperparameter that cannot be."""


class IncompatibleParts(StrategyError):
    """Parts of a strategy that do not fit together; the message names those that do."""


class TaskError(ConfigurationError):
    """A task, batch size or output folder that cannot be used."""


class CannotFit(ConfigurationError):
    """No plan has room in the memory of the devices.

    Args:
        message: what needs most, and the ways out.
        need: bytes that the plainest method needs.
        have: bytes of the device that they are needed on.
    """

    def __init__(self, message: str, *, need: int, have: int) -> None:
        super().__init__(message)
        self.need, self.have = need, have

    @property
    def missing(self) -> int:
        """How much is missing, in bytes."""
        return self.need - self.have

    def __reduce__(self) -> tuple[Any, ...]:
        return (_cannot_fit, (str(self), self.need, self.have))


def _cannot_fit(message: str, need: int, have: int) -> CannotFit:
    return CannotFit(message, need=need, have=have)


class ScriptError(ConfigurationError):
    """A script that cannot run on this engine; the message names its line and the change to make."""


class RunError(GeartrainError):
    """Something went wrong while ranks were running.

    Args:
        message: what happened, what was expected, what to do.
        rank: the rank it happened on, if one can be named.
        step: the step that rank was in, if it counts steps.

    Attributes:
        record: the `RunRecord` of what ran before the error, if the engine kept one.
    """

    def __init__(self, message: str, *, rank: int | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.rank, self.step = rank, step
        self.record: object | None = None


class DeadlockError(RunError):
    """No rank can continue; the message says for every rank what it waits for and where it stands."""


class CollectiveMismatch(RunError):
    """Ranks met in one collective with different calls, shapes, types or order."""


class RankFailed(RunError):
    """A rank raised, exited early or was killed."""


class NotFinite(RunError):
    """A loss became NaN or infinite."""


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like the given one, or None when none is close."""
    close = difflib.get_close_matches(given, list(known), n=1, cutoff=0.5)
    return close[0] if close else None
