"""`geartrain emulate`: a script on an emulated cluster, and the end of what stale runs left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from geartrain.cli.output import tell
from geartrain.cli.scripts import check_script, run_and_tell
from geartrain.cluster import Cluster, ServicePlace
from geartrain.engines.base import Engine
from geartrain.errors import ConfigurationError
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context
from geartrain.units import format_time

BUSY = 0.8
"""Share of the host's cores above which its own scheduling shows in the times."""


def emulate(
    script: str | None,
    args: Sequence[str],
    *,
    cluster: str,
    ranks: int,
    compute: str | None,
    torchrun: bool,
    clean: bool,
    trace: Path | None,
    as_json: bool,
) -> int:
    """Run a script on namespaces and shaped wires of this machine and tell what it came to; the exit code."""
    if clean:
        _clean()
        if script is None:
            return 0
    if script is None:
        raise ConfigurationError("give a SCRIPT to run, or --clean to remove what stale runs have left")
    check_script(script, ranks, trace)
    from geartrain.cluster import load_cluster
    from geartrain.cost.compute import parse_compute
    from geartrain.engines.emulated import emulate_script
    from geartrain.engines.emulated_start import Start

    start: Start = "torchrun" if torchrun else "fork"
    machines, model = load_cluster(cluster), parse_compute(compute) if compute else None

    def run() -> RunRecord:
        record = emulate_script(script, args, cluster=machines, ranks=ranks, compute=model, start=start)
        tell(*told(record.emulation))
        return record

    return run_and_tell(run, trace, as_json)


def told(emulation: dict[str, Any]) -> list[str]:
    """What a reader of the results must know of the network and the devices, as lines."""
    if not emulation:
        return []
    delay, busy = emulation["delay"], emulation["host_busy"]
    pings = [
        f"{ping['from']} to {ping['to']} {format_time(ping['asked'])} asked, {format_time(ping['median'])} measured"
        for ping in delay["pings"]
    ]
    by = "delay: nothing added to what the path takes" if delay["by"] == "nothing" else f"delay by {delay['by']}"
    lines = [f"{by}; {'; '.join(pings)}"] if pings else []
    if delay["relay"] and delay["relay"]["frames"]:
        relay = delay["relay"]
        late = f"{format_time(relay['late_mean'])} late on average, {format_time(relay['late_most'])} at most"
        lines.append(f"relay: {relay['frames']} frames, {late}, {relay['lost']} lost, {relay['busy']:.0%} of a core")
    lines.append(
        f"host: {busy:.0%} of all cores in use" + ("; times may be the host's, not the network's" * (busy > BUSY))
    )
    if "compute" in emulation:
        devices = emulation["compute"]
        lines.append(
            f"devices ({devices['model']}): {format_time(devices['charged'])} charged over all ranks, "
            f"{format_time(devices['slept'])} slept; sleeping was {format_time(devices['sleeping_late'])} late, "
            f"computing {format_time(devices['computing_late'])}"
        )
    return lines


class Emulated(Engine):
    """Makes the emulated engine for the cells of a grid: one for all, so that networks are built once.

    Args:
        compute: as on the command line: what computing is charged and slept by; None lets it take its real time.
    """

    name = "emulated"
    capabilities = frozenset({"real_time"})

    def __init__(self, compute: str | None) -> None:
        from geartrain.cost.compute import parse_compute
        from geartrain.engines.emulated import EmulatedEngine

        self._compute = compute
        self._engine = EmulatedEngine(parse_compute(compute) if compute else None)
        self._told: dict[str, list[str]] = {}

    def __call__(self, cluster: Cluster) -> Engine:
        return self

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
        record = self._engine.run(main, cluster, workers=workers, services=services, seed=seed, meta=meta)
        self._told[f"{cluster.name} with {workers} worker(s)"] = told(record.emulation)
        return record

    def text(self, cluster: Cluster) -> str:
        return self._compute or "real time"

    def is_roofline(self, cluster: Cluster) -> bool:
        """Whether computing on it is priced as closed forms do."""
        return self._compute == "roofline"

    def report(self) -> list[str]:
        """What a reader must know of the networks and devices, for the last run on each."""
        return [f"{where}: {line}" for where, lines in self._told.items() for line in lines]

    def close(self) -> None:
        """Take the networks down."""
        self._engine.close()


def _clean() -> None:
    from geartrain.emu.cleanup import remove_stale

    removed = remove_stale()
    for one in removed:
        tell(f"removed run {one.run}: {one.processes} process(es) ended, and their networks with them")
    if not removed:
        tell("nothing to remove: no stale run of this user")
