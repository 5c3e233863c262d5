"""Who runs where: workers and services of a run on the devices of a cluster."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from geartrain.cluster.measured import CollectiveCurve
from geartrain.cluster.overrides import Straggler
from geartrain.cluster.spec import Cluster, Device, Matrix, NodeGroup
from geartrain.cluster.topology import SWITCH, Link, Route, build
from geartrain.errors import PlacementError


@dataclass(frozen=True)
class ServicePlace:
    """Where a service wants to live.

    Args:
        name: what the service is called, e.g. "server".
        where: "own": on a node of its own; "colocated": on the device of a worker; "switch": at the switch itself.
        beside: the rank of that worker, for "colocated" and only there.
    """

    name: str
    where: Literal["own", "colocated", "switch"] = "own"
    beside: int | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a device computes: a factor on its rate, the relative spread of a step, and now and then a slow step."""

    speed: float = 1.0
    jitter: float = 0.0
    straggler: Straggler | None = None


class Placement:
    """Workers and services on a cluster: ranks 0 .. num_workers-1 are the workers, the services follow in order.

    Workers take devices node by node in order. A service on a node of its own takes device 0 of the first node after
    the last worker's, one node each. PlacementError when there are too few devices or nodes.

    Example:
        place = Placement(load_cluster("ethernet-25g"), 4, [ServicePlace("server")])
        place.route(0, 4).latency    # from worker 0 to the server: 50 us

    Attributes:
        cluster: the cluster.
        num_workers, num_ranks: how many workers; how many workers and services together.
        services: the services, whose ranks start at num_workers.
        num_nodes: how many nodes of the cluster are used.
        nodes: the node of each rank, see `node`.
        links: all links between those nodes; routes refer to them by index.
        known: what others have worked out for this placement, under keys of their own.
    """

    def __init__(self, cluster: Cluster, num_workers: int, services: Sequence[ServicePlace] = ()) -> None:
        if num_workers < 1:
            raise PlacementError(f"{num_workers} workers cannot train; give a number of workers of at least 1")
        self.cluster, self.num_workers, self.services = cluster, num_workers, tuple(services)
        self.num_ranks = num_workers + len(self.services)
        places = _place_workers(cluster, num_workers)
        used = places[-1][0] + 1
        self.num_nodes = used + sum(service.where == "own" for service in self.services)
        self._check_services(used)
        own = iter(range(used, self.num_nodes))
        for service in self.services:
            match service.where:
                case "own":
                    places.append((next(own), 0))
                case "colocated":
                    places.append(places[service.beside or 0])
                case "switch":
                    places.append((SWITCH, 0))
        self._places = tuple(places)
        self.nodes = tuple(node for node, _ in places)
        self._groups = tuple(cluster.node(node)[0] for node in range(self.num_nodes))
        self._sharing = cluster.measured.sharing_of(num_workers) if cluster.measured else None
        self._usual_pace = Pace(1 / self._sharing.slowdown if self._sharing else 1.0)
        self._paces = _paces(cluster, self._groups, self._usual_pace.speed)
        self._topology = build(cluster, self.num_nodes)
        self.links: tuple[Link, ...] = self._topology.links
        self.known: dict[Hashable, Any] = {}
        self._routes: dict[tuple[int, int], Route] = {}

    def node(self, rank: int) -> int:
        """The node that a rank runs on; `SWITCH` (-1) for a service at the switch."""
        return self.nodes[rank]

    def node_name(self, rank: int) -> str:
        """The name of that node, like "node-3", or "switch"."""
        node = self.node(rank)
        return "switch" if node == SWITCH else self.cluster.node_name(node)

    def device_index(self, rank: int) -> int:
        """Which of its node's devices a rank runs on, from 0."""
        return self._places[rank][1]

    def device(self, rank: int) -> Device:
        """The device that a rank runs on; PlacementError for a service at the switch, which has none."""
        node = self.node(rank)
        if node == SWITCH:
            raise PlacementError(f"rank {rank} ({self.role(rank)}) is at the switch, which has no device to compute on")
        return self._groups[node].device

    def role(self, rank: int) -> str:
        """ "worker", or the name of the service."""
        return "worker" if rank < self.num_workers else self.services[rank - self.num_workers].name

    def pace(self, rank: int) -> Pace:
        """Speed, jitter and straggling of the rank's device: what the cluster's overrides say, and what ranks share."""
        return self._paces.get(self._places[rank], self._usual_pace)

    def speed(self, rank: int) -> float:
        """Factor on the compute rate of the rank's device; 1 unless the cluster says otherwise."""
        return self.pace(rank).speed

    @property
    def steals(self) -> float:
        """The share of hidden communication that computing loses to it, where the cluster has it measured; else 0."""
        return self._sharing.steals if self._sharing else 0.0

    def curve(self, kind: str, num_ranks: int) -> CollectiveCurve | None:
        """The measured curve of a kind of collective among so many ranks, if the cluster has one."""
        return self.cluster.measured.curve_of(kind, num_ranks) if self.cluster.measured else None

    @cached_property
    def unlike(self) -> tuple[int, ...]:
        """The workers that differ in device or speed, the first of each kind: those who decide who is slowest."""
        first: dict[tuple[int, float], int] = {}
        for rank in range(self.num_workers):
            first.setdefault((id(self.device(rank)), self.speed(rank)), rank)
        return tuple(first.values())

    def route(self, src: int, dst: int) -> Route:
        """The links from one rank to another; empty, with zero latency, for ranks on one device."""
        found = self._routes.get((src, dst))
        if found is None:
            found = self._routes[src, dst] = self._topology.route(*self._places[src], *self._places[dst])
        return found

    def rate(self, src: int, dst: int) -> float:
        """Payload bytes per second from one rank to another when nothing else is sent; infinite on one device."""
        return self._topology.rate(self.route(src, dst))

    def _check_services(self, used: int) -> None:
        for service in self.services:
            if (service.beside is None) == (service.where == "colocated"):
                need = "needs" if service.where == "colocated" else "must not have"
                raise PlacementError(f"service {service.name!r} is {service.where!r} and {need} a worker `beside` it")
            if service.beside is not None and not 0 <= service.beside < self.num_workers:
                raise PlacementError(
                    f"service {service.name!r} shall live beside worker {service.beside}, but the workers are "
                    f"0 to {self.num_workers - 1}"
                )
            if service.where == "switch" and isinstance(self.cluster.topology, Matrix):
                raise PlacementError(
                    f"service {service.name!r} shall live at the switch, but cluster {self.cluster.name!r} is a matrix "
                    'of wires and has none; place it "own" or "colocated", or choose a star or two_level cluster'
                )
        have = self.cluster.num_nodes
        if have is not None and self.num_nodes > have:
            raise PlacementError(
                f"{self.num_nodes - used} service(s) want nodes of their own, but cluster {self.cluster.name!r} has "
                f"{have} node(s) and {self.num_workers} worker(s) use {used} of them: {self.num_nodes} are needed.\n"
                "  use fewer workers, place the services beside workers (colocated), or take a larger cluster"
            )


def _place_workers(cluster: Cluster, num_workers: int) -> list[tuple[int, int]]:
    """(node, device) of every worker."""
    places: list[tuple[int, int]] = []
    for group, span in cluster.spans():
        for node in span:
            places.extend((node, device) for device in range(group.devices_per_node))
            if len(places) >= num_workers:
                return places[:num_workers]
    raise PlacementError(
        f"{num_workers} workers need {num_workers} devices, but cluster {cluster.name!r} has {len(places)}.\n"
        f"  use at most {len(places)} workers, or take a larger cluster"
    )


def _paces(cluster: Cluster, groups: Sequence[NodeGroup], usual: float) -> dict[tuple[int, int], Pace]:
    """The pace of every (node, device) that an override speaks of; a later override decides the keys that it gives.

    Args:
        usual: the speed that an override's is a factor on.
    """
    paces: dict[tuple[int, int], Pace] = {}
    for override in cluster.overrides.nodes:
        found = cluster.find(override.node)
        for node in range(found.start, min(found.stop, len(groups))):
            devices: Iterable[int] = range(groups[node].devices_per_node)
            for device in devices if override.device is None else (override.device,):
                old = paces.get((node, device), Pace(usual))
                paces[node, device] = Pace(
                    old.speed if override.speed is None else override.speed * usual,
                    old.jitter if override.jitter is None else override.jitter,
                    old.straggler if override.straggler is None else override.straggler,
                )
    return paces
