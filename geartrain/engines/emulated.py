"""`EmulatedEngine`: ranks are processes, each in the network namespace of its node, joined by wires of named rates.

Ranks are forked by the process that holds the networks (`geartrain.emu.station`), which has loaded PyTorch and started
no thread. They meet as under torchrun: in a store at the address of the first worker's node, over the emulated wires.
Logs, errors and standstill are those of the real engine; times are those of this host's clock.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Cluster
from geartrain.cluster.topology import SWITCH
from geartrain.cost.compute import ComputeModel
from geartrain.emu import client, shaping
from geartrain.emu.messages import Child, Ended
from geartrain.emu.plan import Edge, Plan, make_plan
from geartrain.engines.accelerator import CHARGED, LATE, OVERSLEPT, SLEPT
from geartrain.engines.base import Engine
from geartrain.engines.emulated_rank import EmulatedProgram, Seat, serve_store
from geartrain.engines.launch import GRACE, PATIENCE, PRELOAD, Outcome, launch
from geartrain.engines.rank_process import Job, Program, run_rank
from geartrain.engines.real import FunctionProgram, ScriptProgram
from geartrain.errors import ConfigurationError, RunError, ScriptError
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context

_MODULES = (*PRELOAD, "geartrain.engines.emulated_rank", "geartrain.strategies", "geartrain.tasks")
_FIRST_PORT, _NUM_PORTS = 20_000, 10_000
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class EmulatedEngine(Engine):
    """Runs ranks as processes on an emulated network of this host.

    Args:
        compute: prices what devices compute; that time is slept. None: computing takes the time that the host takes.
        patience: seconds after which a run in which no rank goes on is ended with a DeadlockError.

    Rates, delays, packets and the places of services are as the cluster says, or a ConfigurationError says what cannot
    be honoured. What the run was made of stands in `RunRecord.emulation`. Networks stay between runs, for clusters that
    are the same; `close` takes all of them away, and so does the end of this process.

    Example:
        record = EmulatedEngine().run(main, load_cluster("ethernet-1g"), workers=4)
    """

    name: ClassVar[str] = "emulated"
    capabilities: ClassVar[frozenset[str]] = frozenset({"real_time", "real_network"})

    def __init__(self, compute: ComputeModel | None = None, patience: float = PATIENCE) -> None:
        self.compute, self.patience = compute, patience

    def run(
        self,
        main: Callable[[Context], Any],
        cluster: Cluster,
        *,
        workers: int,
        services: Sequence[ServicePlace] = (),
        seed: int = 0,
        meta: bool = False,
    ) -> RunRecord:
        """See `Engine.run`."""
        if meta:
            raise ConfigurationError(
                "the emulated engine sends and computes numbers, so it cannot run on shapes alone (meta=True); "
                "use the simulated engine for that"
            )
        placement = Placement(cluster, workers, services)
        program = FunctionProgram(main, workers, seed, 0, placement.nodes)
        return _run(program, placement, self.compute, seed, self.patience)

    def close(self) -> None:
        """Take away all networks that this process has made."""
        client.close_all()


def emulate_script(
    script: str | os.PathLike[str],
    args: Sequence[str] = (),
    *,
    cluster: Cluster,
    ranks: int,
    compute: ComputeModel | None = None,
    patience: float = PATIENCE,
) -> RunRecord:
    """Run a script written for torchrun on `ranks` processes of an emulated cluster; see `launch_script`.

    The script sees the variables that torchrun would give it, one node per node of the cluster.
    """
    path = Path(script)
    if not path.is_file():
        raise ScriptError(f"there is no script {str(script)!r}; give the path of a Python file")
    program = ScriptProgram(str(path), tuple(args))
    return _run(program, Placement(cluster, ranks), compute, 0, patience, prefix_output=ranks > 1)


def _run(
    program: Program,
    placement: Placement,
    compute: ComputeModel | None,
    seed: int,
    patience: float,
    prefix_output: bool = False,
) -> RunRecord:
    _check_paces(placement, compute)
    plan = make_plan(placement)
    station = client.station(_MODULES)
    network = station.network(plan)
    seats = tuple(_seats(placement, network, compute))
    roles = [placement.role(rank) for rank in range(placement.num_ranks)]

    def start(job: Job, prefix: bool, outcome: Outcome) -> None:
        _run_processes(station, network, placement, job, prefix, outcome)

    emulated = EmulatedProgram(program, seats, station.run, compute, seed)
    outcome = launch(
        emulated, roles, prefix_output=prefix_output, patience=patience, engine=EmulatedEngine.name, start=start
    )
    try:
        record = outcome.record()
    except RunError as error:
        if isinstance(error.record, RunRecord):
            _tell_compute(error.record, compute)
        raise
    return _tell_compute(record, compute)


def _check_paces(placement: Placement, compute: ComputeModel | None) -> None:
    overrides = placement.cluster.overrides.nodes
    if overrides and compute is None:
        raise ConfigurationError(
            f"cluster {placement.cluster.name!r} says how fast its devices compute (overrides.nodes), but computing is "
            "left to this host, which cannot be slowed down so; give a compute model, or leave the overrides out"
        )


def _seats(placement: Placement, network: client.Network, compute: ComputeModel | None) -> Iterator[Seat]:
    seen: set[int] = set()
    for rank, host in enumerate(network.plan.places):
        emulated = compute is not None and placement.node(rank) != SWITCH
        device = placement.device(rank) if emulated else None
        yield Seat(network.info.interfaces[host], host not in seen, device, placement.pace(rank))
        seen.add(host)


_port = 0


def _next_port() -> int:
    """The network is ours, but connections of the run before may linger in it."""
    global _port
    _port = (_port + 1) % _NUM_PORTS
    return _FIRST_PORT + _port


def _run_processes(
    station: client.Station,
    network: client.Network,
    placement: Placement,
    job: Job,
    prefix_output: bool,
    outcome: Outcome,
) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as stack:
        outputs = stack.enter_context(_outputs(len(job.roles), prefix_output))
        stack.enter_context(_signals_raised())
        children = list(_children(network, placement, job, prefix_output))
        ended, outcome.interrupted = station.run_children(network, children, outputs, GRACE)
    outcome.failed = dict(ended.failed)
    outcome.link_bytes = {link: float(nbytes) for link, (nbytes, _) in ended.carried.items() if nbytes}
    outcome.emulation = _told(network, station.right, ended)


def _children(network: client.Network, placement: Placement, job: Job, prefix_output: bool) -> Iterator[Child]:
    places, port, master = network.plan.places, _next_port(), network.info.addresses[network.plan.places[0]]
    nodes = list(dict.fromkeys(placement.nodes))
    for rank, host in enumerate(places):
        mates = [other for other, node in enumerate(placement.nodes) if node == placement.node(rank)]
        told = {
            "RANK": rank,
            "LOCAL_RANK": mates.index(rank),
            "WORLD_SIZE": len(places),
            "LOCAL_WORLD_SIZE": len(mates),
            "GROUP_RANK": nodes.index(placement.node(rank)),
            "GROUP_WORLD_SIZE": len(nodes),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": len(places),
            "ROLE_NAME": "default",
            "MASTER_ADDR": master,
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "TORCHELASTIC_RUN_ID": Path(job.folder).name,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        output = (2 * rank, 2 * rank + 1) if prefix_output else (0, 1)
        call = pickle.dumps(partial(run_rank, job))
        yield Child(host, {name: str(value) for name, value in told.items()}, call, output)
    yield Child(places[0], {}, pickle.dumps(partial(serve_store, master, port)), helps=True)


@contextmanager
def _outputs(num_ranks: int, prefix: bool) -> Iterator[list[int]]:
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


@contextmanager
def _signals_raised() -> Iterator[None]:
    """Signals that end a program become errors here, so that the record so far is kept."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def received(number: int, frame: Any) -> None:
        raise client.SignalReceived(signal.Signals(number).name)

    before = {number: signal.signal(number, received) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _told(network: client.Network, right: str, ended: Ended) -> dict[str, Any]:
    """What the network was, and what it did."""
    plan, info = network.plan, network.info
    return {
        "network_by": right,
        "congestion_control": info.congestion,
        "seconds": ended.seconds,
        "host_busy": ended.host_busy,
        "links": {link: {**rates, **_counted(rates, link, ended)} for link, rates in _links(plan)},
        "delay": {
            "by": info.delay_by,
            "pings": [
                {"from": a, "to": b, "asked": asked, "least": got.least, "median": got.median, "exchanges": got.num}
                for a, b, asked, got in info.pings
            ],
            "relay": ended.relay,
        },
    }


def _links(plan: Plan) -> Iterator[tuple[str, dict[str, float]]]:
    for edge in plan.edges:
        for way in (*edge.up, *edge.down):
            if way.link:
                yield way.link, _shaped(way.rate, edge)


def _shaped(rate: float, edge: Edge) -> dict[str, float]:
    return {"shaped_rate": rate, "burst": shaping.burst(rate, edge.mtu), "mtu": edge.mtu}


def _counted(rates: dict[str, float], link: str, ended: Ended) -> dict[str, float]:
    nbytes, packets = ended.carried[link]
    use = nbytes / (rates["shaped_rate"] * ended.seconds) if ended.seconds > 0 else 0.0
    return {"bytes": nbytes, "packets": packets, "utilisation": use}


def _tell_compute(record: RunRecord, compute: ComputeModel | None) -> RunRecord:
    """What devices were charged, what of it was slept, and by how much both were late: seconds over all ranks."""
    if compute is not None:
        names = {CHARGED: "charged", SLEPT: "slept", OVERSLEPT: "sleeping_late", LATE: "computing_late"}
        sums = {told: sum(log.counts.get(name, 0.0) for log in record.logs) for name, told in names.items()}
        record.emulation["compute"] = {"model": str(compute), **sums, "notes": list(compute.report())}
    return record
