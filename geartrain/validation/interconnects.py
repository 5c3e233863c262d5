"""Five machines and how their devices are joined: how many rings of links there are, and what training makes of them.

    bus bandwidth, devices on a switch    the rate of a device's links to it
    bus bandwidth, links between pairs    rings that share no link, each way * rate of a link;  2 devices: links * rate
                                          where there is no ring: what the host carries
    several nodes                         no more than a node's wire

A ring goes through every device once; as links are full duplex, it is one each way. All of it is of links alone:
`REACHED` of it is what libraries reach.

Source: Ren, Yoo, Hoisie, 2019, arXiv 1905.08764, for machines and kinds of links; that 25 GB/s a link, which
devices of a P3 and an AC922 are linked, and the rate between its sockets are recalled; 8 GB/s each way for a device of
eight that share PCI Express is chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, permutations
from typing import Any

from geartrain.cluster import Cluster, Placement
from geartrain.cost.compute import ROOFLINE, step_times
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.models import get_workload
from geartrain.validation.quantities import Setting, load_table, step_of

Pair = tuple[int, int]

REACHED = 0.85
"""Share of what links carry that a collective reaches; chosen, as the paper's values were not seen."""

_LATENCY = "5 us"
_PICTURE = 3 * 224 * 224 * 4
_LINK = 25e9
_CUBE_MESH: Mapping[Pair, int] = {
    **{(0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2},
    **{(4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2},
    **{(0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1},
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A node.

    Attributes:
        devices: how many.
        device: kind of them, a key of `_DEVICES`.
        switch: bytes per second of a device to a switch that joins all; 0: there is none.
        links: how many links join a pair of devices.
        host: bytes per second of a ring through the host.
        wire: bytes per second of the node to others, each way; 0: it has none.
    """

    devices: int
    device: str = "v100"
    switch: float = 0.0
    links: Mapping[Pair, int] = field(default_factory=dict)
    host: float = 8e9
    wire: float = 0.0


MACHINES: Mapping[str, Machine] = {
    "dgx-2": Machine(devices=16, switch=6 * _LINK),
    "p3": Machine(devices=8, links=_CUBE_MESH, wire=25e9 / 8),
    "p3dn": Machine(devices=8, links=_CUBE_MESH, wire=100e9 / 8),
    "ac922": Machine(devices=4, links={(0, 1): 3, (2, 3): 3}, host=64e9),
    "ts4": Machine(devices=8, device="2080ti"),
}

_DEVICES: Mapping[str, Mapping[str, Any]] = {
    "v100": {"name": "V100", "flops": {"fp32": "15.7 TFLOP/s", "fp16": "125 TFLOP/s"}, "memory_rate": "900 GB/s"},
    "2080ti": {"name": "RTX-2080-Ti", "flops": {"fp32": "13.4 TFLOP/s"}, "memory_rate": "616 GB/s"},
}

_PRICES = {"v100": 10_000.0, "2080ti": 1_300.0}
"""USD of a device in 2019, by the first author's guide to servers."""


def machine(name: str) -> Machine:
    """One of the five; UnknownName otherwise."""
    if name not in MACHINES:
        raise UnknownName("machine", name, MACHINES)
    return MACHINES[name]


@lru_cache
def _rings(links: tuple[tuple[Pair, int], ...], members: tuple[int, ...]) -> int:
    """The most rings through all members that share no link."""
    count = dict(links)
    first, *others = members
    cycles = []
    for order in permutations(others):
        if order[0] < order[-1]:  # each ring once, not once each way round
            stops = (first, *order, first)
            steps = [_pair(a, b) for a, b in pairwise(stops)]
            if all(count.get(step) for step in steps):
                cycles.append(steps)
    return _most(cycles, count)


def _pair(a: int, b: int) -> Pair:
    return (a, b) if a < b else (b, a)


def _most(cycles: Sequence[Sequence[Pair]], left: Mapping[Pair, int]) -> int:
    """As many of the cycles as links allow, a cycle as often as it can be had."""
    best = 0
    for index, steps in enumerate(cycles):
        if all(left.get(step, 0) for step in steps):
            rest = {pair: number - steps.count(pair) for pair, number in left.items()}
            best = max(best, 1 + _most(cycles[index:], rest))
    return best


def bus_bandwidth(
    *, machine_name: str, ranks: int, members: Sequence[int] | None = None, reached: float = 1.0
) -> float:
    """Bytes per second of a large collective; for an all-reduce 2 (n - 1) / n * size / time.

    Args:
        ranks: devices, node by node.
        members: which devices of the node; the first ones unless given.
        reached: share of what links carry.
    """
    one = machine(machine_name)
    chosen = tuple(range(ranks) if members is None else members)
    if ranks < 2 or len(chosen) != ranks:
        raise ConfigurationError(f"a collective has two members or more, not {ranks} of {len(chosen)} devices")
    if ranks > one.devices:
        if not one.wire or ranks % one.devices:
            raise ConfigurationError(f"{ranks} devices are not whole nodes of a {machine_name} that are joined")
        return reached * min(_within(one, tuple(range(one.devices))), one.wire)
    return reached * _within(one, chosen)


def _within(one: Machine, members: tuple[int, ...]) -> float:
    if one.switch:
        return one.switch
    if len(members) == 2:
        links = one.links.get(_pair(*members), 0)
        return links * _LINK if links else one.host
    rings = _rings(tuple(one.links.items()), members)
    return 2 * rings * _LINK if rings else one.host


def _cluster(machine_name: str, ranks: int) -> Cluster:
    """Devices round a switch, each with a wire of the machine's bus bandwidth: what a ring over its links comes to."""
    one = machine(machine_name)
    rate = bus_bandwidth(machine_name=machine_name, ranks=max(ranks, 2), reached=REACHED)
    return load_table(
        {
            "base": "ethernet-10g",
            "nodes": [{"device": dict(_DEVICES[one.device])}],
            "topology": {"wire": {"rate": f"{rate} B/s", "latency": _LATENCY}},
        }
    )


def _setting(machine_name: str, ranks: int, workload: str, samples: int) -> Setting:
    strategy = "synchronous" if ranks > 1 else "single"
    return Setting(
        strategy=strategy,
        cluster=_cluster(machine_name, ranks),
        workload=workload,
        ranks=ranks,
        batch=samples * ranks,
    )


def throughput(*, machine_name: str, ranks: int, workload: str, samples: int) -> float:
    """Samples per second, data parallel with a process for each device.

    Args:
        samples: of a device.
    """
    return samples * ranks / step_of(_setting(machine_name, ranks, workload, samples)).time


def efficiency(*, machine_name: str, ranks: int, workload: str, samples: int) -> float:
    """Samples per second and device over those of one device alone."""
    together, alone = (
        throughput(machine_name=machine_name, ranks=n, workload=workload, samples=samples) for n in (ranks, 1)
    )
    return together / ranks / alone


def efficiency_ratio(*, a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Efficiency of `a` over that of `b`."""
    return efficiency(**a) / efficiency(**b)


def throughput_ratio(*, a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Samples per second of `a` over those of `b`."""
    return throughput(**a) / throughput(**b)


def throughput_for_money(*, workload: str, samples: int, a: str, b: str) -> float:
    """Samples per second and USD of one device of machine `a` over those of machine `b`."""
    rates = [throughput(machine_name=name, ranks=1, workload=workload, samples=samples) for name in (a, b)]
    costs = [_PRICES[machine(name).device] for name in (a, b)]
    return rates[0] / costs[0] / (rates[1] / costs[1])


def one_process_step(*, machine_name: str, ranks: int, workload: str, samples: int) -> float:
    """Seconds of a step where one process drives all devices and nothing overlaps.

        inputs handed out, broadcast of all parameters, forward and backward, reduction of all gradients, update

    All of it goes through the links of device 0, which alone updates: the other devices' inputs, pictures of 224 x 224,
    and the parameters twice.
    """
    rate = bus_bandwidth(machine_name=machine_name, ranks=ranks, reached=REACHED)
    shape = get_workload(workload)
    device = Placement(_cluster(machine_name, ranks), 1).device(0)
    times = step_times(shape, device, samples, ROOFLINE)
    moved = (ranks - 1) * samples * _PICTURE + 2 * shape.gradient_bytes
    return moved / rate + sum(times.forward) + sum(times.backward) + times.update


def processes_gain(*, machine_name: str, ranks: int, workload: str, samples: int) -> float:
    """Throughput with a process for each device over that with one for all."""
    together = one_process_step(machine_name=machine_name, ranks=ranks, workload=workload, samples=samples)
    return together / step_of(_setting(machine_name, ranks, workload, samples)).time


def processes_gain_ratio(*, machine_name: str, ranks: int, base: int, workload: str, samples: int) -> float:
    """That gain on `ranks` devices over that on `base`."""
    more, fewer = (
        processes_gain(machine_name=machine_name, ranks=n, workload=workload, samples=samples) for n in (ranks, base)
    )
    return more / fewer


def precision_gain_ratio(*, machine_name: str, ranks: int, workload: str, samples: int, base: int) -> float:
    """Throughput in fp16 over that in fp32 with `samples` a device, over the same with `base`."""
    gains = []
    for count in (samples, base):
        fast, slow = (
            throughput(machine_name=machine_name, ranks=ranks, workload=name, samples=count)
            for name in (f"{workload}:dtype=fp16", workload)
        )
        gains.append(fast / slow)
    return gains[0] / gains[1]


def precision_bytes(*, workload: str) -> float:
    """Bytes of all gradients in fp16 over those in fp32."""
    return get_workload(f"{workload}:dtype=fp16").gradient_bytes / get_workload(workload).gradient_bytes
