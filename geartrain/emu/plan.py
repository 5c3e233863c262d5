"""What is built for a run: namespaces, bridges and shaped wires, as plain values. Nothing here touches the system.

    star        every node has a namespace of its own, and a wire to one bridge in the switch's namespace
    two_level   a bridge per leaf, and a wire from each to the core bridge; with one leaf it is a star
    matrix      as a star, but a node's wire holds a class per destination, each with a rate and a delay of its own
    inside      the devices of a node that are used have a namespace each; they share, or have, wires outward as
    a node      `wire_per` says, and a second wire each to a bridge of the node, for their sisters alone

A shaper counts a packet with its Ethernet header (14 bytes) and knows nothing of preamble, checksum and gap. So that
goodput is what the cluster says it is, whatever part of a packet its file counts:

    rate of the shaper = goodput * (mtu + 14) / (mtu - 52)

with the 52 bytes of IPv4, TCP and its timestamps that Linux really sends. A wire without an mtu gets `USUAL_MTU`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Cluster, Matrix, Star, TwoLevel, Wire
from geartrain.cluster.topology import SWITCH, Link
from geartrain.errors import ConfigurationError
from geartrain.units import format_rate, format_size

USUAL_MTU = 9000  # of a wire whose packets the cluster does not describe; chosen: large packets cost the host least
ETHERNET_HEADER = 14
TCP_HEADER = 52
FASTEST = 10e9 / 8
"""Bytes per second of the fastest wire that is built; chosen. Above it one measures the host, not the wire."""
SLOWEST = 1e6 / 8
"""Bytes per second of the slowest; below it a single packet takes longer than many a run's whole step; chosen."""
MOST_NODES = 250
SMALLEST_MTU, LARGEST_MTU = 576, 65_000
CORE = "switch"
SWITCH_ADDRESS = "10.77.255.254"


@dataclass(frozen=True)
class Way:
    """One direction of a wire.

    Attributes:
        link: name of the cluster's link that this is; "" for a way that only joins things and is not shaped.
        rate: bytes per second, as the shaper counts them; infinite for no limit.
        latency: seconds.
        nodes: only for traffic to these nodes; empty: all of it.
    """

    link: str = ""
    rate: float = math.inf
    latency: float = 0.0
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Host:
    """A namespace: a device's (or node's), or the switch's.

    Attributes:
        name: like "node-0", "node-0.1" or "switch".
        machine: what programs see as their host's name: the devices of one node are one machine to them.
        node: index in the cluster, or `SWITCH`.
        address: inside the network, which nothing leaves.
    """

    name: str
    machine: str
    node: int
    device: int
    address: str


@dataclass(frozen=True)
class Edge:
    """A wire from a host, or from a bridge, to a bridge.

    Attributes:
        end, bridge: names of a host or bridge, and of a bridge.
        up, down: what leaves `end`, and what comes to it. Several ways in one direction are told apart by node.
        mtu: of both ends.
        sisters: addresses reached over this wire, and no others; empty: it leads everywhere.
    """

    end: str
    bridge: str
    up: tuple[Way, ...] = (Way(),)
    down: tuple[Way, ...] = (Way(),)
    mtu: int = USUAL_MTU
    sisters: tuple[str, ...] = ()

    @property
    def latency(self) -> float:
        """The longest of its delays."""
        return max(way.latency for way in (*self.up, *self.down))


@dataclass(frozen=True)
class Plan:
    """A network. Plans that are equal can use the same one.

    Attributes:
        hosts: the switch first, where a service lives there.
        places: which host each rank lives on.
        latencies: (host, host, seconds that a message between them shall take) for the first pair of every delay.
    """

    hosts: tuple[Host, ...]
    bridges: tuple[str, ...]
    edges: tuple[Edge, ...]
    places: tuple[int, ...]
    latencies: tuple[tuple[int, int, float], ...]

    @property
    def longest(self) -> float:
        """The longest delay of any route."""
        return max((seconds for *_, seconds in self.latencies), default=0.0)

    def rate_into(self, end: str) -> float:
        """Bytes per second that come to a host or bridge at most, by the narrowest wire from the core to it."""
        outer = [edge for edge in self.edges if edge.end == end and not edge.sisters]
        return min((min(edge.down[0].rate, self.rate_into(edge.bridge)) for edge in outer), default=math.inf)


def make_plan(placement: Placement) -> Plan:
    """The network of a run; ConfigurationError for what this engine cannot build."""
    topology = placement.cluster.topology
    if placement.num_nodes > MOST_NODES:
        raise ConfigurationError(
            f"{placement.num_nodes} nodes are more than one machine carries; emulate at most {MOST_NODES}"
        )
    used = _used_devices(placement)
    hosts = list(_hosts(placement, used))
    outer = Wire(rate=1.0, latency=0.0) if isinstance(topology, Matrix) else topology.wire
    maker = _Maker(placement, used, hosts, _mtu(outer, "topology.wire"))
    edges = maker.matrix() if isinstance(topology, Matrix) else maker.switched(topology)
    if topology.inner is not None:
        edges += maker.inner(topology.inner)
    bridges = dict.fromkeys([CORE, *(edge.bridge for edge in edges)])
    by_place = {(host.node, host.device): index for index, host in enumerate(hosts)}
    places = tuple(by_place[placement.node(rank), placement.device_index(rank)] for rank in range(placement.num_ranks))
    return Plan(tuple(hosts), tuple(bridges), tuple(edges), places, tuple(_latencies(placement, places)))


def _used_devices(placement: Placement) -> dict[int, list[int]]:
    """Node -> the devices that ranks live on, in order. A node without a rank is not built."""
    used: dict[int, set[int]] = {}
    for rank in range(placement.num_ranks):
        if placement.node(rank) != SWITCH:
            used.setdefault(placement.node(rank), set()).add(placement.device_index(rank))
    return {node: sorted(devices) for node, devices in sorted(used.items())}


def _hosts(placement: Placement, used: dict[int, list[int]]) -> Iterator[Host]:
    if SWITCH in placement.nodes:
        yield Host(CORE, CORE, SWITCH, 0, SWITCH_ADDRESS)
    for node, devices in used.items():
        name = placement.cluster.node_name(node)
        for device in devices:
            full = name if len(devices) == 1 else f"{name}.{device}"
            yield Host(full, name, node, device, f"10.77.{node}.{device + 1}")


def _latencies(placement: Placement, places: tuple[int, ...]) -> Iterator[tuple[int, int, float]]:
    seen: set[float] = set()
    for a in range(placement.num_ranks):
        for b in range(placement.num_ranks):
            latency = placement.route(a, b).latency
            if places[a] != places[b] and latency not in seen:
                seen.add(latency)
                # There and back: the ways of a matrix may differ.
                yield places[a], places[b], (latency + placement.route(b, a).latency) / 2


class _Maker:
    def __init__(self, placement: Placement, used: dict[int, list[int]], hosts: list[Host], mtu: int) -> None:
        self._cluster: Cluster = placement.cluster
        self._used, self._hosts, self._mtu = used, hosts, mtu
        self._links = {link.name: link for link in placement.links}

    def _way(self, link: str, mtu: int, nodes: tuple[int, ...] = ()) -> Way:
        return _shaped(self._links[link], mtu, nodes)

    def _both(self, name: str, mtu: int, ways: tuple[str, str] = ("up", "down")) -> tuple[tuple[Way], tuple[Way]]:
        up, down = (self._way(f"{name}.{way}", mtu) for way in ways)
        return (up,), (down,)

    def _of(self, node: int) -> list[Host]:
        return [host for host in self._hosts if host.node == node]

    def switched(self, topology: Star | TwoLevel) -> list[Edge]:
        """Star and two levels: wires of nodes (or devices) to leaves, and of leaves to the core."""
        per_leaf = topology.nodes_per_switch if isinstance(topology, TwoLevel) else None
        crossing = "switch/leaf-0.up" in self._links
        edges: list[Edge] = []
        for node in self._used:
            leaf = f"leaf-{node // (per_leaf or 1)}" if crossing else CORE
            name, hosts = self._cluster.node_name(node), self._of(node)
            if topology.wire_per == "device":
                ports = [(host, f"{name}.{host.device}") for host in hosts]
                edges += [Edge(host.name, leaf, *self._both(port, self._mtu), self._mtu) for host, port in ports]
            else:
                edges += self._joined(node, leaf, *self._both(name, self._mtu))
        leaves = dict.fromkeys(edge.bridge for edge in edges if edge.bridge.startswith("leaf-"))
        for leaf in leaves:
            edges.append(Edge(leaf, CORE, *self._both(f"switch/{leaf}", self._mtu), self._mtu))
        return edges

    def _joined(self, node: int, bridge: str, up: tuple[Way, ...], down: tuple[Way, ...]) -> list[Edge]:
        """The one wire of a node; its devices, if several are used, meet on a bridge before it."""
        hosts = self._of(node)
        if len(hosts) == 1:
            return [Edge(hosts[0].name, bridge, up, down, self._mtu)]
        port = f"{self._cluster.node_name(node)}/out"
        return [*(Edge(host.name, port, mtu=self._mtu) for host in hosts), Edge(port, bridge, up, down, self._mtu)]

    def matrix(self) -> list[Edge]:
        """A wire per node; what leaves it is shaped by where it goes, what comes to it was."""
        edges: list[Edge] = []
        for node in self._used:
            others = [other for other in self._used if other != node]
            names = {other: f"{self._cluster.node_name(node)}>{self._cluster.node_name(other)}" for other in others}
            up = tuple(self._way(name, self._mtu, (other,)) for other, name in names.items())
            edges += self._joined(node, CORE, up or (Way(),), (Way(),))
        return edges

    def inner(self, wire: Wire) -> list[Edge]:
        """The wires among the devices of one node."""
        mtu, edges = _mtu(wire, "topology.inner"), []
        for node in self._used:
            hosts, name = self._of(node), self._cluster.node_name(node)
            for host in hosts if len(hosts) > 1 else ():
                sisters = tuple(other.address for other in hosts if other is not host)
                ways = self._both(f"{name}.{host.device}", mtu, ("out", "in"))
                edges.append(Edge(host.name, f"{name}/in", *ways, mtu, sisters))
        return edges


def _shaped(link: Link, mtu: int, nodes: tuple[int, ...]) -> Way:
    if not SLOWEST <= link.capacity <= FASTEST:
        raise ConfigurationError(
            f"link {link.name} carries {format_rate(link.capacity)} of payload; the emulated engine builds links of "
            f"{format_rate(SLOWEST)} to {format_rate(FASTEST)}, which one machine carries and keeps apart.\n"
            "  take a slower cluster, or scale rates and compute together; the simulated engine knows no such limit"
        )
    return Way(link.name, link.capacity * (mtu + ETHERNET_HEADER) / (mtu - TCP_HEADER), link.latency, nodes)


def _mtu(wire: Wire, where: str) -> int:
    if wire.mtu is None:
        return USUAL_MTU
    if not SMALLEST_MTU <= wire.mtu <= LARGEST_MTU:
        raise ConfigurationError(
            f"{where} has an mtu of {format_size(wire.mtu)}; the emulated engine sends real packets, of "
            f"{SMALLEST_MTU} to {LARGEST_MTU} B"
        )
    return wire.mtu
