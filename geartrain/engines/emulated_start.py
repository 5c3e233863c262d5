"""How the processes of an emulated run come to be: forked from the station, or by a torchrun in each namespace.

fork        ranks are forked into their namespaces and find the variables that torchrun would give them, and a
            store at the address of the first rank's node; eight nodes begin in a second
torchrun    a torchrun in each namespace, which meet by torchrun's own rendezvous over the emulated wires; every
            rank is then a Python process of its own that loads PyTorch, which takes ten times as long
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from geartrain.cluster.placement import Placement
from geartrain.emu.client import Network, spawn_setting
from geartrain.emu.messages import Child
from geartrain.engines.emulated_rank import serve_store
from geartrain.engines.launch import GRACE
from geartrain.engines.rank_process import Job, run_rank
from geartrain.errors import ConfigurationError

Start = Literal["fork", "torchrun"]

_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
JOB_FILE = "job"
"""In the folder of a run: what a rank that is a process of its own is to do."""

_port = 0


def _next_port() -> int:
    """The network is ours, but connections of the run before may linger in it."""
    global _port
    _port = (_port + 1) % _NUM_PORTS
    return _FIRST_PORT + _port


def check_start(placement: Placement, start: Start) -> None:
    """ConfigurationError where torchrun could not be used as asked."""
    if start == "torchrun" and len(set(placement.nodes)) < placement.num_ranks:
        raise ConfigurationError(
            "with start='torchrun' every rank has a node of its own: the devices of a node have namespaces of their "
            "own here, which one torchrun cannot live in at once; use start='fork', or nodes with one device"
        )


def make_children(
    network: Network, placement: Placement, job: Job, prefix_output: bool, start: Start
) -> Iterator[Child]:
    """The processes of a run. With a prefix, each rank has two outputs of its own."""
    places, port = network.plan.places, _next_port()
    master = network.info.addresses[places[0]]
    if start == "torchrun":
        Path(job.folder, JOB_FILE).write_bytes(pickle.dumps((spawn_setting(), job)))
    else:
        yield Child(places[0], {}, pickle.dumps(partial(serve_store, master, port)), helps=True)
    for rank, host in enumerate(places):
        output = (2 * rank, 2 * rank + 1) if prefix_output else (0, 1)
        if start == "torchrun":
            address = network.info.addresses[host]
            agent = Agent(job, rank, master, port, address, network.info.interfaces[host], tuple(sys.path))
            yield Child(host, {}, pickle.dumps(agent.run), output)
        else:
            told = {**_told(placement, rank), "MASTER_ADDR": master, "MASTER_PORT": port}
            environ = {name: str(value) for name, value in told.items()}
            environ["TORCHELASTIC_RUN_ID"] = Path(job.folder).name
            yield Child(host, environ, pickle.dumps(partial(run_rank, job)), output)


def _told(placement: Placement, rank: int) -> dict[str, Any]:
    """What torchrun tells a rank."""
    nodes = list(dict.fromkeys(placement.nodes))
    mates = [other for other, node in enumerate(placement.nodes) if node == placement.node(rank)]
    return {
        "RANK": rank,
        "LOCAL_RANK": mates.index(rank),
        "WORLD_SIZE": placement.num_ranks,
        "LOCAL_WORLD_SIZE": len(mates),
        "GROUP_RANK": nodes.index(placement.node(rank)),
        "GROUP_WORLD_SIZE": len(nodes),
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": placement.num_ranks,
        "ROLE_NAME": "default",
        "TORCHELASTIC_USE_AGENT_STORE": True,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCHELASTIC_MAX_RESTARTS": 0,
    }


@dataclass(frozen=True)
class Agent:
    """A torchrun on one node, with one rank.

    Attributes:
        master, port: where torchruns meet.
        address, interface: of this node.
        path: of the parent's modules.
    """

    job: Job
    rank: int
    master: str
    port: int
    address: str
    interface: str
    path: tuple[str, ...]

    def run(self) -> NoReturn:
        """Ends as its rank did."""
        logging.disable(logging.CRITICAL)  # what it would say of a failed rank, `RankFailed` says
        # The mark of the run is in the environment that this process has got from the station.
        ours = {"PYTHONPATH": os.pathsep.join(filter(None, self.path)), "GLOO_SOCKET_IFNAME": self.interface}
        os.environ.update({**self.job.environ, **ours})
        options = {
            "nnodes": len(self.job.roles),
            "node-rank": self.rank,
            "nproc-per-node": 1,
            "master-addr": self.master,
            "master-port": self.port,
            "local-addr": self.address,
            "rdzv-id": Path(self.job.folder).name,
            "max-restarts": 0,
            "monitor-interval": 0.05,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        try:
            run(parse_args([*words, "-m", "geartrain.engines.rank_main", str(Path(self.job.folder, JOB_FILE))]))
        except ChildFailedError as error:
            _end_as(error.failures[self.rank].exitcode if self.rank in error.failures else 1)
        except SignalException as error:
            _end_as(-error.sigval)
        os._exit(0)


def _end_as(status: int) -> NoReturn:
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
        signal.pause()
    os._exit(status)


@contextmanager
def outputs(num_ranks: int, prefix: bool) -> Iterator[list[int]]:
    """Descriptors that ranks write to: our own, or for each rank two pipes whose lines get its number in front."""
    if not prefix:
        yield [1, 2]
        return
    threads, writers = [], []
    for rank in range(num_ranks):
        for stream in (1, 2):
            read, write = os.pipe()
            threads.append(
                threading.Thread(target=_copy_lines, args=(read, stream, f"[{rank}] ".encode()), daemon=True)
            )
            writers.append(write)
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        for writer in writers:
            os.close(writer)
        for thread in threads:
            thread.join(GRACE)


def _copy_lines(read: int, stream: int, prefix: bytes) -> None:
    with open(read, "rb") as lines:
        for line in lines:
            os.write(stream, prefix + (line if line.endswith(b"\n") else line + b"\n"))
