"""A plan made real: namespaces, bridges, shaped wires, delays; and what went over them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Literal

from pyroute2 import IPRoute

from geartrain.emu import shaping
from geartrain.emu.namespaces import (
    congestion_control,
    die_with_parent,
    enter,
    inside,
    limit_window,
    new_network,
    take_name,
)
from geartrain.emu.plan import CORE, SWITCH_ADDRESS, Edge, Plan, Way
from geartrain.emu.probe import Ping, ping
from geartrain.emu.relay import FASTEST, Direction, Relay, open_tap
from geartrain.errors import ConfigurationError
from geartrain.units import format_rate, format_time

PREFIX_LENGTH = 16
NEGLIGIBLE = 100e-6
"""Seconds. A delay up to this is about what the host's own path takes, and nothing is added to that; chosen."""
_TOO_LONG, _TOO_SHORT, _SLACK = 1.25, 0.9, 200e-6  # what a measured delay may be of the one asked for; chosen

RELAYS: set[int] = set()
"""The relays that this process has started and that still run."""

By = Literal["nothing", "netem", "relay"]


@dataclass(frozen=True)
class NetworkInfo:
    """What a network came to.

    Attributes:
        addresses, interfaces: of each host.
        congestion: what TCP uses.
        delay_by: what makes the delays.
        pings: (from, to, seconds asked for, what an exchange took), one for each different delay.
    """

    addresses: tuple[str, ...]
    interfaces: tuple[str, ...]
    congestion: str
    delay_by: By
    pings: tuple[tuple[str, str, float, Ping], ...]


class Network:
    """Builds a plan at once. Everything is named after `tag`, which no other run has.

    Args:
        plan: what to build.
        tag: six characters.
    """

    def __init__(self, plan: Plan, tag: str) -> None:
        self.plan, self._tag = plan, tag
        self._switch = new_network()
        self._networks = {host.name: self._switch if host.name == CORE else new_network() for host in plan.hosts}
        self._bridges: dict[str, int] = {}
        self._relay: tuple[int, Connection] | None = None
        self._delay_by = self._choose_delay()
        self._ends = [(f"{tag}-{number}a", f"{tag}-{number}b") for number in range(len(plan.edges))]
        try:
            self._build()
            self.info = self._describe()
        except BaseException:
            self.close()
            raise

    def enter(self, host: int) -> None:
        """Move this process to a host; it sees the names of all."""
        hosts = self.plan.hosts
        enter(self._networks[hosts[host].name])
        known = {one.machine: one.address for one in reversed(hosts)} | {one.name: one.address for one in hosts}
        take_name(hosts[host].machine, known)

    def carried(self) -> dict[str, tuple[int, int]]:
        """Link -> (bytes, packets) since it was built, headers included."""
        found: dict[str, tuple[int, int]] = {}
        with inside(self._switch) as core:
            for edge, (_, name) in zip(self.plan.edges, self._ends, strict=True):
                found |= shaping.carried(core, _index(core, name), edge.down)
        for edge, (name, _) in zip(self.plan.edges, self._ends, strict=True):
            with inside(self._network_of(edge)) as route:
                found |= shaping.carried(route, _index(route, name), edge.up)
        return found

    def relay_report(self) -> dict[str, float] | None:
        """What the relay did since it was last asked; None without one."""
        if self._relay is None:
            return None
        self._relay[1].send(("report",))
        report: dict[str, float] = self._relay[1].recv()
        return report

    def descriptors(self) -> set[int]:
        """What holds the network open; a process that shall not hold it closes them."""
        held = {self._switch, *self._networks.values()}
        return held | ({self._relay[1].fileno()} if self._relay else set())

    def close(self) -> None:
        """Let go of it: the kernel takes namespaces away once no process lives in them, and their devices with them."""
        if self._relay is not None:
            pid, control = self._relay
            control.close()
            os.waitpid(pid, 0)
            RELAYS.discard(pid)
            self._relay = None
        for held in {self._switch, *self._networks.values()}:
            os.close(held)
        self._networks = {}

    # --- building ---------------------------------------------------------------------------------------------------

    def _choose_delay(self) -> By:
        if self.plan.longest <= NEGLIGIBLE:
            return "nothing"
        with inside(self._switch) as route:
            if shaping.has_netem(route, _index(route, "lo")):
                return "netem"
        for edge in self.plan.edges:
            for way in (*edge.up, *edge.down):
                if edge.latency > 0 and math.isfinite(way.rate) and way.rate > FASTEST:
                    raise ConfigurationError(
                        f"link {way.link} has a delay and carries {format_rate(way.rate)}; without netem in the kernel "
                        f"a relay makes delays, and it carries {format_rate(FASTEST)} at most.\n"
                        "  load sch_netem, take a slower cluster, or one without delays"
                    )
        return "relay"

    def _network_of(self, edge: Edge) -> int:
        return self._networks.get(edge.end, self._switch)

    def _build(self) -> None:
        with inside(self._switch) as core:
            for number, bridge in enumerate(self.plan.bridges):
                name = f"{self._tag}-br{number}"
                core.link("add", ifname=name, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
                self._bridges[bridge] = _index(core, name)
                core.link("set", index=self._bridges[bridge], state="up")
            if CORE in self._networks:
                core.addr("add", index=self._bridges[CORE], address=SWITCH_ADDRESS, prefixlen=PREFIX_LENGTH)
        taps = [tap for edge, names in zip(self.plan.edges, self._ends, strict=True) for tap in self._join(edge, names)]
        if taps:
            self._start_relay(taps)
        self._limit_windows()

    def _limit_windows(self) -> None:
        for host in self.plan.hosts:
            rate = self.plan.rate_into(host.name)
            if math.isfinite(rate):
                with inside(self._networks[host.name]):
                    limit_window(shaping.window(rate, self.plan.longest))

    def _join(self, edge: Edge, names: tuple[str, str]) -> list[tuple[Edge, int, int]]:
        """Lay one wire; with a delay by relay, hand back its two taps."""
        network, taps = self._network_of(edge), []
        if self._delay_by == "relay" and edge.latency > 0:
            taps.append((edge, _tap(network, names[0]), _tap(self._switch, names[1])))
        else:
            with inside(self._switch) as core:
                core.link("add", ifname=names[1], kind="veth", peer={"ifname": names[0], "net_ns_fd": network})
        with inside(self._switch) as core:
            self._set_up(core, names[1], edge, edge.down, master=self._bridges[edge.bridge])
        with inside(network) as route:
            if edge.end in self._bridges and edge.end not in self._networks:
                self._set_up(route, names[0], edge, edge.up, master=self._bridges[edge.end])
            else:
                self._address(route, self._set_up(route, names[0], edge, edge.up), edge)
        return taps

    def _set_up(self, route: IPRoute, name: str, edge: Edge, ways: tuple[Way, ...], **more: Any) -> int:
        device = _index(route, name)
        piece = max(shaping.piece(way.rate, edge.mtu) for way in ways)
        route.link("set", index=device, mtu=edge.mtu, txqlen=shaping.QUEUE_PIECES, gso_max_size=piece)
        route.link("set", index=device, state="up", **more)
        shaping.shape(route, device, ways, edge.mtu)
        if self._delay_by == "netem":
            shaping.delay_by_kernel(route, device, ways)
        return device

    def _address(self, route: IPRoute, device: int, edge: Edge) -> None:
        address = next(host.address for host in self.plan.hosts if host.name == edge.end)
        if not edge.sisters:
            route.addr("add", index=device, address=address, prefixlen=PREFIX_LENGTH)
        for sister in edge.sisters:
            route.route("add", dst=f"{sister}/32", oif=device, scope="link", prefsrc=address)

    # --- delay ------------------------------------------------------------------------------------------------------

    def _start_relay(self, taps: list[tuple[Edge, int, int]]) -> None:
        directions = [d for _, end, bridge in taps for d in (Direction(end, bridge), Direction(bridge, end))]
        here, there = Pipe()
        station = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(station)
                # It must hold no network but by its taps, and nobody's channel.
                _close_all_but({0, 1, 2, there.fileno(), *(tap for _, *ends in taps for tap in ends)})
                Relay(directions, there).run()
            finally:
                os._exit(0)
        there.close()
        for _, end, bridge in taps:
            os.close(end)
            os.close(bridge)
        RELAYS.add(pid)
        self._relay = pid, here
        spared = self._crossing()
        here.send(("hold", [hold for edge, *_ in taps for hold in _holds(edge, spared)]))
        here.recv()

    def _crossing(self) -> float:
        """Seconds that a frame takes through the relay, and all else on half of a route, when it is not held."""
        a, b, _ = min(self.plan.latencies, key=lambda one: one[2] if one[2] > 0 else float("inf"))
        return self._ping(a, b).least / 2

    def _ping(self, a: int, b: int) -> Ping:
        hosts = self.plan.hosts
        networks = self._networks[hosts[a].name], self._networks[hosts[b].name]
        return ping(*networks, hosts[b].address)

    def _describe(self) -> NetworkInfo:
        hosts = self.plan.hosts
        pings = tuple((hosts[a].name, hosts[b].name, asked, self._ping(a, b)) for a, b, asked in self.plan.latencies)
        if self._delay_by != "nothing":
            for one in pings:
                _check(*one)
        with inside(self._switch):
            congestion = congestion_control()
        return NetworkInfo(
            tuple(host.address for host in hosts), tuple(self._interfaces()), congestion, self._delay_by, pings
        )

    def _interfaces(self) -> Iterator[str]:
        for host in self.plan.hosts:
            outward = [
                name
                for edge, (name, _) in zip(self.plan.edges, self._ends, strict=True)
                if edge.end == host.name and not edge.sisters
            ]
            yield f"{self._tag}-br{self.plan.bridges.index(CORE)}" if host.name == CORE else outward[0]


def _holds(edge: Edge, spared: float) -> list[tuple[float, dict[int, float]]]:
    """(seconds, seconds by node) for both directions; `spared` is what each crossing takes anyhow."""
    held = []
    for ways in (edge.up, edge.down):
        # Where one end alone delays, as in a matrix, the crossing at the other end is spared here, too.
        times = 2 if ways[0].nodes else 1
        ways = tuple(replace(way, latency=max(0.0, way.latency - times * spared)) for way in ways)
        nodes = {node: way.latency for way in ways for node in way.nodes}
        held.append((0.0 if nodes else ways[0].latency, nodes))
    return held


def _check(source: str, target: str, asked: float, got: Ping) -> None:
    if asked > NEGLIGIBLE and not asked * _TOO_SHORT - _SLACK <= got.least <= asked * _TOO_LONG + _SLACK:
        raise ConfigurationError(
            f"from {source} to {target} a message shall take {format_time(asked)}, but the quickest of "
            f"{got.num} took {format_time(got.least)}; the delay cannot be honoured on this host now.\n"
            "  try again when the host is less busy, or take a cluster without delays"
        )


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _tap(network: int, name: str) -> int:
    with inside(network):
        return open_tap(name)


def _index(route: IPRoute, name: str) -> int:
    found: list[int] = route.link_lookup(ifname=name)
    return found[0]
