"""The station: a process with one thread that owns the emulated networks and forks the processes inside them.

It is started once by each program that emulates (`geartrain.emu.client`), loads what ranks need, keeps the networks it
has built, and forks every rank from itself, so that a run on eight nodes begins in a fraction of a second. When the
program that started it ends, however it ends, the station ends everything and itself; when the station is killed, the
kernel kills what it has forked. Networks need no removal: they go with the processes that hold them.

Run as `python -m geartrain.emu.station DESCRIPTOR PARENT RUN`.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from geartrain.emu import begin
from geartrain.emu.cleanup import end_processes, note
from geartrain.emu.counters import HostCounter
from geartrain.emu.messages import Child, Ended, Load, Prepare, Refused, Run, Stop
from geartrain.emu.namespaces import adopt_orphans, die_with_parent, enter_own_network, quiet_network
from geartrain.emu.network import RELAYS, Network
from geartrain.emu.plan import Plan
from geartrain.errors import ConfigurationError

_MOST_NETWORKS = 8  # kept at once; chosen


class Station:
    """The loop of the station's process.

    Args:
        control: to the program that started it.
        parent: its process.
        run: id of all that is made here.
    """

    def __init__(self, control: Connection, parent: int, run: str) -> None:
        self._control, self._parent, self._run = control, os.pidfd_open(parent), run
        self._networks: dict[Plan, Network] = {}
        self._number = 0

    def serve(self) -> None:
        """Until the parent has ended or closed its end."""
        while True:
            watched: list[Any] = [self._control, self._parent]
            ready, _, _ = select.select(watched, [], [])
            if self._parent in ready:
                return
            try:
                request = self._control.recv()
            except (EOFError, OSError):
                return
            try:
                answer = self._answer(request)
            except _ParentEnded:
                return
            except Exception as error:
                answer = Refused(_sendable(error))
            self._control.send(answer)

    def _answer(self, request: object) -> object:
        match request:
            case Load(modules):
                for module in modules:
                    importlib.import_module(module)
                gc.collect()
                gc.freeze()  # what is loaded lives as long as the ranks do
                return None
            case Prepare(plan):
                return self._network(plan).info
            case Run():
                return _Running(self._control, self._parent, self._run, self._network(request.plan), request).ended()
            case Stop():
                return None
        raise TypeError(f"the station does not know {request!r}")

    def _network(self, plan: Plan) -> Network:
        network = self._networks.pop(plan, None)
        if network is None:
            if len(self._networks) >= _MOST_NETWORKS:
                self._networks.pop(next(iter(self._networks))).close()
            self._number += 1
            network = Network(plan, f"{self._run[:4]}{self._number:x}")
        self._networks[plan] = network  # the one used last is the last to go
        return network


class _ParentEnded(Exception):
    """Whoever wanted the answer is gone."""


class _Running:
    """One run: forks its processes and waits for their ends."""

    def __init__(self, control: Connection, parent: int, run: str, network: Network, request: Run) -> None:
        self._control, self._parent, self._run, self._network, self._request = control, parent, run, network, request
        self._failed: dict[int, int] = {}
        self._before: dict[str, tuple[int, int]] = {}
        self._kill_at: float | None = None
        self._helpers: list[int] = []
        self._ranks: dict[int, tuple[int, int]] = {}  # process descriptor -> (index, pid)

    def ended(self) -> Ended:
        """Run to the end."""
        descriptors = self._receive_descriptors()
        self._network.relay_report()
        self._before, self._host = self._network.carried(), HostCounter()
        begun, theirs = socket.socketpair()
        try:
            for index, child in enumerate(self._request.children):
                pid = self._fork(child, descriptors, theirs)
                if child.helps:
                    self._helpers.append(pid)
                else:
                    self._ranks[os.pidfd_open(pid)] = (index, pid)
            theirs.close()
            for descriptor in descriptors:
                os.close(descriptor)
            while self._ranks:
                self._wait(begun)
            (seconds, busy), after = self._host.read(), self._network.carried()
        finally:
            begun.close()
            self._end_all()
        carried = {
            link: (count - self._before[link][0], packets - self._before[link][1])
            for link, (count, packets) in after.items()
        }
        return Ended(self._failed, carried, self._network.relay_report(), seconds, busy)

    def _receive_descriptors(self) -> list[int]:
        with socket.socket(fileno=os.dup(self._control.fileno())) as channel:
            _, descriptors, _, _ = socket.recv_fds(channel, 1, self._request.num_descriptors)
        return list(descriptors)

    def _fork(self, child: Child, descriptors: list[int], begun: socket.socket) -> int:
        station = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(station)
                self._become(child, descriptors, begun)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        return pid

    def _become(self, child: Child, descriptors: list[int], begun: socket.socket) -> NoReturn:
        self._network.enter(child.host)
        for number, which in enumerate(child.output, 1):
            os.dup2(descriptors[which], number)
        for held in {*descriptors, *self._network.descriptors(), self._control.fileno(), self._parent, *self._ranks}:
            os.close(held)
        os.environ.update(child.environ)
        begin.channel = begun
        spawn.prepare(dict(self._request.setting))
        call: Callable[[], object] = pickle.loads(child.call)
        call()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def _wait(self, begun: socket.socket) -> None:
        timeout = None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        watched: list[Any] = [*self._ranks, self._parent, self._control]
        if begun.fileno() >= 0:
            watched.append(begun)
        ready, _, _ = select.select(watched, [], [], timeout)
        if self._parent in ready:
            raise _ParentEnded
        if begun in ready:
            self._note_begin(begun)
        if self._control in ready:
            self._obey()
        for descriptor in ready:
            if isinstance(descriptor, int) and descriptor in self._ranks:
                self._reap(descriptor)
        if self._failed and self._kill_at is None:
            self._stop()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._signal(signal.SIGKILL)
            self._kill_at = time.monotonic() + self._request.grace

    def _note_begin(self, begun: socket.socket) -> None:
        """All ranks are there: what was sent until now was the engine's."""
        if begun.recv(1):
            self._before, self._host = self._network.carried(), HostCounter()
            begun.send(b"!")
        else:
            begun.close()

    def _obey(self) -> None:
        try:
            self._control.recv()
        except (EOFError, OSError):
            raise _ParentEnded from None
        if self._kill_at is None:
            self._stop()

    def _reap(self, descriptor: int) -> None:
        index, pid = self._ranks.pop(descriptor)
        os.close(descriptor)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status and self._kill_at is None:
            self._failed[index] = status

    def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._request.grace

    def _signal(self, number: signal.Signals) -> None:
        for _, pid in self._ranks.values():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _end_all(self) -> None:
        """Helpers, what ranks started and left behind, and on the way out of an error the ranks themselves."""
        self._signal(signal.SIGKILL)
        for pid in (*self._helpers, *(pid for _, pid in self._ranks.values())):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for descriptor in self._ranks:
            os.close(descriptor)
        self._ranks.clear()
        for pid in _children() - RELAYS:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def _children() -> set[int]:
    with suppress(OSError):  # not every kernel tells
        return {int(text) for text in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    return set()


def _sendable(error: Exception) -> BaseException:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return ConfigurationError(f"the emulated network cannot be built: {type(error).__name__}: {error}")
    if isinstance(error, OSError):
        return ConfigurationError(f"the emulated network cannot be built: {error}")
    return error


def main() -> None:
    """Entry point; see the module."""
    control, parent, run = Connection(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    word = note(run, parent)
    try:
        try:
            right = enter_own_network()
            quiet_network()
        except Exception as error:
            control.send(Refused(_sendable(error)))
            return
        adopt_orphans()
        control.send(right)
        Station(control, parent, run).serve()
    finally:
        end_processes(run, spare=os.getpid())
        word.unlink(missing_ok=True)
        os._exit(0)


if __name__ == "__main__":
    main()
