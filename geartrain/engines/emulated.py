"""`EmulatedEngine`: ranks are processes, each in the network namespace of its node, joined by wires of named rates.

Ranks are forked by the process that holds the networks (`geartrain.emu.station`), which has loaded PyTorch and started
no thread, or started by a torchrun in each namespace. They meet in a store on the first worker's node, over the
emulated wires.
Logs, errors and standstill are those of the real engine; times are those of this host's clock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Cluster
from geartrain.cluster.topology import SWITCH
from geartrain.cost.compute import ComputeModel
from geartrain.emu import client, shaping
from geartrain.emu.messages import Ended
from geartrain.emu.plan import Edge, Plan, make_plan
from geartrain.engines.accelerator import CHARGED, LATE, OVERSLEPT, SLEPT
from geartrain.engines.base import Engine
from geartrain.engines.emulated_rank import EmulatedProgram, Seat
from geartrain.engines.emulated_start import Start, check_start, make_children, outputs
from geartrain.engines.launch import GRACE, PATIENCE, PRELOAD, Outcome, launch
from geartrain.engines.rank_process import Job, Program
from geartrain.engines.real import FunctionProgram, ScriptProgram
from geartrain.engines.signals import signals_raised
from geartrain.errors import ConfigurationError, RunError, ScriptError
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context

_MODULES = (*PRELOAD, "geartrain.engines.emulated_rank", "geartrain.strategies", "geartrain.tasks")


class EmulatedEngine(Engine):
    """Runs ranks as processes on an emulated network of this host.

    Args:
        compute: prices what devices compute; that time is slept. None: computing takes the time that the host takes.
        patience: seconds after which a run in which no rank goes on is ended with a DeadlockError.
        start: "fork" or "torchrun", see `geartrain.engines.emulated_start`.

    Rates, delays, packets and the places of services are as the cluster says, or a ConfigurationError says what cannot
    be honoured. What the run was made of stands in `RunRecord.emulation`. Networks stay between runs, for clusters that
    are the same; `close` takes all of them away, and so does the end of this process.

    Example:
        record = EmulatedEngine().run(main, load_cluster("ethernet-1g"), workers=4)
    """

    name: ClassVar[str] = "emulated"
    capabilities: ClassVar[frozenset[str]] = frozenset({"real_time", "real_network"})

    def __init__(self, compute: ComputeModel | None = None, patience: float = PATIENCE, start: Start = "fork") -> None:
        self.compute, self.patience, self.start = compute, patience, start

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
        return _run(program, placement, self.compute, seed, self.patience, self.start)

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
    start: Start = "fork",
) -> RunRecord:
    """Run a script written for torchrun on `ranks` processes of an emulated cluster; see `launch_script`.

    The script sees the variables that torchrun would give it, one node per node of the cluster.
    """
    path = Path(script)
    if not path.is_file():
        raise ScriptError(f"there is no script {str(script)!r}; give the path of a Python file")
    program = ScriptProgram(str(path), tuple(args))
    return _run(program, Placement(cluster, ranks), compute, 0, patience, start, prefix_output=ranks > 1)


def _run(
    program: Program,
    placement: Placement,
    compute: ComputeModel | None,
    seed: int,
    patience: float,
    how: Start,
    prefix_output: bool = False,
) -> RunRecord:
    _check_paces(placement, compute)
    check_start(placement, how)
    plan = make_plan(placement)
    station = client.station(_MODULES)
    network = station.network(plan)
    seats = tuple(_seats(placement, network, compute))
    roles = [placement.role(rank) for rank in range(placement.num_ranks)]

    def start(job: Job, prefix: bool, outcome: Outcome) -> None:
        _run_processes(station, network, placement, job, prefix, how, outcome)

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


def _run_processes(
    station: client.Station,
    network: client.Network,
    placement: Placement,
    job: Job,
    prefix_output: bool,
    how: Start,
    outcome: Outcome,
) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as stack:
        descriptors = stack.enter_context(outputs(len(job.roles), prefix_output))
        stack.enter_context(signals_raised(client.SignalReceived))
        # Processes that only help come last, so that indices of the others are ranks.
        children = sorted(make_children(network, placement, job, prefix_output, how), key=lambda child: child.helps)
        ended, outcome.interrupted = station.run_children(network, children, descriptors, GRACE)
    outcome.failed = dict(ended.failed)
    outcome.link_bytes = {link: float(nbytes) for link, (nbytes, _) in ended.carried.items() if nbytes}
    outcome.emulation = _told(network, station.right, ended)


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
