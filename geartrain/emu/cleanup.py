"""What a run leaves if it is cut short, and how it is found: a note per run, and a mark on each of its processes.

Nothing but processes keeps the emulated networks alive, so a run is removed when they are. In the usual course the
station sees its parent end and ends all others, and the kernel kills what it forked when the station is killed. What is
left then is only what a rank's own program started and both were killed too fast for.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

MARK = "GEARTRAIN_EMULATED_RUN"
"""Environment variable that holds the run's id in every process of a run."""

_GRACE = 5.0  # seconds that killed processes get to be gone; chosen


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same number by when it started (clock ticks since boot)."""

    pid: int
    started: int

    @staticmethod
    def of(pid: int) -> Process | None:
        """The process with that number, unless it has ended."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else Process(pid, int(fields[19]))

    def alive(self) -> bool:
        """Whether it is still there."""
        return Process.of(self.pid) == self


@dataclass(frozen=True)
class Removed:
    """A stale run and how many processes of it were ended."""

    run: str
    processes: int


def folder() -> Path:
    """Where the notes of this user's runs are."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir(), f"geartrain-emulated-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise PermissionError(f"{path} belongs to another user")
    return path


def note(run: str, parent: int) -> Path:
    """Leave word that a run exists, for as long as `parent` lives."""
    path = folder() / f"{run}.json"
    process = Process.of(parent)
    assert process is not None, "a run has a parent"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(process)))
    part.rename(path)
    return path


def remove_stale() -> list[Removed]:
    """End what runs whose parents are gone have left; runs that go on are not touched."""
    removed = []
    for path in sorted(folder().glob("*.json")):
        try:
            parent = Process(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError):
            continue  # another process is removing or writing it
        if not parent.alive():
            removed.append(Removed(path.stem, end_processes(path.stem)))
            path.unlink(missing_ok=True)
    return removed


def end_processes(run: str, spare: int | None = None) -> int:
    """Kill all processes that bear a run's mark but one, and wait until they are gone; how many there were."""
    ended: set[int] = set()
    until = time.monotonic() + _GRACE
    while (found := [p for p in marked(run) if p.pid != spare]) and time.monotonic() < until:
        for process in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)
            ended.add(process.pid)
        time.sleep(0.02)
    return len(ended)


def marked(run: str) -> Iterator[Process]:
    """The processes that bear a run's mark."""
    mark = f"{MARK}={run}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                process = Process.of(int(entry.name))
                if process and mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield process
