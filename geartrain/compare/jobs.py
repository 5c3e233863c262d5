"""Several simulated runs at a time, each in a process of its own: threads of one process would take turns.

A process does run after run, so that it loads and prices operations once. Ctrl-C reaches the parent alone, which asks
each process to stop; what they had measured comes back. A process whose parent is gone ends at once, so that nothing
writes into a folder that somebody else goes on with.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NoReturn

from geartrain.compare.cell import Result
from geartrain.compare.grid import Grid

if TYPE_CHECKING:
    from geartrain.compare.runner import Outcome, Progress, Run

_GRACE = 30.0  # seconds that a run which is told to stop may take to write what it has; chosen


def in_processes(grid: Grid, runs: Sequence[Run], progress: Progress) -> Iterator[tuple[Run, Outcome]]:
    """Each run with its outcome, in the order in which they end; on Ctrl-C those that had begun, then the interrupt."""
    for cluster in grid.clusters:
        grid.engine(cluster)  # what has to be measured is measured here, once and alone
    left = deque(runs)
    hands = [_Hand(grid) for _ in range(min(grid.jobs, len(runs)))]
    try:
        for hand in hands:
            _give(hand, left, hands, progress)
        while busy := [hand for hand in hands if hand.run]:
            for hand in _ready(busy):
                run, outcome = hand.take()
                if hand.lost:
                    hands[hands.index(hand)] = hand = _Hand(grid)
                _give(hand, left, hands, progress)
                yield run, outcome
    except KeyboardInterrupt:
        yield from _stop(hands)
        raise
    finally:
        for hand in hands:
            hand.end()


def _give(hand: _Hand, left: deque[Run], hands: Sequence[_Hand], progress: Progress) -> None:
    if left:
        hand.begin(left.popleft())
        progress.start("; ".join(str(one.run) for one in hands if one.run))


def _ready(hands: Sequence[_Hand], timeout: float | None = None) -> list[_Hand]:
    found = wait([hand.connection for hand in hands], timeout)
    return [hand for hand in hands if hand.connection in found]


def _stop(hands: Sequence[_Hand]) -> Iterator[tuple[Run, Outcome]]:
    """Ask all to stop, and take what they have until then."""
    busy = [hand for hand in hands if hand.run]
    for hand in busy:
        hand.process.terminate()
    while busy and (ready := _ready(busy, _GRACE)):
        for hand in ready:
            run, outcome = hand.take()
            if isinstance(outcome, Result):
                yield run, outcome
        busy = [hand for hand in busy if hand.run]


class _Hand:
    """A process that does runs.

    Attributes:
        run: what it does now.
        lost: it ended in the middle of it.
    """

    def __init__(self, grid: Grid) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.run: Run | None = None
        self.lost = False
        self._grid = grid
        self.connection.send(grid)

    def begin(self, run: Run) -> None:
        self.run = run
        self.connection.send(run)

    def take(self) -> tuple[Run, Outcome]:
        """What came of the run."""
        run, self.run = self.run, None
        assert run is not None, "only a process with a run is waited for"
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.lost = True
            self.process.join(1.0)
            answer = f"its process ended by itself, with exit status {self.process.exitcode}"
        if isinstance(answer, str):
            return run, None if run.alone else _failed(self._grid, run, answer)
        outcome: Outcome = answer[0]
        return run, outcome

    def end(self) -> None:
        """Let it go; one that is still busy is ended."""
        if self.run is None and not self.lost:
            self.connection.send(None)
            self.process.join(5.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def _failed(grid: Grid, run: Run, error: str) -> Result:
    return Result(cell=run.cell, engine=grid.engine_name, metrics={}, error=error)


def _serve(connection: Connection) -> None:
    """What a process does: runs that come in, until None comes."""
    from geartrain.compare.runner import perform

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, inbox), daemon=True).start()
    try:
        grid = inbox.get()
        while (run := inbox.get()) is not None:
            try:
                answer: Any = (perform(grid, run),)
            except Exception as error:
                answer = f"{type(error).__name__}: {error}"
            connection.send(answer)
    except KeyboardInterrupt:
        return


def _receive(connection: Connection, inbox: queue.SimpleQueue[Any]) -> None:
    """Hand on what the parent sends; when it is gone, so is this process."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        os._exit(1)


def _interrupt(number: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt
