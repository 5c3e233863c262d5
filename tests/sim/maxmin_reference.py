"""Max-min fairness the slow way, to judge the network by: exact filling, a certificate, a simulation from scratch."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from geartrain.sim.network import Flow, Network

Loads = Mapping[int, Fraction]


@dataclass(frozen=True)
class Arrival:
    """A flow to come: seconds, bytes, and link id -> bytes per byte."""

    time: float
    size: float
    usage: Mapping[int, float]


def scaled(usage: Mapping[int, float]) -> dict[int, Fraction]:
    """Weights as exact fractions, the largest made 1."""
    weights = {link: Fraction(weight) for link, weight in usage.items()}
    largest = max(weights.values())
    return {link: weight / largest for link, weight in weights.items()}


def fair_rates(flows: Sequence[Loads], capacities: Sequence[float]) -> list[Fraction]:
    """All rates rise together; a flow stops when one of its links is full. Fractions: no rounding at all."""
    rates = [Fraction(0)] * len(flows)
    growing = set(range(len(flows)))
    left = [Fraction(capacity) for capacity in capacities]
    while growing:
        demand = [Fraction(0)] * len(capacities)
        for index in growing:
            for link, weight in flows[index].items():
                demand[link] += weight
        rise = min(room / need for room, need in zip(left, demand, strict=True) if need)
        left = [room - need * rise for room, need in zip(left, demand, strict=True)]
        for index in growing:
            rates[index] += rise
        growing = {index for index in growing if all(left[link] for link in flows[index])}
    return rates


def completion_times(arrivals: Sequence[Arrival], capacities: Sequence[float]) -> list[float]:
    """When each of the flows ends, recomputing everything at every event, in fractions."""
    ends = [0.0] * len(arrivals)
    waiting = sorted(range(len(arrivals)), key=lambda index: arrivals[index].time)
    weights = [scaled(arrival.usage) for arrival in arrivals]
    left: dict[int, Fraction] = {}
    now = Fraction(0)
    while waiting or left:
        active = list(left)
        rates = dict(zip(active, fair_rates([weights[index] for index in active], capacities), strict=True))
        times = [now + left[index] / rates[index] for index in active]
        times += [Fraction(arrivals[index].time) for index in waiting[:1]]
        then = min(times)
        for index in active:
            left[index] -= rates[index] * (then - now)
            if not left[index]:
                del left[index]
                ends[index] = float(then)
        now = then
        while waiting and Fraction(arrivals[waiting[0]].time) == now:
            index = waiting.pop(0)
            left[index] = Fraction(arrivals[index].size) * max(map(Fraction, arrivals[index].usage.values()))
    return ends


def certify(flows: Sequence[Flow], capacities: Sequence[float], tolerance: float = 1e-9) -> None:
    """Checks the definition: no link is overfull, and each flow has a full link on which no flow is faster."""
    used = [0.0] * len(capacities)
    fastest = [0.0] * len(capacities)
    for flow in flows:
        for link, weight in zip(flow.links, flow.weights, strict=True):
            used[link] += weight * flow.rate
            fastest[link] = max(fastest[link], flow.rate)
    for link, capacity in enumerate(capacities):
        assert used[link] <= capacity * (1 + tolerance), f"link {link} carries {used[link]:g} of {capacity:g} bytes/s"
    for flow in flows:
        assert any(
            used[link] >= capacities[link] * (1 - tolerance) and flow.rate >= fastest[link] * (1 - tolerance)
            for link in flow.links
        ), f"{flow} could be faster at nobody's cost"


def drive(network: Network, arrivals: Sequence[Arrival], inspect: Callable[[int], None] | None = None) -> list[float]:
    """Runs a network through the arrivals; when each flow ended. `inspect` is called with the number of each event."""
    ends = [float("nan")] * len(arrivals)
    order = sorted(range(len(arrivals)), key=lambda index: (arrivals[index].time, index))
    position = num_events = 0
    while True:
        due = network.next_event()
        if inspect is not None:
            inspect(num_events)
        num_events += 1
        if position < len(order) and arrivals[order[position]].time <= due:
            index = order[position]
            position += 1
            network.start(arrivals[index].time, arrivals[index].size, arrivals[index].usage, _note(ends, index))
        elif due < float("inf"):
            network.advance(due)
        else:
            return ends


def _note(ends: list[float], index: int) -> Callable[[float], None]:
    def done(now: float) -> None:
        ends[index] = now

    return done


def two_level_tree(num_leaves: int, nodes_per_leaf: int, rate: float, core_rate: float) -> list[float]:
    """Capacities: up and down of each node, then up and down of each leaf switch."""
    return [rate] * (2 * num_leaves * nodes_per_leaf) + [core_rate] * (2 * num_leaves)


def tree_route(source: int, target: int, num_leaves: int, nodes_per_leaf: int) -> list[int]:
    """The links from one node of the two-level tree to another."""
    core = 2 * num_leaves * nodes_per_leaf
    source_leaf, target_leaf = source // nodes_per_leaf, target // nodes_per_leaf
    between = [] if source_leaf == target_leaf else [core + 2 * source_leaf, core + 2 * target_leaf + 1]
    return [2 * source, *between, 2 * target + 1]


def tree_load(num_flows: int, seed: int) -> tuple[list[float], list[Arrival]]:
    """Flows between random nodes of a tree of 64 switches of 16 nodes, 4:1 oversubscribed; all overlap in time."""
    rng = random.Random(seed)
    capacities = two_level_tree(64, 16, rate=1.25e9, core_rate=5e9)
    arrivals = []
    for _ in range(num_flows):
        source, target = rng.sample(range(1024), 2)
        usage = dict.fromkeys(tree_route(source, target, 64, 16), 1.0)
        arrivals.append(Arrival(rng.uniform(0.0, 0.1), rng.uniform(2e8, 4e8), usage))
    return capacities, arrivals
