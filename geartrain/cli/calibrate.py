"""`geartrain calibrate`: measure a cluster and write its file, with the origin of every constant."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geartrain.cli.output import print_json, results, tell, told
from geartrain.cluster import Cluster, Placement, dump_cluster, load_cluster
from geartrain.errors import ConfigurationError, PlacementError, UnitError, UnknownName
from geartrain.record.files import check_file, write_together
from geartrain.record.text import print_whole, time_text
from geartrain.units import format_flops, format_rate, format_size, format_time, parse_size

if TYPE_CHECKING:
    from rich.table import Table as TextTable

    from geartrain.calibration.calibrate import Calibration
    from geartrain.calibration.effort import Effort
    from geartrain.calibration.site import Site

ENGINES = ("real", "emulated", "simulated")
SIZES = "4 KiB,64 KiB,1 MiB,16 MiB"
QUICK_SIZES = "64 KiB,1 MiB"
_RANKS = 2  # on this machine
_MOST_RANKS = 8  # of a cluster, if nothing is said
_TABLE_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for on the command line."""

    ranks: int | None
    engine: str
    cluster: str | None
    sizes: str | None
    out: Path | None
    force: bool
    quick: bool


def calibrate(asked: Asked, as_json: bool) -> int:
    """Measure, tell, and write; the exit code."""
    given = _check(asked)
    sizes = _sizes(asked)
    from geartrain.calibration.calibrate import calibrate as run_calibration
    from geartrain.calibration.effort import EXACT, QUICK, USUAL
    from geartrain.calibration.site import Interrupted

    with _site(asked, given) as (site, remarks):
        effort: Effort = EXACT if site.exact else QUICK if asked.quick else USUAL
        with_table = asked.out is not None and not site.exact
        with _stages(site.leads, 1 + 3 * (site.num_ranks > 1) + with_table) as stage:
            try:
                found = run_calibration(
                    site, sizes=sizes, effort=effort, name=_name(asked.out), given=given, stage=stage
                )
                table = _compute_table(asked, site, found, stage)
            except (Interrupted, KeyboardInterrupt):
                tell("interrupted: nothing was written")
                return 130
        if site.leads:
            lines = _write(asked, found.cluster, table)  # first: whoever reads the tables may leave in between
            _tell(found, as_json)
            tell(*found.notes, *remarks(), *lines)
    return 0


# --- what was asked for -------------------------------------------------------------------------------------------


def _check(asked: Asked) -> Cluster | None:
    """The cluster that was given; ConfigurationError when what was asked for cannot be."""
    if asked.engine not in ENGINES:
        raise UnknownName("engine", asked.engine, ENGINES)
    if asked.ranks is not None and asked.ranks < 1:
        raise ConfigurationError(f"--ranks {asked.ranks}: give at least 1; at least 2 to measure what joins them")
    if asked.out is not None:
        _check_out(asked.out, asked.force)
    if asked.engine == "real":
        if asked.cluster is not None:
            raise ConfigurationError(
                f"--cluster {asked.cluster}: the real engine measures this machine, or the one that torchrun made of "
                "several; leave --cluster out, or give --engine emulated or simulated"
            )
        return None
    if asked.cluster is None:
        raise ConfigurationError(f"--engine {asked.engine} needs the cluster to build: give --cluster NAME or FILE")
    return load_cluster(asked.cluster)


def _check_out(out: Path, force: bool) -> None:
    if out.suffix != ".toml":
        raise ConfigurationError(f"--out {out}: a cluster file's name ends in .toml")
    check_file(out)
    there = [path for path in (out, _table_path(out)) if path.exists()]
    if there and not force:
        raise ConfigurationError(
            f"{' and '.join(map(str, there))} exist(s) already; give --force to overwrite, or another name"
        )


def _sizes(asked: Asked) -> list[int]:
    text = asked.sizes if asked.sizes is not None else QUICK_SIZES if asked.quick else SIZES
    sizes = [parse_size(item) for item in text.split(",")]
    if min(sizes) < 1:
        raise UnitError(f"--sizes {text}: a collective of no bytes has no bandwidth; give sizes above zero")
    return sorted(set(sizes))


def _name(out: Path | None) -> str:
    """Of the cluster: that of its file, in the letters that a name may have."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", out.stem if out else "").lstrip("_.-")
    return name or "measured"


def _table_path(out: Path) -> Path:
    return out.with_suffix(".compute.json")


# --- where it is measured -----------------------------------------------------------------------------------------


@contextmanager
def _site(asked: Asked, given: Cluster | None) -> Iterator[tuple[Site, Callable[[], list[str]]]]:
    """The site, and what there is to say of how it was made."""
    from geartrain.calibration.site import EngineSite, WorldSite
    from geartrain.engines.own_script import script_context, started_by_launcher

    launched = started_by_launcher()
    if launched and asked.engine != "real":
        raise ConfigurationError(f"--engine {asked.engine} starts its ranks by itself; call it once, without torchrun")
    if asked.engine == "real":
        if launched:
            yield WorldSite(_launched(asked, script_context())), list
            return
        from geartrain.cluster import local_cluster
        from geartrain.engines.real import RealEngine

        yield EngineSite(RealEngine(), local_cluster(), asked.ranks or _RANKS), list
        return
    assert given is not None, "checked before"
    ranks = asked.ranks or _num_ranks(given)
    Placement(given, ranks)  # refuses more ranks than devices before anything is built
    if asked.engine == "simulated":
        from geartrain.cost.compute import Roofline
        from geartrain.engines.simulated import SimulatedEngine

        yield EngineSite(SimulatedEngine(Roofline()), given, ranks), list
        return
    from geartrain.cli.emulate import told as told_of
    from geartrain.engines.emulated import EmulatedEngine

    engine = EmulatedEngine()
    site = EngineSite(engine, given, ranks)
    try:
        yield site, lambda: told_of(site.records[-1].emulation)
    finally:
        engine.close()


def _launched(asked: Asked, ctx: Any) -> Any:
    if asked.ranks not in (None, ctx.num_workers):
        raise ConfigurationError(
            f"--ranks {asked.ranks}, but the launcher started {ctx.num_workers} process(es); leave --ranks out"
        )
    return ctx


def _num_ranks(cluster: Cluster) -> int:
    """All devices of a small cluster."""
    for ranks in range(_MOST_RANKS, 1, -1):
        try:
            Placement(cluster, ranks)
        except PlacementError:
            continue
        return ranks
    return 1


def _compute_table(
    asked: Asked, site: Site, found: Calibration, stage: Callable[[str], AbstractContextManager[object]]
) -> Any:
    """Times of operations on this host's CPU, where that is what computes and a file is written; else None."""
    device = found.cluster.nodes[0].device
    if site.exact or not site.leads or asked.out is None or device.name != "cpu":
        return None
    from geartrain.runtime.measure import measure_table
    from geartrain.tasks import TASKS

    with stage("times of operations, on one core"):
        return measure_table(TASKS["digits"](), [_TABLE_BATCH], repeats=5 if asked.quick else 20)


@contextmanager
def _stages(leads: bool, total: int) -> Iterator[Callable[[str], AbstractContextManager[object]]]:
    """Tells what is being done, on the process that leads."""
    if not leads:

        @contextmanager
        def silent(what: str) -> Iterator[None]:
            yield

        yield silent
        return
    with told(total) as bar:

        @contextmanager
        def stage(what: str) -> Iterator[None]:
            bar.start(what)
            yield
            bar.done(what)

        yield stage


# --- what came of it ----------------------------------------------------------------------------------------------


def _tell(found: Calibration, as_json: bool) -> None:
    if as_json:
        print_json(_plain(found))
        return
    console = results()
    for line in _device_lines(found.cluster):
        console.print(line, markup=False, soft_wrap=True)
    measured = found.cluster.measured
    if measured is not None and measured.pairs:
        print_whole(console, _pairs_table(found.cluster))
    if found.predictions:
        print_whole(console, _collectives_table(found))
        console.print(_verdict(found), markup=False, soft_wrap=True)


def _device_lines(cluster: Cluster) -> Iterator[str]:
    for group in cluster.nodes:
        device = group.device
        flops = ", ".join(f"{name} {format_flops(rate)}" for name, rate in device.flops.items())
        yield (
            f"{group.name} ({group.count}): {device.name}, {flops}; memory {format_rate(device.memory_rate, 'B')}; "
            f"launch {format_time(device.launch_overhead)}"
        )
    measured = cluster.measured
    if measured is not None and measured.reduction_rate is not None:
        yield f"reduction: {format_rate(measured.reduction_rate, 'B')} of a tensor added to another"
    if measured is not None and measured.tiny_all_reduce is not None:
        yield f"all-reduce of 4 bytes: {format_time(measured.tiny_all_reduce)}"


def _pairs_table(cluster: Cluster) -> TextTable:
    """Latency and rate of the pairs, beside what the file says of them."""
    assert cluster.measured is not None
    table = _table("from", "to", "latency", "in the file", "rate", "in the file")
    place = Placement(cluster, cluster.measured.ranks)
    for pair in cluster.measured.pairs:
        route = place.route(pair.source, pair.target)
        table.add_row(
            str(pair.source),
            str(pair.target),
            time_text(pair.latency),
            time_text(route.latency),
            format_rate(pair.rate),
            format_rate(place.rate(pair.source, pair.target)),
        )
    return table


def _collectives_table(found: Calibration) -> TextTable:
    assert found.cluster.measured is not None
    ranks = found.cluster.measured.ranks
    table = _table(
        "collective", "size", "time", "least", "size / time", "bus bandwidth", "simulated", "off", "off the least"
    )
    last = ""
    for one in found.predictions:
        measured = one.measured
        if last and measured.kind != last:
            table.add_section()
        last = measured.kind
        table.add_row(
            measured.kind,
            format_size(measured.size, binary=True),
            time_text(measured.time),
            time_text(measured.least),
            format_rate(measured.algorithm_bandwidth()),
            format_rate(measured.bus_bandwidth(ranks)),
            time_text(one.simulated),
            _error(one.error),
            _error(one.error_of_least),
        )
    return table


def _verdict(found: Calibration) -> str:
    """What the fit is worth."""
    worst = max(found.predictions, key=lambda one: abs(one.error))
    usual, of_least = (
        statistics.median(abs(error) for error in errors)
        for errors in zip(*((one.error, one.error_of_least) for one in found.predictions), strict=True)
    )
    return (
        f"simulated on the fitted cluster, these collectives are off by {usual:.0%} in the median ({of_least:.0%} off "
        f"the least of the repeats); the furthest is {worst.measured.kind} of "
        f"{format_size(worst.measured.size, binary=True)}: {_error(worst.error)}"
    )


def _error(value: float) -> str:
    return f"{value:+.0%}" if abs(value) >= 0.005 else "0%"


def _table(*columns: str) -> TextTable:
    from rich import box
    from rich.table import Table as TextTable

    table = TextTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _plain(found: Calibration) -> dict[str, Any]:
    """SI units."""
    cluster = found.cluster
    measured = cluster.measured
    ranks = measured.ranks if measured else 1
    return {
        "cluster": cluster.model_dump(exclude_none=True),
        "collectives": [
            {
                **one.measured.model_dump(),
                "algorithm_bandwidth": one.measured.algorithm_bandwidth(),
                "bus_bandwidth": one.measured.bus_bandwidth(ranks),
                "simulated": one.simulated,
                "error": one.error,
                "error_of_least": one.error_of_least,
            }
            for one in found.predictions
        ],
        "notes": list(found.notes),
    }


def _write(asked: Asked, cluster: Cluster, table: Any) -> list[str]:
    """Write what was asked for; what there is to say of it."""
    if asked.out is None:
        return ["no file was written; --out FILE.toml writes one"]
    contents, lines = {asked.out: _commented(cluster).encode()}, [f"cluster: {asked.out}"]
    if table is not None:
        path = _table_path(asked.out)
        contents[path] = table.text().encode()
        lines.append(f"times of operations: {path} (--compute table:{path})")
    write_together(contents)
    return lines


def _commented(cluster: Cluster) -> str:
    return f"# Written by `geartrain calibrate`; `geartrain clusters FILE` shows it.\n{dump_cluster(cluster)}"
