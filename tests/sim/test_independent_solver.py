"""The network on random topologies against two solvers that share no code with it: exact filling, linear programmes.

    filling        all rates rise together in fractions, with an event loop of its own (`maxmin_reference`)
    programmes     maximise the smallest rate; flows that cannot exceed it are fixed there; again with the others

The first computes the definition's algorithm without rounding; the second never lets rates rise at all, but is the
definition itself: the rates that are largest when sorted from the smallest up.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import geartrain.sim.network as network_module
from geartrain.cluster.overrides import Overrides, WireOverride
from geartrain.cluster.spec import Cluster, Device, Matrix, NodeGroup, Star, TwoLevel, Wire
from geartrain.cluster.topology import Topology, build
from geartrain.cost.collectives import plan_collective
from geartrain.sim.network import Network
from tests.sim.maxmin_reference import Arrival, Loads, certify, completion_times, drive, fair_rates, scaled

DEVICE = Device(name="none", flops={"fp32": 1.0}, memory=1, memory_rate=1.0, source="no device computes here")


def topology_of(kind: Star | TwoLevel | Matrix, num_nodes: int, wires: tuple[WireOverride, ...] = ()) -> Topology:
    count = num_nodes if isinstance(kind, Matrix) else "any"
    group = NodeGroup(count=count, device=DEVICE)
    cluster = Cluster(name="drawn", source="drawn", nodes=(group,), topology=kind, overrides=Overrides(wires=wires))
    return build(cluster, num_nodes)


rates = st.sampled_from([1.0, 2.0, 10.0]) | st.floats(0.5, 100.0)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """A star, a star of unequal wires, two levels with oversubscription, or a matrix."""
    match draw(st.sampled_from(["star", "unequal", "two levels", "matrix"])):
        case "star":
            return topology_of(Star(wire=Wire(rate=draw(rates), latency=0.0)), draw(st.integers(2, 7)))
        case "unequal":
            num_nodes = draw(st.integers(2, 6))
            wires = tuple(
                WireOverride(node=node, direction=way, rate=draw(rates))
                for node in range(num_nodes)
                for way in ("up", "down")
            )
            return topology_of(Star(wire=Wire(rate=1.0, latency=0.0)), num_nodes, wires)
        case "two levels":
            per_leaf, leaves, over = draw(st.integers(1, 3)), draw(st.integers(2, 3)), draw(st.floats(1.0, 6.0))
            wire = Wire(rate=draw(rates), latency=0.0)
            kind = TwoLevel(wire=wire, nodes_per_switch=per_leaf, oversubscription=over)
            return topology_of(kind, per_leaf * leaves)
        case _:
            n = draw(st.integers(2, 4))
            table = [[None if i == j else draw(rates) for j in range(n)] for i in range(n)]
            nothing = [[None if i == j else 0.0 for j in range(n)] for i in range(n)]
            return topology_of(Matrix(rate=table, latency=nothing), n)


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[float], list[Arrival]]:
    """Capacities, and flows with sizes and start times: messages between nodes, and rings over some of the nodes."""
    topology = draw(topologies())
    nodes = st.integers(0, topology.num_nodes - 1)
    arrivals = []
    for _ in range(draw(st.integers(1, 10))):
        time, size = draw(st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 5.0)), draw(st.floats(0.1, 50.0))
        members = draw(st.lists(nodes, min_size=2, max_size=4, unique=True))
        usage = dict.fromkeys(topology.route(members[0], 0, members[1], 0).links, 1.0)
        if len(members) > 2:
            usage = ring(topology, members)
        arrivals.append(Arrival(time, size, usage))
    return [link.capacity for link in topology.links], arrivals


def ring(topology: Topology, members: list[int]) -> dict[int, float]:
    """What a ring of 100 bytes puts on each link: uneven shares, so unequal weights."""
    plan = plan_collective("all_reduce", len(members), 100, algorithm="ring")
    loads = plan.link_bytes(lambda source, target: topology.route(members[source], 0, members[target], 0).links)
    return {link: float(nbytes) for link, nbytes in loads.items()}


def programmed_rates(flows: list[Loads], capacities: list[float]) -> list[float]:
    """Max-min fair rates by linear programmes: the largest smallest rate, then the next smallest, and so on."""
    num_flows = len(flows)
    matrix = np.zeros((len(capacities), num_flows + 1))  # the last column is the smallest rate
    for index, flow in enumerate(flows):
        for link, weight in flow.items():
            matrix[link, index] = float(weight)
    fixed: dict[int, float] = {}
    while len(fixed) < num_flows:
        free = [index for index in range(num_flows) if index not in fixed]
        least = maximum(matrix, capacities, fixed, free, target=num_flows, floor=0.0)
        # Who cannot have more, though all the others have at least the smallest rate?
        stuck = [
            index
            for index in free
            if maximum(matrix, capacities, fixed, free, target=index, floor=least) <= least * (1 + 1e-5)
        ]
        assert stuck, "some flow is held back at the smallest rate"
        fixed.update(dict.fromkeys(stuck, least))
    return [fixed[index] for index in range(num_flows)]


def maximum(
    matrix: np.ndarray, capacities: list[float], fixed: dict[int, float], free: list[int], target: int, floor: float
) -> float:
    """The largest value of one variable (a rate, or the smallest rate) when free flows have at least `floor`."""
    num = matrix.shape[1] - 1
    above = np.zeros((len(free), num + 1))  # smallest rate - rate <= 0
    for row, index in enumerate(free):
        above[row, index], above[row, num] = -1.0, 1.0
    goal = np.zeros(num + 1)
    goal[target] = -1.0
    # A thousandth of a millionth is given away, so that rounding cannot make the programme infeasible.
    bounds = [(fixed[i] * (1 - 1e-9),) * 2 if i in fixed else (floor * (1 - 1e-9), None) for i in range(num)]
    found = linprog(
        goal,
        A_ub=np.vstack([matrix, above]),
        b_ub=np.concatenate([capacities, np.zeros(len(free))]),
        bounds=[*bounds, (0.0, None)],
        method="highs",
    )
    assert found.status == 0, found.message
    return float(-found.fun)


@settings(deadline=None, max_examples=80)
@given(loads())
@pytest.mark.parametrize("small", [0, math.inf])
def test_completions_on_random_topologies_equal_those_of_exact_filling(
    small: float, load: tuple[list[float], list[Arrival]]
) -> None:
    capacities, arrivals = load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_module, "_SMALL", small)
        network = Network(capacities)
        ends = drive(network, arrivals, lambda event: certify(network.flows, capacities))
    assert ends == pytest.approx(completion_times(arrivals, capacities), rel=1e-9, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(loads())
def test_rates_on_random_topologies_equal_those_of_linear_programmes(load: tuple[list[float], list[Arrival]]) -> None:
    capacities, arrivals = load
    network = Network(capacities)
    for arrival in arrivals:
        network.start(0.0, 1.0, arrival.usage, lambda now: None)
    network.next_event()
    weights = [scaled(arrival.usage) for arrival in arrivals]
    programmed = programmed_rates(weights, capacities)
    # A solver of linear programmes keeps its constraints to about 1e-7, absolute, and rates are a few hundredths here.
    assert [flow.rate for flow in network.flows] == pytest.approx(programmed, rel=1e-4)
    assert [float(rate) for rate in fair_rates(weights, capacities)] == pytest.approx(programmed, rel=1e-4)


def test_the_solvers_know_a_case_that_can_be_written_down() -> None:
    # Links of 10 and 30: one flow on both, one on each.
    flows = [scaled(usage) for usage in ({0: 1.0, 1: 1.0}, {0: 1.0}, {1: 1.0})]
    assert fair_rates(flows, [10.0, 30.0]) == [5, 5, 25]
    assert programmed_rates(flows, [10.0, 30.0]) == pytest.approx([5.0, 5.0, 25.0])
