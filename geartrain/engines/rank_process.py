"""A rank's process: how it begins, how it is stopped, and the word it leaves about its end, whatever that end is.

    returned    the program came to its end; its result and log are in the file
    raised      it raised, in the main lane or another; error, traceback and log are in the file
    stopped     a signal ended it; the log so far is in the file
    (no file)   killed, or ended by the system

Signals reach a thread of their own: Python runs a handler only in the main thread, which may be blocked in C++ forever.
"""

from __future__ import annotations

import atexit
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol

import torch

from geartrain.engines.recorder import Recorder
from geartrain.engines.standstill import Teller
from geartrain.errors import GeartrainError, RunError
from geartrain.record.log import RankLog

NO_STEP = -1  # in the file of steps: the rank is there and has not begun a step
NOT_THERE = -2  # in the file of steps: the rank's process has not begun
_STEP = struct.Struct("q")
_GRACE = 1.0  # seconds that a rank which lost others waits, so that the launcher sees first who was lost; chosen
LEFT_EARLY = 70  # exit status of a rank that asked to exit with 0 before its program had ended; chosen

# What torchrun's launcher tells each rank; all else in the environment is the parent's.
_LAUNCHER_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LAUNCHER_PREFIXES = ("GROUP_", "ROLE_", "TORCHELASTIC_", "TORCH_NCCL_")


@dataclass(frozen=True)
class Failure:
    """An error of a rank, as it goes to the parent.

    Attributes:
        kind, message, trace: type, text and traceback of the error.
        error: the error itself, pickled, if geartrain raised it on purpose and it can be pickled.
        when: on the clock that all processes of the host share.
        lane: the lane that raised; "" is the main one.
        lost: whether it came out of an operation with other ranks, so that one of them is the likelier cause.
    """

    kind: str
    message: str
    trace: str
    error: bytes | None
    when: float
    lane: str
    lost: bool


@dataclass(frozen=True)
class Ending:
    """The word a rank leaves: see the module."""

    how: Literal["returned", "raised", "stopped"]
    log: RankLog
    result: Any = None
    failure: Failure | None = None
    signal: int = 0


class Program(Protocol):
    """What a rank runs; is pickled."""

    def run(self, rank: RankProcess) -> Any: ...


@dataclass(frozen=True)
class Job:
    """What the parent hands to each rank.

    Attributes:
        folder: where ranks leave their words.
        roles: role of each rank.
        origin: the moment from which seconds count, on the host's monotonic clock.
        environ: the parent's environment: the rank may descend from a server that was started in another one.
        program: a pickled `Program`.
    """

    folder: str
    roles: tuple[str, ...]
    origin: float
    environ: Mapping[str, str] = field(repr=False)
    program: bytes = field(repr=False)


def run_rank(job: Job) -> None:
    """Entry point of a rank's process."""
    told = {name: value for name, value in os.environ.items() if _from_launcher(name)}
    os.environ.clear()
    os.environ.update({**job.environ, **told})
    torch.set_num_threads(1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    rank = RankProcess(job, int(os.environ["RANK"]))
    try:
        program: Program = pickle.loads(job.program)
        result = program.run(rank)
        rank.leave_result(result)
    except BaseException as error:
        rank.fail(error)


def _from_launcher(name: str) -> bool:
    return name in _LAUNCHER_NAMES or name.startswith(_LAUNCHER_PREFIXES)


class RankProcess:
    """This process, as the engine sees it."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank, self.role = job, rank, job.roles[rank]
        self.recorder = Recorder(RankLog(rank, self.role), job.origin)
        self._lock, self._ended = threading.Lock(), False
        with open(Path(job.folder, "steps"), "r+b") as file:
            self._steps = mmap.mmap(file.fileno(), 0)
        self.on_step(NO_STEP)
        self.teller = Teller(job.folder, rank, self.recorder)
        watch_signals(self._stop)
        self._forbid_silent_exit()

    def on_step(self, step: int) -> None:
        """Leave the number of the step where it can be read after this process was killed."""
        _STEP.pack_into(self._steps, self.rank * _STEP.size, step)

    def leave_result(self, result: Any) -> None:
        """The program came to its end."""
        ending = Ending("returned", self.recorder.snapshot(), result)
        try:
            data = pickle.dumps(ending)
        except Exception as error:
            raise TypeError(
                f"what `main(ctx)` returned on rank {self.rank}, a {type(result).__name__}, cannot be pickled; "
                f"return plain values and tensors ({error})"
            ) from error
        self._leave(data)

    def fail(self, error: BaseException) -> NoReturn:
        """End this process because of an error; may be called by any lane."""
        lost = self.recorder.lost is not None and self.recorder.lost in _chain(error)
        if isinstance(error, RunError) and error.rank is None:
            error.rank = self.rank
        failure = Failure(
            type(error).__name__,
            str(error),
            "".join(traceback.format_exception(error)),
            _pickled(error),
            time.monotonic(),
            self.recorder.lane,
            lost,
        )
        self._leave(pickle.dumps(Ending("raised", self.recorder.snapshot(), failure=failure)))
        if lost:
            time.sleep(_GRACE)
        _exit_now(1)

    def _stop(self, number: int) -> None:
        self._leave(pickle.dumps(Ending("stopped", self.recorder.snapshot(), signal=number)))
        _exit_now(128 + number)

    def _leave(self, data: bytes) -> None:
        """Write the word about the end; the first one counts."""
        with self._lock:
            if self._ended:
                return
            path = ending_path(self.job.folder, self.rank)
            path.with_suffix(".part").write_bytes(data)
            path.with_suffix(".part").rename(path)
            self._ended = True

    def _forbid_silent_exit(self) -> None:
        """`os._exit(0)` in the middle of a run would look like success to the launcher, which then waits for ever."""
        leave, process = os._exit, os.getpid()

        def exit_seen(status: int) -> NoReturn:
            early = os.getpid() == process and status == 0 and not self._ended
            leave(LEFT_EARLY if early else status)

        os._exit = exit_seen


def ending_path(folder: str, rank: int) -> Path:
    """Where a rank leaves its word."""
    return Path(folder, f"rank-{rank}.end")


def read_endings(folder: str, num_ranks: int) -> list[Ending | None]:
    """What the ranks left; None for a rank that left nothing."""
    paths = [ending_path(folder, rank) for rank in range(num_ranks)]
    return [pickle.loads(path.read_bytes()) if path.exists() else None for path in paths]


def make_steps(folder: str, num_ranks: int) -> None:
    """Make the file in which ranks keep the number of their step."""
    Path(folder, "steps").write_bytes(_STEP.pack(NOT_THERE) * num_ranks)


def read_steps(folder: str) -> list[int]:
    """The step each rank was in, or `NO_STEP`, or `NOT_THERE`."""
    return [step for (step,) in _STEP.iter_unpack(Path(folder, "steps").read_bytes())]


def run_exit_functions() -> None:
    """What a script registered with `atexit`: a rank's process ends without the interpreter's own shutdown."""
    atexit._run_exitfuncs()


def watch_signals(stop: Callable[[int], None]) -> None:
    """Call `stop(number)` in a thread of its own on SIGTERM and SIGINT, unless the program handles it itself."""

    def noticed(number: int, frame: Any) -> None:
        return

    def forget() -> None:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is noticed:
                signal.signal(number, signal.SIG_DFL)

    def watch() -> None:
        while data := os.read(read, 1):
            if data[0] in (signal.SIGTERM, signal.SIGINT) and signal.getsignal(data[0]) is noticed:
                stop(data[0])

    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, noticed)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=forget)  # a data loader's process must die of the signal, not tell us of it
    threading.Thread(target=watch, name="signals", daemon=True).start()


def _exit_now(status: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(status)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _pickled(error: BaseException) -> bytes | None:
    if not isinstance(error, GeartrainError):
        return None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return None
    return data
