"""When no rank of a real run goes on any more: noticed, told who waits for what and where, and ended.

Each rank's process has a thread that once a second leaves a line about its main lane in a file: running, standing still
in which operation, or finished. The parent reads them. When for `patience` seconds every rank has stood still or
finished and none has begun or ended an operation, nobody is going to: a rank returned early, skipped a collective, or
waits in a cycle. Nothing of this is on the path of an operation.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from geartrain.engines.recorder import Recorder
from geartrain.record.log import Blocked
from geartrain.runtime.places import innermost

_SLOT = 1024
_EVERY = 1.0  # seconds between two looks; chosen
_NEEDS_NOBODY = ("sleep",)


@dataclass(frozen=True)
class Standing:
    """What a rank says of itself: `state` is "running", "waiting" or "finished"; of a lost one, the parent says "lost".

    `progress` changes when it does anything.
    """

    pid: int
    state: str
    progress: tuple[int, ...]
    what: str = ""
    where: str = ""


def make_file(folder: str, num_ranks: int) -> None:
    """The file that ranks leave their lines in."""
    _path(folder).write_bytes(b" " * (_SLOT * num_ranks))


def tell_lost(folder: str, rank: int) -> None:
    """Put "lost" in the line of a rank whose process has died: the others are not waiting for it to go on."""
    with open(_path(folder), "r+b", buffering=0) as file:
        _write(file, rank, Standing(0, "lost", ()))


def _write(file: BinaryIO, rank: int, standing: Standing) -> None:
    file.seek(rank * _SLOT)
    file.write(json.dumps(asdict(standing)).encode()[:_SLOT].ljust(_SLOT))


class Teller:
    """Tells, once a second, how this rank's main lane stands.

    Args:
        folder: of the run.
        rank: of this process.
        recorder: whose open entries are looked at.
    """

    def __init__(self, folder: str, rank: int, recorder: Recorder) -> None:
        self.finished = False
        self._path, self._rank, self._recorder = _path(folder), rank, recorder
        self._main = threading.main_thread().ident or 0
        self._last: tuple[int, ...] = ()
        threading.Thread(target=self._loop, name="standing", daemon=True).start()

    def _loop(self) -> None:
        with suppress(OSError), open(self._path, "r+b", buffering=0) as file:
            while self._path.exists():
                _write(file, self._rank, self._standing())
                time.sleep(_EVERY)

    def _standing(self) -> Standing:
        log = self._recorder.log
        progress = (len(log.ops), len(log.blocked), len(log.steps))
        if self.finished:
            return Standing(os.getpid(), "finished", progress)
        entry = next((b for b in reversed(log.blocked[-32:]) if not b.lane and b.end < 0), None)
        if entry is None or entry.what in _NEEDS_NOBODY:
            return Standing(os.getpid(), "running", progress)
        return Standing(os.getpid(), "waiting", progress, _told(entry)[:300], self._where(progress))

    def _where(self, progress: tuple[int, ...]) -> str:
        """Where the main lane stands; frames of a lane that is going on are left alone."""
        stood, self._last = progress == self._last, progress
        return innermost(sys._current_frames().get(self._main))[:500] if stood else ""


def _told(entry: Blocked) -> str:
    key = entry.key
    if key is None:
        return entry.what
    if len(key) == 3:
        return f"{entry.what} #{key[2]} of group {key[0]}"
    group, _, source, destination, tag, _ = key
    other = f"to group rank {destination}" if entry.what == "send" else f"from group rank {source}"
    return f"{entry.what} {other if source is not None else 'from any rank'}, tag {tag}, group {group}"


class Watch:
    """The parent's side: ends the ranks of a run in which nobody goes on.

    Args:
        folder: of the run.
        roles: of the ranks.
        patience: seconds of standstill after which the run is ended.

    Attributes:
        report: who waits for what, once the run was ended for it.
    """

    def __init__(self, folder: str, roles: Sequence[str], patience: float) -> None:
        self.report: str | None = None
        self._path, self._roles, self._patience = _path(folder), roles, patience
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="standstill", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _loop(self) -> None:
        seen: object = None
        since = time.monotonic()
        while not self._over.wait(_EVERY):
            standings = self._read()
            now = None if standings is None else [(s.state, s.progress) for s in standings]
            if now is None or now != seen or not _nobody_goes_on(standings or []):
                seen, since = now, time.monotonic()
            elif time.monotonic() - since >= self._patience and standings:
                self.report = self._reported(standings)
                for standing in standings:
                    if standing.state == "lost":
                        continue
                    with suppress(ProcessLookupError):
                        os.kill(standing.pid, signal.SIGTERM)
                return

    def _read(self) -> list[Standing] | None:
        with suppress(OSError, ValueError):
            data = self._path.read_bytes()
            lines = [data[begin : begin + _SLOT] for begin in range(0, len(data), _SLOT)]
            said = [json.loads(line) for line in lines]
            return [Standing(**{**one, "progress": tuple(one["progress"])}) for one in said]
        return None

    def _reported(self, standings: Sequence[Standing]) -> str:
        lines = []
        for rank, standing in enumerate(standings):
            gone = {"finished": "has finished", "lost": "was lost"}
            text = gone.get(standing.state, f"waits in {standing.what}")
            lines.append(f"  rank {rank} ({self._roles[rank]})  {text}")
            if standing.where:
                lines.append(f"      {standing.where}")
        finished = [str(rank) for rank, standing in enumerate(standings) if standing.state == "finished"]
        if finished:
            likely = (
                f"rank {', '.join(finished)} returned while others still wait for it; "
                "all ranks must make the same calls"
            )
        else:
            likely = (
                "a rank skipped a collective, the ranks made their calls in different orders, or they wait in a cycle"
            )
        return (
            f"no rank has gone on for {self._patience:g} s\n" + "\n".join(lines) + f"\n  likely:  {likely}; "
            "`geartrain simulate` runs the same program and names the call"
        )


def _nobody_goes_on(standings: Sequence[Standing]) -> bool:
    states = {standing.state for standing in standings}
    return "running" not in states and "waiting" in states


def _path(folder: str) -> Path:
    return Path(folder, "standing")
