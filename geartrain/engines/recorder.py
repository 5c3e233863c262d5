"""`Recorder`: what a rank of real processes writes its log with: the clock, the lane it is on, the open operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from geartrain.record.log import Blocked, OpKey, RankLog


class Surroundings(Protocol):
    """What an engine puts around a rank: a device that computes beside the process, counters of its wires."""

    def settle(self) -> None:
        """Stand still until the device has done what the calling lane gave it."""

    def resume(self) -> None:
        """The calling lane goes on after standing still; its device had nothing to do meanwhile."""

    def enter_lane(self) -> None:
        """The calling thread is a lane that begins."""

    def begin_program(self) -> None:
        """All ranks are there and the program begins; called by one rank."""

    def begin_step(self) -> None: ...

    def end_step(self) -> dict[str, float]:
        """What a step's record shall hold besides."""


class _LaneName(threading.local):
    name: str = ""


class Recorder:
    """One rank's log and the clock that its times are taken from.

    Seconds count from a moment that all ranks of a host share: CLOCK_MONOTONIC is the same in all its processes.

    Attributes:
        log: what has been written so far.
        recording: False while the engine sets up, so that its own operations stay out of the log.
        lost: the first error of an operation with other ranks. A rank that fails with it was probably not the cause.
        surroundings: what the engine put around the rank, if anything.
        before_snapshot: called before the log is taken, to look once more at what was still in flight.
    """

    def __init__(self, log: RankLog, origin: float | None = None) -> None:
        self.log, self.origin = log, time.monotonic() if origin is None else origin
        self.recording = True
        self.lost: BaseException | None = None
        self.surroundings: Surroundings | None = None
        self.before_snapshot: list[Callable[[], None]] = []
        self._lane = _LaneName()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.origin

    @property
    def lane(self) -> str:
        """The lane that the calling thread is; "" is the main one."""
        return self._lane.name

    def enter_lane(self, name: str) -> None:
        """Say that the calling thread is a lane."""
        self._lane.name = name
        if self.surroundings is not None:
            self.surroundings.enter_lane()

    def settle(self) -> None:
        """Before anybody is told of a result: wait for the device that computes it, where there is one."""
        if self.surroundings is not None:
            self.surroundings.settle()

    def resume(self) -> None:
        """After standing still."""
        if self.surroundings is not None:
            self.surroundings.resume()

    @contextmanager
    def blocked(self, what: str, key: OpKey | None = None) -> Iterator[None]:
        """What runs inside is standing still. The entry is open from the start, so a log cut short shows it too."""
        self.settle()
        entry = Blocked(self.now(), -1.0, key, self.lane, what)
        if self.recording:
            self.log.blocked.append(entry)
        try:
            yield
        finally:
            entry.end = self.now()
            self.resume()

    def snapshot(self) -> RankLog:
        """A copy of the log that no lane can grow while it is written to a file."""
        for look in self.before_snapshot:
            look()
        log = self.log
        return replace(
            log,
            ops=list(log.ops),
            blocked=list(log.blocked),
            spans=list(log.spans),
            steps=list(log.steps),
            counts=dict(log.counts),
            end=log.end or self.now(),
        )
