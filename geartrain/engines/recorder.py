"""`Recorder`: what a rank of real processes writes its log with: the clock, the lane it is on, the open operations."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from geartrain.record.log import Blocked, OpKey, RankLog


class _LaneName(threading.local):
    name: str = ""


class Recorder:
    """One rank's log and the clock that its times are taken from.

    Seconds count from a moment that all ranks of a host share: CLOCK_MONOTONIC is the same in all its processes.

    Attributes:
        log: what has been written so far.
        recording: False while the engine sets up, so that its own operations stay out of the log.
        lost: the first error of an operation with other ranks. A rank that fails with it was probably not the cause.
        before_snapshot: called before the log is taken, to look once more at what was still in flight.
    """

    def __init__(self, log: RankLog, origin: float | None = None) -> None:
        self.log, self.origin = log, time.monotonic() if origin is None else origin
        self.recording = True
        self.lost: BaseException | None = None
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

    @contextmanager
    def blocked(self, what: str, key: OpKey | None = None) -> Iterator[None]:
        """What runs inside is standing still. The entry is open from the start, so a log cut short shows it too."""
        entry = Blocked(self.now(), -1.0, key, self.lane, what)
        if self.recording:
            self.log.blocked.append(entry)
        try:
            yield
        finally:
            entry.end = self.now()

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
