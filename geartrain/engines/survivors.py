"""Starts the ranks of a run that goes on when a worker's process dies, and tells the others of it.

torchrun's launcher, which starts all other runs, ends every rank as soon as one is gone. Here a worker that is killed,
stopped or leaves without a word is *lost*: it is written down, and the run ends when the others have ended. A rank that
raises, a service that is gone, a worker that is gone before its first step, and the last worker end the run as ever.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from geartrain.engines.launch import GRACE, PRELOAD, Outcome, one_thread_each
from geartrain.engines.rank_process import Job, ending_path, read_endings, read_steps, run_rank
from geartrain.engines.signals import signals_raised
from geartrain.engines.standstill import tell_lost

_HOST = "127.0.0.1"


def left(rank: int) -> str:
    """The key in the store under which a rank, or who saw it die, says that it needs nobody any more."""
    return f"left {rank}"


class _SignalReceived(BaseException):
    """This process got a signal that ends programs; its name is the argument."""


def start_survivors(job: Job, prefix_output: bool, outcome: Outcome) -> None:
    """A `Starter`, see `geartrain.engines.launch`; it runs functions, whose output has no prefix."""
    assert not prefix_output, "only scripts have their output prefixed"
    store = TCPStore(_HOST, 0, is_master=True, wait_for_workers=False)
    processes: dict[int, BaseProcess] = {}
    try:
        with signals_raised(_SignalReceived):
            multiprocessing.set_forkserver_preload(PRELOAD)
            context = multiprocessing.get_context("forkserver")
            with one_thread_each():
                for rank in range(len(job.roles)):
                    processes[rank] = context.Process(target=_run, args=(job, _told(job, rank, store.port)))
                    processes[rank].start()
            _attend(job, dict(processes), store, outcome)
    except _SignalReceived as received:
        outcome.interrupted = str(received)
    except KeyboardInterrupt:
        outcome.interrupted = "SIGINT"
    finally:
        _end(processes.values())


def _attend(job: Job, running: dict[int, BaseProcess], store: Any, outcome: Outcome) -> None:
    """Until all have ended, or one has whose end is that of the run."""
    while running:
        wait([process.sentinel for process in running.values()])
        for rank, process in list(running.items()):
            if process.is_alive():
                continue
            process.join()
            del running[rank]
            status = process.exitcode
            if not status:
                continue
            if not _may_be_lost(job, rank, outcome):
                outcome.failed[rank] = status
                return
            outcome.lost[rank] = status
            tell_lost(job.folder, rank)
            store.set(left(rank), "")


def _may_be_lost(job: Job, rank: int, outcome: Outcome) -> bool:
    workers = job.roles.count("worker")
    if job.roles[rank] != "worker" or len(outcome.lost) + 1 == workers or read_steps(job.folder)[rank] < 0:
        return False
    ending = read_endings(job.folder, len(job.roles))[rank] if ending_path(job.folder, rank).exists() else None
    return ending is None or (ending.how == "stopped" and ending.signal != signal.SIGINT)


def _end(processes: Any) -> None:
    """Ask those that are left to stop, and insist after a while."""
    there = [process for process in processes if process.pid is not None]
    for process in there:
        if process.is_alive():
            process.terminate()
    end = time.monotonic() + GRACE
    for process in there:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join(GRACE)


def _told(job: Job, rank: int, port: int) -> dict[str, str]:
    """What torchrun tells a rank."""
    size = len(job.roles)
    told = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": port,
        "GROUP_RANK": 0,
        "GROUP_WORLD_SIZE": 1,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default",
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": Path(job.folder).name,
    }
    return {name: str(value) for name, value in told.items()}


def _run(job: Job, told: dict[str, str]) -> None:
    """In the rank's process."""
    os.environ.update(told)
    run_rank(job)
