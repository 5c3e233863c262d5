"""What a cluster is: machines, devices, wires and how they are joined, as frozen values.

The same values are read from TOML (`load.py`) and built in Python. Every quantity may be given as text with a unit;
in Python also as a plain SI number (seconds, bytes, bytes per second, FLOP per second), which a file refuses.

    Cluster
    ├── nodes: NodeGroup ...      count machines alike, each with devices_per_node times the same Device
    ├── topology                  Star | TwoLevel | Matrix: how nodes are joined; `inner` joins the devices of one node
    ├── overrides                 what is different for single nodes, wires and pairs
    └── origins, measured         where constants come from, and times that were measured beside them
"""

import re
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from geartrain.cluster.fields import (
    UNREACHABLE,
    Count,
    DataType,
    Flops,
    HeaderSize,
    MemoryRate,
    Name,
    NodeCount,
    Price,
    RateCell,
    Size,
    Spec,
    Text,
    Time,
    TimeCell,
    Watts,
    WireRate,
    not_empty,
)
from geartrain.cluster.measured import Measurements, Origin, origin_problems
from geartrain.cluster.overrides import Overrides
from geartrain.errors import ClusterError, UnknownName


class Device(Spec):
    """What computes.

    Args:
        name: e.g. "V100-SXM2-16GB".
        flops: peak compute rate by data type, e.g. {"fp32": "15.7 TFLOP/s"}; at least one.
        memory: size of its memory.
        memory_rate: rate at which that memory is read.
        launch_overhead: time that every operation takes whatever its size; 0 s by default.
        power: what it draws when it computes; left out: unknown, then there is no energy of a step.
        idle_power: what it draws when it does not; left out: as `power`.
        source: where the numbers come from: a data sheet, a measurement, or "chosen".
    """

    name: Text
    flops: Annotated[Mapping[DataType, Flops], AfterValidator(not_empty)]
    memory: Size
    memory_rate: MemoryRate
    launch_overhead: Time = 0.0
    power: Watts | None = None
    idle_power: Watts | None = None
    source: Text

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.flops.items()), self.memory, self.memory_rate, self.launch_overhead))

    def flops_of(self, dtype: str) -> float:
        """Peak FLOP per second for a data type; UnknownName when the description of this device lacks it."""
        for known, rate in self.flops.items():
            if known == dtype:
                return rate
        raise UnknownName(f"compute rate of {self.name}", dtype, self.flops)


def _device(value: Any) -> Any:
    """The device itself where a preset or a file is named."""
    if not isinstance(value, str):
        return value
    from geartrain.cluster.load import load_device  # which reads what is defined here

    try:
        return load_device(value)
    except (ClusterError, UnknownName) as error:
        raise ValueError(str(error).replace("\n  known:", "; known:")) from error


class NodeGroup(Spec):
    """Machines alike: `count` of them ("any": as many as a run needs), named "<name>-0", "<name>-1", ...

    Args:
        device, devices_per_node: what computes in each; a text names a preset ("h100-sxm5") or a TOML file of a device.
        power: what a machine draws beside its devices; left out: unknown, then the energy of a step is its devices'.
        price: of a machine with its devices, like "32.77 USD/h"; left out: unknown.
    """

    name: Name = "node"
    count: NodeCount
    device: Annotated[Device, BeforeValidator(_device)]
    devices_per_node: Count = 1
    power: Watts | None = None
    price: Price | None = None


class Wire(Spec):
    """A full-duplex wire: two links, one each way, of the same rate.

        goodput = rate * (mtu - header) / (mtu + framing)        with an mtu
        goodput = rate                                           without: a "textbook wire", all of it payload

    Args:
        rate: bits on the wire.
        latency: what the wire adds, end to end and one way, to a route that enters and leaves it.
        mtu: largest packet, e.g. "1500 B" or "9000 B". Without it the closed forms of the literature hold exactly.
        header: bytes of each packet inside the mtu that are no payload; 52 B: IPv4 20, TCP 20, TCP timestamps 12.
        framing: bytes on the wire beside each packet; 38 B for Ethernet: preamble 8, header 14, checksum 4, gap 12.
    """

    rate: WireRate
    latency: Time
    mtu: Size | None = None
    header: HeaderSize = 52
    framing: HeaderSize = 38

    @model_validator(mode="after")
    def _packets(self) -> Self:
        if self.mtu is None and self.model_fields_set & {"header", "framing"}:
            raise ValueError("`header` and `framing` count only with an `mtu`; add the mtu or leave them out")
        if self.mtu is not None and self.header >= self.mtu:
            raise ValueError(f"a header of {self.header} B leaves no payload in an mtu of {self.mtu} B")
        return self

    @model_serializer(mode="wrap")
    def _without_unused(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        return data if self.mtu is not None else {"rate": data["rate"], "latency": data["latency"]}

    @property
    def efficiency(self) -> float:
        """The share of the rate that is payload, in (0, 1]."""
        return 1.0 if self.mtu is None else (self.mtu - self.header) / (self.mtu + self.framing)

    @property
    def goodput(self) -> float:
        """Payload bytes per second each way."""
        return self.rate * self.efficiency


class Star(Spec):
    """Every node has one full-duplex wire to one ideal switch, which never blocks and adds no time.

    The latency between two nodes is exactly that of `wire`: one half on the way up, one half on the way down.

    Args:
        wire: from a node to the switch.
        wire_per: "node": the devices of a node share one wire; "device": each has a wire of its own.
        inner: joins the devices of one node: each has such a wire to an ideal switch inside the node.
    """

    kind: Literal["star"] = "star"
    wire: Wire
    wire_per: Literal["node", "device"] = "node"
    inner: Wire | None = None


class TwoLevel(Spec):
    """Nodes under leaf switches, leaves joined by one ideal core.

        capacity of a leaf's uplink, each way = nodes_per_switch * (wires of a node) * goodput / oversubscription

    Args:
        wire, wire_per, inner: as for a star.
        nodes_per_switch: nodes under one leaf, filled in order; left out: one leaf for all, which is a star.
        oversubscription: 1 (the default) never blocks; 4 means that a quarter of what nodes can send leaves the leaf.
        core_latency: what a route pays, one way, for leaving its leaf; 0 s by default.
    """

    kind: Literal["two_level"] = "two_level"
    wire: Wire
    wire_per: Literal["node", "device"] = "node"
    inner: Wire | None = None
    nodes_per_switch: Count | None = None
    oversubscription: Annotated[float, Field(ge=1)] = 1.0
    core_latency: Time = 0.0

    @model_validator(mode="after")
    def _core(self) -> Self:
        if self.nodes_per_switch is None and (self.oversubscription != 1 or self.core_latency != 0):
            raise ValueError("`oversubscription` and `core_latency` need `nodes_per_switch`: one leaf has no uplink")
        return self


class Matrix(Spec):
    """A wire for every ordered pair of nodes (or sites, each written as a node): wide-area clusters.

    `rate[i][j]` and `latency[i][j]` describe the way from node i to node j, "-" where i is j. All of a rate is payload.
    """

    kind: Literal["matrix"] = "matrix"
    rate: tuple[tuple[RateCell, ...], ...]
    latency: tuple[tuple[TimeCell, ...], ...]
    inner: Wire | None = None

    @model_validator(mode="after")
    def _square(self) -> Self:
        size, problems = len(self.rate), []
        for key, table in (("rate", self.rate), ("latency", self.latency)):
            if len(table) != size or any(len(row) != size for row in table):
                shape = f"{len(table)} rows of {', '.join(str(len(row)) for row in table)}"
                problems.append(f"`{key}` must be square and as large as `rate` ({size}); it has {shape}")
                continue
            cells = ((i, j) for i in range(size) for j in range(size) if (table[i][j] is None) != (i == j))
            for i, j in cells:
                means = 'the way of a node to itself; write "-"' if i == j else UNREACHABLE
                problems.append(f"{key}[{i}][{j}] is {means}")
        if problems:
            raise ValueError("\n".join(problems))
        return self


Topology = Annotated[Star | TwoLevel | Matrix, Field(discriminator="kind")]


class Collectives(Spec):
    """The algorithm that the cluster's communication library uses for a collective; left out: chosen by size.

    The names are those of `geartrain.cost.collectives`.
    """

    all_reduce: Literal["ring", "halving_doubling", "recursive_doubling", "tree"] | None = None
    broadcast: Literal["tree", "pipeline", "linear"] | None = None
    reduce: Literal["tree", "pipeline", "linear"] | None = None
    gather: Literal["linear", "tree"] | None = None
    scatter: Literal["linear", "tree"] | None = None
    all_to_all: Literal["pairwise", "linear"] | None = None

    def algorithm(self, kind: str) -> str | None:
        """The algorithm for a kind of collective, or None for the choice by size."""
        chosen: str | None = getattr(self, kind, None)
        return chosen


class Cluster(Spec):
    """Machines and how they are joined.

    Args:
        name: letters, digits, `_`, `.`, `-`.
        summary: one line for lists.
        source: where the numbers come from.
        nodes: groups of machines, numbered in order from 0 over all groups; only the last may have count "any".
        topology: how nodes are joined.
        collectives: algorithms of the communication library, where it does not choose by size.
        overrides: what is different for single nodes and links.
        origins: a constant's place, like "topology.wire.rate", -> "measured: ...", "given: ..." or "default: ...".
        measured: times of collectives and pairs, see `geartrain calibrate`.
    """

    name: Name
    summary: str = ""
    source: Text
    nodes: Annotated[tuple[NodeGroup, ...], AfterValidator(not_empty)]
    topology: Topology
    collectives: Collectives = Collectives()
    overrides: Overrides = Overrides()
    origins: Mapping[str, Origin] = {}
    measured: Measurements | None = None

    def __hash__(self) -> int:
        return hash((self.name, self.source, self.nodes, self.topology, self.collectives, self.overrides))

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        # What refers to nodes is looked at only once the nodes themselves are in order.
        problems = [*_group_problems(self)] or [*_topology_problems(self), *_override_problems(self)]
        problems = problems or [*_overrides_without_effect(self)]
        if self.origins and not problems:
            data = self.model_dump(mode="json", exclude_none=True, exclude={"origins"})
            problems = [*origin_problems(data, self.origins)]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    @property
    def num_nodes(self) -> int | None:
        """How many nodes there are; None: as many as a run needs."""
        _, last = self.spans()[-1]
        return None if last.stop == sys.maxsize else last.stop

    def spans(self) -> tuple[tuple[NodeGroup, range], ...]:
        """Every group with the indices of its nodes; a group of any size never ends."""
        spans, first = [], 0
        for group in self.nodes:
            stop = sys.maxsize if group.count == "any" else first + group.count
            spans.append((group, range(first, stop)))
            first = stop
        return tuple(spans)

    def node(self, index: int) -> tuple[NodeGroup, int]:
        """The group of a node, and the node's number in that group."""
        for group, span in self.spans():
            if index in span:
                return group, index - span.start
        raise ClusterError(f"cluster {self.name!r} has no node {index}; it has {self.num_nodes}, numbered from 0")

    def node_name(self, index: int) -> str:
        """Like "node-3"."""
        group, number = self.node(index)
        return f"{group.name}-{number}"

    def find(self, ref: int | str) -> range:
        """The nodes that an index, a node's name, a group's name or "all" stands for; UnknownName if there are none."""
        everyone = range(self.spans()[-1][1].stop)
        found = everyone if ref == "all" else range(0)
        if isinstance(ref, int):
            found = everyone[ref : ref + 1]
        for group, span in self.spans():
            number = re.fullmatch(re.escape(group.name) + r"-(0|[1-9]\d{0,9})", str(ref))
            if ref == group.name:
                found = span
            elif number:
                found = span[int(number[1]) : int(number[1]) + 1]
        if not found:
            raise UnknownName(f"node of cluster {self.name!r}", str(ref), self._refs())
        return found

    def _refs(self) -> Iterator[str]:
        yield "all"
        for group, span in self.spans():
            yield group.name
            yield from (f"{group.name}-{number}" for number in range(min(len(span), 8)))


def _group_problems(cluster: Cluster) -> Iterator[str]:
    names = [group.name for group in cluster.nodes]
    for i, group in enumerate(cluster.nodes):
        if group.name in names[:i] or group.name == "all":
            yield f'nodes[{i}].name: {group.name!r} is taken; give every group a name of its own (and not "all")'
        if re.sub(r"-\d+$", "", group.name) in set(names) - {group.name}:
            yield f"nodes[{i}].name: {group.name!r} reads like a node of another group; choose another name"
        if group.count == "any" and i < len(names) - 1:
            yield f'nodes[{i}].count: only the last group may have "any" number of nodes; put it last'


def _topology_problems(cluster: Cluster) -> Iterator[str]:
    topology = cluster.topology
    for i, group in enumerate(cluster.nodes):
        if group.devices_per_node > 1 and topology.inner is None:
            yield (
                f"topology.inner: missing; nodes[{i}] has {group.devices_per_node} devices per node, "
                "and `inner` is the wire that joins them"
            )
    if isinstance(topology, Matrix) and cluster.num_nodes != len(topology.rate):
        have = 'any number of nodes (count = "any")' if cluster.num_nodes is None else f"{cluster.num_nodes} nodes"
        yield f"topology.rate: has {len(topology.rate)} rows, but there are {have}; a matrix has one row per node"


def _override_problems(cluster: Cluster) -> Iterator[str]:
    overrides, is_matrix = cluster.overrides, isinstance(cluster.topology, Matrix)
    if overrides.wires and is_matrix:
        yield "overrides.wires: a matrix has no wire per node; use `overrides.pairs`"
    if overrides.pairs and not is_matrix:
        yield "overrides.pairs: only a matrix has a wire per pair of nodes; use `overrides.wires`"
    for i, node in enumerate(overrides.nodes):
        yield from _ref_problems(cluster, f"overrides.nodes[{i}].node", node.node, node.device)
    for i, wire in enumerate(overrides.wires):
        yield from _ref_problems(cluster, f"overrides.wires[{i}].node", wire.node)
    for i, pair in enumerate(overrides.pairs):
        ends = [list(_ref_problems(cluster, f"overrides.pairs[{i}].pair", ref)) for ref in pair.pair]
        yield from (problem for end in ends for problem in end)
        if not any(ends) and (any(len(cluster.find(ref)) != 1 for ref in pair.pair) or _same(cluster, pair.pair)):
            yield f"overrides.pairs[{i}].pair: {list(pair.pair)} must be two different single nodes"


def _overrides_without_effect(cluster: Cluster) -> Iterator[str]:
    overrides = cluster.overrides
    for kind, given, keys in (
        ("nodes", overrides.nodes, ("speed", "jitter", "straggler")),
        ("wires", overrides.wires, ("rate", "latency")),
        ("pairs", overrides.pairs, ("rate", "latency")),
    ):
        for i, override in enumerate(given):
            if all(getattr(override, key) is None for key in keys):
                yield f"overrides.{kind}[{i}]: changes nothing; give at least one of {', '.join(keys)}"


def _same(cluster: Cluster, pair: tuple[int | str, int | str]) -> bool:
    return cluster.find(pair[0]) == cluster.find(pair[1])


def _ref_problems(cluster: Cluster, where: str, ref: int | str, device: int | None = None) -> Iterator[str]:
    try:
        found = cluster.find(ref)
    except UnknownName as error:
        yield f"{where}: {error}".replace("\n  known:", "; known:")
        return
    for group, span in cluster.spans():
        overlap = range(max(span.start, found.start), min(span.stop, found.stop))
        if device is not None and overlap and device >= group.devices_per_node:
            yield (
                f"{where.removesuffix('.node')}.device: there is no device {device}; the nodes of group "
                f"{group.name!r} have {group.devices_per_node}, numbered from 0"
            )
