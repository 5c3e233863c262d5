"""The cluster that was found, with the origin of every constant."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from geartrain.calibration.collectives import TINY
from geartrain.calibration.devices import DeviceRates
from geartrain.calibration.fit import Fit, Tolerance
from geartrain.calibration.pairs import Pair, Way
from geartrain.calibration.site import Site
from geartrain.calibration.surroundings import Surroundings
from geartrain.cluster.load import local_cluster
from geartrain.cluster.measured import CollectiveCurve, CollectiveTime, Measurements, PairTime, Sharing
from geartrain.cluster.overrides import Overrides
from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Cluster, Collectives, Device, Matrix, NodeGroup, Star

_SAME_DEVICE = 0.2
"""How far the rates of devices may lie apart that are described as the same one, relative; chosen."""

_EXACT_DEVICE = 1e-6
_BUSY = 0.5  # load per core from which on it is told; chosen
_DIGITS, _EXACT_DIGITS = 4, 9  # that constants are written with; of a virtual clock the last bits are rounding


def written(value: float, exact: bool) -> float:
    """A constant as the file has it."""
    return float(f"{value:.{_EXACT_DIGITS if exact else _DIGITS}g}")


@dataclass
class Found:
    """All that was found on a site.

    Attributes:
        site, around, devices: where, and each rank's surroundings and device.
        given: the cluster that an engine emulates or simulates, if any.
        ways, fit, tolerance, collectives: of more than one rank.
        curves, sharing: of ranks that share one host.
    """

    site: Site
    around: Sequence[Surroundings]
    devices: Sequence[DeviceRates]
    given: Cluster | None
    ways: dict[Pair, Way] = field(default_factory=dict)
    fit: Fit | None = None
    tolerance: Tolerance | None = None
    collectives: tuple[CollectiveTime, ...] = ()
    curves: tuple[CollectiveCurve, ...] = ()
    sharing: tuple[Sharing, ...] = ()

    @property
    def num_ranks(self) -> int:
        return self.site.num_ranks

    @property
    def per_node(self) -> int:
        """Ranks of a machine, as the cluster will have it."""
        return self.fit.devices_per_node if self.fit else 1

    @property
    def one_host(self) -> bool:
        """All ranks share a host's cores and memory."""
        return not self.site.exact and (self.site.here or len({one.host for one in self.around}) == 1)

    @property
    def loopback(self) -> bool:
        """All that joins ranks is the loopback interface of one host, the same for every pair."""
        return self.one_host and not self.site.shaped and all(one.name == "cpu" for one in self.devices)

    def how(self) -> str:
        """When and by which engine it was measured."""
        return "under a virtual clock" if self.site.exact else f"{self.around[0].date}, engine {self.site.engine}"

    def source(self) -> str:
        """The same, with what it was measured of."""
        first = self.around[0]
        of = f", cluster {self.given.name}" if self.given else ""
        return f"geartrain calibrate, {self.how()}{of}: {self.num_ranks} rank(s), {first.backend}, {first.versions}"

    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers must know."""
        return tuple(_notes(self))


def describe(found: Found, name: str) -> Cluster:
    """The cluster file's value."""
    fit = found.fit
    topology = fit.topology if fit else local_cluster().topology
    collectives, why = _library(found)
    groups, origins = _groups(found)
    origins.update(_topology_origins(found, topology))
    if fit:
        origins.update({f"overrides.wires[{i}]": f"measured: {_pairs_text(found)}" for i in range(len(fit.wires))})
    chosen = collectives.model_dump(exclude_none=True)
    origins.update({f"collectives.{kind}": why for kind in chosen})
    measured = _measurements(found)
    kept = measured.model_dump(exclude_none=True)
    usual = f"measured: {found.how()}, {found.around[0].backend}; median of the repeats, of the slowest rank of each"
    texts = {
        "ranks": "given: by whoever started them",
        "tiny_all_reduce": f"{usual}; an all-reduce of {TINY} bytes",
        "reduction_rate": f"measured: {found.how()}; the slowest rank's; one fp32 tensor added to another",
        "pairs": f"measured: {_pairs_text(found)}",
        "collectives": f"{usual}; `least` is the least",
        "curves": f"{usual}; all-reduces of sizes that double, three pieces fitted to them",
        "sharing": f"measured: {found.how()}; products and copies of all ranks at once, against one alone; all-reduces "
        "beside products",
    }
    origins.update({f"measured.{key}": text for key, text in texts.items() if kept.get(key)})
    return Cluster(
        name=name,
        summary=_summary(found),
        source=f"{found.source()}; [origins] says where each constant comes from",
        nodes=groups,
        topology=topology,
        collectives=collectives,
        overrides=Overrides(wires=fit.wires if fit else ()),
        origins=origins,
        measured=measured,
    )


def _summary(found: Found) -> str:
    of = f" of {found.given.name}, {found.site.engine}" if found.given else f", joined by {found.around[0].backend}"
    return f"{found.num_ranks} rank(s){of}, as measured"


# --- machines -----------------------------------------------------------------------------------------------------


def _groups(found: Found) -> tuple[tuple[NodeGroup, ...], dict[str, str]]:
    """Machines in a row that have the same device make a group; and the origins of what stands in each."""
    runs: list[list[int]] = []  # the first rank of each machine
    for rank in range(0, found.num_ranks, found.per_node):
        if runs and _same(found, runs[-1][0], rank):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    any_number = len(runs) == 1 and (found.fit is None or found.fit.any_number)
    groups, origins = [], {}
    for index, ranks in enumerate(runs):
        device, device_origins = _device(found, ranks)
        where = f"nodes[{index}]"
        groups.append(
            NodeGroup(
                name="node" if len(runs) == 1 else f"group{index}",
                count="any" if any_number else len(ranks),
                device=device,
                devices_per_node=found.per_node,
            )
        )
        machines = found.num_ranks // found.per_node
        origins[f"{where}.count"] = (
            f"default: as many as a run needs; {machines} measured, all alike"
            if any_number
            else f"given: as many as were measured, {len(ranks)}"
        )
        origins[f"{where}.devices_per_node"] = _per_node_origin(found)
        origins.update({f"{where}.device.{key}": text for key, text in device_origins.items()})
    return tuple(groups), origins


def _per_node_origin(found: Found) -> str:
    hosts = len(set(found.around[0].nodes))
    if found.per_node > 1:
        return f"measured: {found.per_node} ranks on each of {hosts} machines"
    shared = hosts < found.num_ranks
    return "default: each rank is written as a machine of its own" + (f"; they share {hosts}" if shared else "")


def _same(found: Found, rank: int, other: int) -> bool:
    """Whether two ranks have the same device: the cores of one host are, whatever a busy one let each reach."""
    one, two = found.devices[rank], found.devices[other]
    if found.one_host and one.name == two.name == "cpu":
        return True
    near = _EXACT_DEVICE if found.site.exact else _SAME_DEVICE
    rates = [(one.flops[name], two.flops[name]) for name in one.flops if name in two.flops]
    rates.append((one.memory_rate, two.memory_rate))
    return (one.name, one.memory) == (two.name, two.memory) and all(abs(a / b - 1) <= near for a, b in rates)


def _device(found: Found, ranks: Sequence[int]) -> tuple[Device, dict[str, str]]:
    """The usual device of these ranks, and the origins of its keys."""
    first = found.devices[ranks[0]]
    given = Placement(found.given, found.num_ranks).device(ranks[0]) if found.site.exact and found.given else None

    def usual(values: Sequence[float]) -> float:
        return written(statistics.median(values), found.site.exact)

    rates = [found.devices[rank] for rank in ranks]
    threads = f"{first.threads} thread(s)" if first.threads else "accelerator"
    how = f"{found.how()}; {threads}, {len(ranks)} rank(s) in turn"
    origins = {
        "memory_rate": f"measured: {how}; copy of 64 MiB, read and written; spread {first.spread:.1%}",
        "launch_overhead": f"measured: {how}; an operation on one element",
    }
    flops = {name: usual([one.flops[name] for one in rates]) for name in first.flops}
    if given is not None:
        flops = {name: flops.get(name, rate) for name, rate in given.flops.items()}
    for name in flops:
        seen = name in first.flops
        origins[f"flops.{name}"] = f"measured: {how}; product of square matrices" if seen else _given_by(found)
    memory, origins["memory"] = _memory(found, first, ranks[0], given)
    device = Device(
        name=given.name if given else first.name,
        flops=flops,
        memory=memory,
        memory_rate=usual([one.memory_rate for one in rates]),
        launch_overhead=usual([one.launch_overhead for one in rates]),
        source=f"geartrain calibrate, {how}",
    )
    return device, origins


def _given_by(found: Found) -> str:
    return f"given: by cluster {found.given.name}" if found.given else "given"


def _memory(found: Found, rates: DeviceRates, rank: int, given: Device | None) -> tuple[int, str]:
    around = found.around[rank]
    if given is not None:
        return given.memory, _given_by(found)
    if rates.memory:
        return rates.memory, "given: by the device's driver"
    if around.memory:
        return around.memory // around.cores, f"given: by the operating system; a share of one of {around.cores} cores"
    return 8 * 2**30, "default: 8 GiB, as the system does not tell"


# --- wires --------------------------------------------------------------------------------------------------------


def _pairs_text(found: Found) -> str:
    """Which pairs were measured, how, and how far the repeats lay apart."""
    if not found.ways:
        return "no pairs"
    all_of_them, each = found.num_ranks * (found.num_ranks - 1), found.ways.values()
    which = f"all {all_of_them} ordered pairs"
    if len(found.ways) < all_of_them:
        which = f"{len(found.ways)} of {all_of_them} ordered pairs, each rank with its neighbours and half way round"
    rate, latency = (statistics.median(s) for s in zip(*((w.rate_spread, w.latency_spread) for w in each), strict=True))
    return f"{found.how()}; {which}, one at a time; median over least {rate:.1%} in rates, {latency:.1%} in latencies"


def _topology_origins(found: Found, topology: Star | Matrix | object) -> Iterator[tuple[str, str]]:
    """Of every constant of the topology."""
    pairs = _pairs_text(found)
    rate = f"measured: {pairs}; payload of large messages, so the wire has no mtu"
    latency = f"measured: {pairs}; half of the least ping-pong, both ways alike"
    if isinstance(topology, Matrix):
        yield from (("topology.rate", rate), ("topology.latency", latency))
        return
    assert isinstance(topology, Star)
    if found.fit is None:
        one = "default: as in preset local; one rank has nothing to measure between"
        yield from (("topology.wire.rate", one), ("topology.wire.latency", one))
    else:
        yield from (("topology.wire.rate", rate), ("topology.wire.latency", latency))
    if topology.inner is not None:
        yield from (("topology.inner.rate", rate), ("topology.inner.latency", latency))
        yield "topology.wire_per", f"measured: {found.how()}; two ranks of a machine sending at once, against one alone"
    else:
        yield "topology.wire_per", "default: a machine has one device"


def _library(found: Found) -> tuple[Collectives, str]:
    """The algorithms of the library in use, and where that comes from."""
    if found.site.exact and found.given:
        return found.given.collectives, _given_by(found)
    if found.around[0].backend == "gloo":
        return local_cluster().collectives, "default: what gloo does, as in preset local; not measured"
    return Collectives(), ""


def _measurements(found: Found) -> Measurements:
    def rounded(value: float) -> float:
        return written(value, found.site.exact)

    collectives = tuple(
        one.model_copy(update={"time": rounded(one.time), "least": rounded(one.least)}) for one in found.collectives
    )
    return Measurements(
        ranks=found.num_ranks,
        backend=found.around[0].backend,
        tiny_all_reduce=next((one.time for one in collectives if (one.kind, one.size) == ("all_reduce", TINY)), None),
        reduction_rate=rounded(min(one.reduction_rate for one in found.devices)),
        pairs=tuple(
            PairTime(source=a, target=b, latency=rounded(way.latency), rate=rounded(way.rate))
            for (a, b), way in found.ways.items()
        ),
        collectives=collectives,
        curves=tuple(_written_curve(one, rounded) for one in found.curves),
        sharing=tuple(
            Sharing(ranks=one.ranks, slowdown=rounded(one.slowdown), steals=rounded(one.steals))
            for one in found.sharing
        ),
    )


def _written_curve(curve: CollectiveCurve, rounded: Callable[[float], float]) -> CollectiveCurve:
    height, middle, steepness, low = (rounded(value) for value in curve.sigmoid)
    update = {"overhead": rounded(curve.overhead), "rate": rounded(curve.rate)}
    return curve.model_copy(update={**update, "sigmoid": (height, middle, steepness, low)})


def _notes(found: Found) -> Iterator[str]:
    cores = found.around[0].cores
    if found.num_ranks == 1:
        yield "one rank: nothing to measure between, so only its device was; the wire is preset local's default"
    elif found.loopback:
        yield (
            f"one host: {found.num_ranks} ranks share its {cores} core(s) and its memory, so what was measured between "
            "them is the loopback interface and the host's scheduler, and no network"
        )
    elif found.one_host:
        yield f"one host: {found.num_ranks} ranks share its {cores} core(s); small messages measure its scheduler, too"
    if found.one_host and found.num_ranks > cores:
        yield "more ranks than cores: collectives wait for a core, which the fitted cluster knows nothing of"
    load, there = max((one.load, one.cores) for one in found.around)
    if not found.site.exact and load > _BUSY * there:
        yield f"a host was busy before it was measured (load {load:.1f} on {there} cores): again when it is quiet"
    if found.fit and found.tolerance:
        kind = "matrix" if isinstance(found.fit.topology, Matrix) else "star"
        kind += f" with {len(found.fit.wires)} different wire(s)" if found.fit.wires else ""
        off = "pairs lie off it by up to {:.1%} in rates and {:.1%} in latencies".format(*found.fit.residual)
        why = "which counts as alike: it is one interface" if found.loopback else f"alike is {found.tolerance.text()}"
        yield f"topology: {kind}; {off}; {why}"
        yield "pairs were measured one at a time: what they share behind their wires is in no constant"
        if isinstance(found.fit.topology, Matrix):
            yield "a matrix has a wire for each pair, so ranks that send to several at once are simulated too fast"
    if found.num_ranks > 1 and not found.site.exact and found.around[0].backend != "gloo":
        yield "algorithms of collectives: chosen by size, which is an assumption about the library"
