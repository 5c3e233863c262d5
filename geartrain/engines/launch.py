"""Starts the ranks of a run as processes with torchrun's launcher, waits for them, and says why they ended.

Processes come from a server that has already loaded PyTorch, so only the first run of a program pays for that. Measured
on two slow cores, two ranks: 2.4 s for the first run, 0.2 s for each later one, against 3.2 s for every run without it;
what the first step of an optimizer loads is another 1.5 s, which the server has paid too.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from geartrain.engines.rank_process import (
    LEFT_EARLY,
    NOT_THERE,
    Ending,
    Failure,
    Job,
    Program,
    make_steps,
    read_endings,
    read_steps,
    run_rank,
)
from geartrain.engines.standstill import Watch, make_file
from geartrain.errors import ConfigurationError, DeadlockError, RankFailed, RunError
from geartrain.record.log import RankLog, RunRecord
from geartrain.torch_private import SLOW_IMPORTS

PRELOAD = [
    "torch",
    "torch.distributed",
    "torch.distributed.launcher.api",
    *SLOW_IMPORTS,
    "geartrain.engines.real",
    "geartrain.engines.fork_server",
]
PATIENCE = 60.0
"""Seconds in which no rank begins or ends anything, after which a run is given up; chosen."""
GRACE = 5  # seconds that a rank gets to stop before it is killed; chosen
_LOUD = ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing", "torchelastic")


@dataclass
class Outcome:
    """How the processes of a run ended.

    Attributes:
        endings: the word each rank left, if it did.
        steps: the step each rank was in, or `NO_STEP` or `NOT_THERE`, which are below zero.
        failed: exit status of the rank that the launcher saw fail first, by rank; below zero for a signal.
        interrupted: name of the signal that this process got, if it did.
        lost: exit status of the workers that died and that the others went on without, by rank.
        standstill: who waits for what, if the run was ended because no rank went on.
        emulation: see `RunRecord`.
    """

    roles: tuple[str, ...]
    engine: str = "real"
    endings: list[Ending | None] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    failed: dict[int, int] = field(default_factory=dict)
    lost: dict[int, int] = field(default_factory=dict)
    interrupted: str | None = None
    standstill: str | None = None
    wall: float = 0.0
    link_bytes: dict[str, float] = field(default_factory=dict)
    emulation: dict[str, Any] = field(default_factory=dict)

    def record(self) -> RunRecord:
        """What the ranks wrote down; raises the error that ended the run, if one did, with the record so far."""
        silent = any(ending is None and rank not in self.lost for rank, ending in enumerate(self.endings))
        try:
            if self.interrupted is None and (self.failed or self.standstill or silent):
                self._raise()
        except RunError as error:
            error.record = self._record(type(error).__name__)
            raise
        return self._record(self.interrupted)

    def _record(self, interrupted: str | None) -> RunRecord:
        logs = [
            RankLog(rank, self.roles[rank]) if ending is None else ending.log
            for rank, ending in enumerate(self.endings)
        ]
        return RunRecord(
            engine=self.engine,
            logs=logs,
            results=[None if ending is None else ending.result for ending in self.endings],
            wall=self.wall,
            virtual=False,
            interrupted=interrupted,
            link_bytes=self.link_bytes,
            emulation=self.emulation,
            lost={rank: self._how(rank, status) for rank, status in sorted(self.lost.items())},
        )

    def _raise(self) -> None:
        if self.standstill is not None:
            raise DeadlockError(self.standstill)
        rank = self._culprit()
        ending, step = self.endings[rank], self.steps[rank] if self.steps[rank] >= 0 else None
        where, during = f"rank {rank} ({self.roles[rank]})", self._during(rank)
        if ending is not None and ending.failure is not None:
            _raise_failure(ending.failure, rank, step, where, during)
        if ending is not None and ending.how == "stopped" and ending.signal == signal.SIGINT:
            self.interrupted = "SIGINT"
            return
        text = self._how(rank, self.failed.get(rank))
        raise RankFailed(f"{where} {text}; a rank must return from its program", rank=rank, step=step)

    def _during(self, rank: int) -> str:
        return "" if self.steps[rank] < 0 else f" in step {self.steps[rank]}"

    def _how(self, rank: int, status: int | None) -> str:
        """How a rank ended that did not raise: "was killed by SIGKILL in step 3"."""
        ending = self.endings[rank]
        if ending is not None and ending.how == "stopped":
            text = f"was stopped by {signal.Signals(ending.signal).name}"
        elif status is not None and status < 0:
            text = f"was killed by {signal.Signals(-status).name}"
        elif status == LEFT_EARLY:
            text = "left early, by os._exit(0)"
        elif status:
            text = f"left early, with exit status {status}"
        else:
            text = "ended without a word"
        return text + self._during(rank)

    def _culprit(self) -> int:
        """The rank to name: one that vanished, else one that raised by itself, was stopped, or lost touch."""
        silent = [rank for rank, ending in enumerate(self.endings) if ending is None and rank not in self.lost]
        seen = [rank for rank in self.failed if rank in silent]
        there = [rank for rank in silent if self.steps[rank] != NOT_THERE]
        raised = sorted(
            (ending.failure.lost, ending.failure.when, rank)
            for rank, ending in enumerate(self.endings)
            if ending is not None and ending.failure is not None
        )
        by_itself = [rank for lost, _, rank in raised if not lost]
        stopped = [rank for rank in self.failed if (ending := self.endings[rank]) and ending.how == "stopped"]
        choices = [*seen, *by_itself, *stopped, *there, *(rank for *_, rank in raised), *silent]
        return choices[0]


def _raise_failure(failure: Failure, rank: int, step: int | None, where: str, during: str) -> None:
    lane = f", lane {failure.lane!r}," if failure.lane else ""
    trace = "".join(f"  {line}\n" for line in failure.trace.splitlines()).rstrip()
    if failure.error is not None:
        error: BaseException = pickle.loads(failure.error)
        error.add_note(f"raised on {where}{lane}{during}:\n{trace}")
        raise error
    if failure.kind == "SystemExit":
        text = f"{where}{lane} left early{during}, with exit status {failure.message or 0}"
    else:
        text = f"{where}{lane} raised {failure.kind}{during}: {failure.message}"
    if failure.lost:
        text += "\n  it lost touch with another rank, or they did not make the same calls"
    raise RankFailed(f"{text}\n{trace}", rank=rank, step=step)


Starter = Callable[[Job, bool, Outcome], None]
"""Starts the processes of a job, waits for their ends, and writes into the outcome how they failed."""


def launch(
    program: Program,
    roles: Sequence[str],
    *,
    prefix_output: bool = False,
    patience: float = PATIENCE,
    engine: str = "real",
    start: Starter | None = None,
) -> Outcome:
    """Run a program on one process per role and wait for the end of all.

    Args:
        prefix_output: print each line that a rank prints after "[rank] ".
        patience: seconds after which a run in which no rank goes on is ended.
        engine: name of the engine.
        start: how processes are started; by default with torchrun's launcher, on this host.

    Raises ConfigurationError when the program cannot be sent to another process.
    """
    outcome, begun = Outcome(tuple(roles), engine), time.monotonic()
    folder = tempfile.mkdtemp(prefix="geartrain-")
    try:
        make_steps(folder, len(roles))
        make_file(folder, len(roles))
        job = Job(folder, outcome.roles, begun, dict(os.environ), _pickled(program))
        with Watch(folder, outcome.roles, patience) as watch:
            (start or _run_processes)(job, prefix_output, outcome)
        outcome.standstill = watch.report
        outcome.endings, outcome.steps = read_endings(folder, len(roles)), read_steps(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome.wall = time.monotonic() - begun
    return outcome


def _run_processes(job: Job, prefix_output: bool, outcome: Outcome) -> None:
    before = set(multiprocessing.active_children())
    try:
        with _signals_given_back(), _quiet_launcher():
            multiprocessing.set_forkserver_preload(PRELOAD)
            with one_thread_each():
                elastic_launch(_config(job, prefix_output), run_rank)(job)
    except ChildFailedError as error:
        outcome.failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
    except SignalException as error:
        outcome.interrupted = signal.Signals(error.sigval).name
    except KeyboardInterrupt:
        outcome.interrupted = "SIGINT"
    finally:
        # Only a launcher that was itself cut short leaves any.
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
            process.join(GRACE)


def _config(job: Job, prefix_output: bool) -> LaunchConfig:
    if prefix_output:
        logs = DefaultLogsSpecs(log_dir=str(Path(job.folder, "output")), tee=Std.ALL)
    else:
        logs = DefaultLogsSpecs(log_dir=os.devnull)
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=len(job.roles),
        run_id=Path(job.folder).name,
        rdzv_backend="static",
        rdzv_endpoint=f"127.0.0.1:{_free_port()}",
        rdzv_configs={"rank": 0, "timeout": 60},
        max_restarts=0,
        monitor_interval=0.05,
        start_method="forkserver",
        logs_specs=logs,
        log_line_prefix_template="[${rank}] " if prefix_output else None,
        local_addr="127.0.0.1",
        shutdown_timeout=GRACE,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _pickled(program: Program) -> bytes:
    try:
        return pickle.dumps(program)
    except Exception as error:
        raise ConfigurationError(
            f"the program of the ranks cannot be sent to another process: {error}\n"
            "  give a function (or an instance of a class) that stands at the top of a module, and only plain values, "
            "tensors and modules with it; no lambda, no function inside a function, no open file"
        ) from error


@contextmanager
def one_thread_each() -> Iterator[None]:
    """As torchrun does: the threads of several ranks would fight for the cores. The server of processes inherits it."""
    given = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        yield
    finally:
        if given is None:
            del os.environ["OMP_NUM_THREADS"]


@contextmanager
def _signals_given_back() -> Iterator[None]:
    """The launcher takes signals over in the main thread and keeps them."""
    name = "TORCHELASTIC_SIGNALS_TO_HANDLE"
    environ = os.environ.get(name)
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT) if main else ()
    handlers: dict[signal.Signals, Any] = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.pop(name, None)
        if environ is not None:
            os.environ[name] = environ


@contextmanager
def _quiet_launcher() -> Iterator[None]:
    """What the launcher would log about a failed rank, `RankFailed` says in our own words."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith(_LOUD)]
    loggers = [logger for logger in map(logging.getLogger, names) if not logger.disabled]
    for logger in loggers:
        logger.disabled = True
    try:
        sys.stdout.flush()
        yield
    finally:
        for logger in loggers:
            logger.disabled = False
