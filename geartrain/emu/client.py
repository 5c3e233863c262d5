"""The other end of a station: starts it, asks it for networks, runs processes in them, and ends it."""

from __future__ import annotations

import atexit
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import process, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from geartrain.emu.cleanup import MARK, remove_stale
from geartrain.emu.messages import Child, Ended, Load, Prepare, Refused, Run, Stop
from geartrain.emu.namespaces import Right
from geartrain.emu.network import NetworkInfo
from geartrain.emu.plan import Plan
from geartrain.errors import ConfigurationError, GeartrainError

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_GRACE = 10.0  # seconds that a station gets to end; chosen


@dataclass(frozen=True)
class Network:
    """A network that stands.

    Attributes:
        info: what it came to.
    """

    plan: Plan
    info: NetworkInfo


class Station:
    """A station of this process. What stale runs have left is removed first.

    Args:
        modules: what ranks need; loaded once, by and by with the first request.

    Attributes:
        run: id of everything that the station makes.
        right: whether it works as root or in a user namespace.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        remove_stale()
        self.run = secrets.token_hex(4)
        here, there = socket.socketpair()
        with there:
            # A process started afresh: this one may have threads, and what has threads enters no user namespace.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "geartrain.emu.station", str(there.fileno()), str(os.getpid()), self.run],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                env=self._environ(),
                start_new_session=True,  # Ctrl-C in a terminal is for us to handle
            )
        self._control = Connection(here.detach())
        try:
            self.right: Right = self._answer()
            self._ask(Load(tuple(modules)))
        except BaseException:
            self.close()
            raise

    def _environ(self) -> dict[str, str]:
        home = str(Path(__file__).parents[2])
        paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {name: os.environ.get(name, "1") for name in _ONE_THREAD}
        return {**os.environ, **threads, MARK: self.run, "PYTHONPATH": os.pathsep.join(paths)}

    def network(self, plan: Plan) -> Network:
        """Build a network, or take the one that stands; ConfigurationError where it cannot be built."""
        return Network(plan, self._ask(Prepare(plan)))

    def run_children(
        self, network: Network, children: Sequence[Child], descriptors: Sequence[int], grace: float
    ) -> tuple[Ended, str | None]:
        """Fork processes and wait for their ends; a signal that comes meanwhile ends them, and its name is told."""
        with self._whole():
            self._control.send(Run(network.plan, tuple(children), spawn_setting(), len(descriptors), grace))
            with socket.socket(fileno=os.dup(self._control.fileno())) as channel:
                socket.send_fds(channel, [b"d"], list(descriptors))
            return self._wait()

    def _wait(self) -> tuple[Ended, str | None]:
        interrupted: str | None = None
        while True:
            try:
                ended: Ended = self._answer()
                return ended, interrupted
            except (KeyboardInterrupt, SignalReceived) as error:
                if interrupted is not None:
                    raise
                interrupted = error.name if isinstance(error, SignalReceived) else "SIGINT"
                self._control.send(Stop())

    def _ask(self, request: object) -> Any:
        with self._whole():
            self._control.send(request)
            return self._answer()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """What is said inside is said whole and answered; otherwise the station is of no more use, and is ended."""
        try:
            yield
        except GeartrainError:
            raise
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        try:
            answer = self._control.recv()
        except (EOFError, OSError) as error:
            self.close()
            raise ConfigurationError("the process that holds the emulated network has ended; start again") from error
        if isinstance(answer, Refused):
            raise answer.error
        return answer

    @property
    def open(self) -> bool:
        """Whether it can be used."""
        return not self._control.closed and self._process.poll() is None

    def close(self) -> None:
        """End it, and with it all networks and processes that it made."""
        if not self._control.closed:
            self._control.close()
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(OSError):
            remove_stale()


def spawn_setting() -> dict[str, Any]:
    """What `multiprocessing.spawn.prepare` needs, so that what this process pickles can be read in another."""
    setting: dict[str, Any] = spawn.get_preparation_data(process.current_process().name)
    return {name: bytes(value) if name == "authkey" else value for name, value in setting.items()}


class SignalReceived(BaseException):
    """A signal that ends a program has come.

    Args:
        name: like "SIGTERM".
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


_stations: dict[tuple[int, tuple[str, ...]], Station] = {}


def station(modules: Sequence[str] = ()) -> Station:
    """The station of this process, started when it is first asked for; it ends with the process, or by `close_all`."""
    key = (os.getpid(), tuple(modules))
    if key not in _stations or not _stations[key].open:
        _stations[key] = Station(modules)
    return _stations[key]


def close_all() -> None:
    """End this process's stations: networks and processes are gone afterwards."""
    for key in [key for key in _stations if key[0] == os.getpid()]:
        _stations.pop(key).close()


atexit.register(close_all)
