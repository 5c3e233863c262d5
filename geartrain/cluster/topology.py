"""Topologies as links and routes.

Every topology becomes a flat tuple of directed links and a way to find the links between two devices. The links exist
from the start; which of them a route takes is found when it is first asked for, and kept.

    star, two_level   node-0.up, node-0.down, ...; with a wire per device node-0.0.up, node-0.0.down, ...
    two_level         switch/leaf-0.up, switch/leaf-0.down, ...
    matrix            node-0>node-1, ...
    inside a node     node-0.0.out, node-0.0.in, ...
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from geartrain.cluster.spec import Cluster, Matrix, Star, TwoLevel, Wire
from geartrain.errors import ClusterError, PlacementError

SWITCH = -1
"""In place of a node: the switch that joins all nodes (the core of a two-level topology with more than one leaf)."""


@dataclass(frozen=True, slots=True)
class Link:
    """One direction of a wire: payload bytes per second, and the one-way latency that it adds to a route."""

    name: str
    capacity: float
    latency: float


@dataclass(frozen=True, slots=True)
class Route:
    """The links from one device to another, in order, and the sum of their latencies; empty within one device."""

    links: tuple[int, ...]
    latency: float


@dataclass(frozen=True, eq=False)
class Topology:
    """The links of the first nodes of a cluster, and the routes over them.

    A route between nodes takes the wires between them only; what lies between a device and its node's wire is not
    modelled. A route within a node takes two inner links, out of the one device and into the other.
    """

    num_nodes: int
    links: tuple[Link, ...]
    _find: Callable[[int, int, int, int], tuple[str, ...]]
    _index: Mapping[str, int]
    _routes: dict[tuple[int, int, int, int], Route] = field(default_factory=dict)

    def route(self, node_a: int, device_a: int, node_b: int, device_b: int) -> Route:
        """The way from a device to another; either node may be `SWITCH`, whose device is 0."""
        key = (node_a, device_a, node_b, device_b)
        found = self._routes.get(key)
        if found is None:
            same = node_a == node_b and device_a == device_b
            links = () if same else tuple([self._index[name] for name in self._find(*key)])
            found = self._routes[key] = Route(links, math.fsum([self.links[link].latency for link in links]))
        return found

    def rate(self, route: Route) -> float:
        """Payload bytes per second of the narrowest link of a route; infinite within one device."""
        return min((self.links[link].capacity for link in route.links), default=math.inf)


def build(cluster: Cluster, num_nodes: int) -> Topology:
    """The links and routes of the first `num_nodes` nodes of a cluster."""
    if num_nodes < 1 or (cluster.num_nodes is not None and num_nodes > cluster.num_nodes):
        raise ClusterError(
            f"cannot use {num_nodes} nodes of cluster {cluster.name!r}, which has {cluster.num_nodes or 'any number'}"
        )
    names = [cluster.node_name(node) for node in range(num_nodes)]
    devices = [cluster.node(node)[0].devices_per_node for node in range(num_nodes)]
    topology = cluster.topology
    inner = _inner_links(topology.inner, names, devices)
    if isinstance(topology, Matrix):
        links, find = _matrix(cluster, topology, names)
    else:
        links, find = _switched(cluster, topology, names, devices)

    def find_any(node_a: int, device_a: int, node_b: int, device_b: int) -> tuple[str, ...]:
        if node_a == node_b:
            return (f"{names[node_a]}.{device_a}.out", f"{names[node_b]}.{device_b}.in")
        return find(node_a, device_a, node_b, device_b)

    links += inner
    return Topology(num_nodes, tuple(links), find_any, {link.name: index for index, link in enumerate(links)})


_Finder = Callable[[int, int, int, int], tuple[str, ...]]


def _inner_links(inner: Wire | None, names: list[str], devices: list[int]) -> list[Link]:
    if inner is None:
        return []
    return [
        Link(f"{name}.{device}.{way}", inner.goodput, inner.latency / 2)
        for name, count in zip(names, devices, strict=True)
        if count > 1
        for device in range(count)
        for way in ("out", "in")
    ]


def _switched(
    cluster: Cluster, topology: Star | TwoLevel, names: list[str], devices: list[int]
) -> tuple[list[Link], _Finder]:
    """Star and two levels: up one's own wire, through the core when the leaves differ, down the other's wire."""
    per_device = topology.wire_per == "device"
    ways = _wires(cluster, topology.wire, len(names))
    links = [
        Link(f"{port}.{way}", rate, latency)
        for node, name in enumerate(names)
        for port in ([f"{name}.{device}" for device in range(devices[node])] if per_device else [name])
        for way, (rate, latency) in ways[node].items()
    ]
    per_leaf = topology.nodes_per_switch if isinstance(topology, TwoLevel) else None
    per_leaf = per_leaf or len(names)
    leaves = math.ceil(len(names) / per_leaf)
    if isinstance(topology, TwoLevel) and leaves > 1:
        ports = max(group.devices_per_node for group in cluster.nodes) if per_device else 1
        capacity = per_leaf * ports * topology.wire.goodput / topology.oversubscription
        ends = (f"{leaf}.{way}" for leaf in range(leaves) for way in ("up", "down"))
        links += [Link(f"switch/leaf-{end}", capacity, topology.core_latency / 2) for end in ends]

    @cache
    def half(node: int, device: int, way: str, crosses: bool) -> tuple[str, ...]:
        if node == SWITCH:
            return ()
        wire = f"{names[node]}.{device}.{way}" if per_device else f"{names[node]}.{way}"
        return (wire, f"switch/leaf-{node // per_leaf}.{way}") if crosses else (wire,)

    def find(node_a: int, device_a: int, node_b: int, device_b: int) -> tuple[str, ...]:
        crosses = leaves > 1 and (SWITCH in (node_a, node_b) or node_a // per_leaf != node_b // per_leaf)
        return (*half(node_a, device_a, "up", crosses), *reversed(half(node_b, device_b, "down", crosses)))

    return links, find


def _wires(cluster: Cluster, wire: Wire, num_nodes: int) -> list[dict[str, tuple[float, float]]]:
    """For every node and way ("up", "down"): goodput and latency, overrides applied in the order they stand."""
    usual = {"up": (wire.goodput, wire.latency / 2), "down": (wire.goodput, wire.latency / 2)}
    ways = [dict(usual) for _ in range(num_nodes)]
    for override in cluster.overrides.wires:
        found = cluster.find(override.node)
        for node in range(found.start, min(found.stop, num_nodes)):
            for way in ("up", "down") if override.direction == "both" else (override.direction,):
                rate, latency = ways[node][way]
                rate = rate if override.rate is None else override.rate * wire.efficiency
                latency = latency if override.latency is None else override.latency / 2
                ways[node][way] = (rate, latency)
    return ways


def _matrix(cluster: Cluster, topology: Matrix, names: list[str]) -> tuple[list[Link], _Finder]:
    """A link of its own for every ordered pair of nodes."""
    num_nodes = len(names)
    pairs = {
        (a, b): (topology.rate[a][b] or 0.0, topology.latency[a][b] or 0.0)
        for a in range(num_nodes)
        for b in range(num_nodes)
        if a != b
    }
    for override in cluster.overrides.pairs:
        a, b = (cluster.find(ref).start for ref in override.pair)
        for pair in ((a, b), (b, a)) if override.both_ways else ((a, b),):
            if pair in pairs:
                rate, latency = pairs[pair]
                rate = rate if override.rate is None else override.rate
                pairs[pair] = (rate, latency if override.latency is None else override.latency)
    links = [Link(f"{names[a]}>{names[b]}", *pair) for (a, b), pair in pairs.items()]

    def find(node_a: int, device_a: int, node_b: int, device_b: int) -> tuple[str, ...]:
        if SWITCH in (node_a, node_b):
            raise PlacementError(
                f"cluster {cluster.name!r} is a matrix of wires and has no switch; give the service a node of its own"
            )
        return (f"{names[node_a]}>{names[node_b]}",)

    return links, find
