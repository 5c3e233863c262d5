"""The fluid network against closed forms, the definition of max-min fairness, and an exact simulation."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import geartrain.sim.network as network_module
from geartrain.sim.network import Network
from tests.sim.maxmin_reference import (
    Arrival,
    certify,
    completion_times,
    drive,
    fair_rates,
    scaled,
    tree_load,
)


def once(*links: int) -> dict[int, float]:
    return dict.fromkeys(links, 1.0)


@pytest.fixture(params=["plain", "arrays", "either"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every group solved in plain Python, with arrays, or with what its size asks for."""
    if request.param != "either":
        monkeypatch.setattr(network_module, "_SMALL", math.inf if request.param == "plain" else 0)
    return str(request.param)


# Closed forms


@given(st.floats(0, 1e6), st.floats(1e-3, 1e12), st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=4))
def test_flow_alone_takes_exactly_size_over_slowest_link(now: float, size: float, capacities: list[float]) -> None:
    network, ends = Network(capacities), []
    network.start(now, size, range(len(capacities)), ends.append)
    assert network.next_event() == now + size / min(capacities)
    network.advance(network.next_event())
    assert ends == [now + size / min(capacities)]
    assert network.link_bytes == [size] * len(capacities)


def test_crossing_flows_that_share_no_link_do_not_disturb_each_other() -> None:
    arrivals = [Arrival(0.1 * index, 1e6 + index, once(2 * index, 2 * index + 1)) for index in range(50)]
    ends = drive(Network([3e5] * 100), arrivals)
    assert ends == [arrival.time + arrival.size / 3e5 for arrival in arrivals]


@pytest.mark.parametrize("num_flows", [1, 2, 7, 40, 200])
def test_equal_flows_on_one_link_end_together(num_flows: int, solver: str) -> None:
    network = Network([100.0] + [1000.0] * num_flows)
    ends = drive(network, [Arrival(0.0, 300.0, once(0, index + 1)) for index in range(num_flows)])
    assert len(set(ends)) == 1
    assert ends[0] == pytest.approx(3.0 * num_flows, rel=1e-14)
    assert network.link_bytes == [300.0 * num_flows] + [300.0] * num_flows


def test_late_flow_halves_the_rate(solver: str) -> None:
    # 100 bytes alone at 100/s for half a second, then both at 50/s: the first ends at 1.5 s, the second has 50 left.
    assert drive(Network([100.0]), [Arrival(0.0, 100.0, once(0)), Arrival(0.5, 100.0, once(0))]) == [1.5, 2.0]


def test_dumbbell(solver: str) -> None:
    # Two sources of 10 and 100 bytes/s meet on a link of 60: the slow one keeps 10, the fast one gets the other 50.
    network = Network([10.0, 100.0, 60.0])
    flows = [network.start(0.0, 1000.0, [0, 2], lambda now: None), network.start(0.0, 1000.0, [1, 2], lambda now: None)]
    network.next_event()
    assert [flow.rate for flow in flows] == [10.0, 50.0]


def test_long_flow_against_two_short_ones(solver: str) -> None:
    network = Network([10.0, 30.0])
    flows = [network.start(0.0, 100.0, links, lambda now: None) for links in ([0, 1], [0], [1])]
    network.next_event()
    assert [flow.rate for flow in flows] == [5.0, 5.0, 25.0]


def test_weighted_activity_runs_at_the_pace_of_its_tightest_link() -> None:
    # 8, 4 and 2 bytes per byte: the weights are 1, 1/2 and 1/4, and the third link, 16 times slower, holds it back.
    network, ends = Network([16.0, 16.0, 1.0]), []
    network.start(1.0, 1, {0: 8, 1: 4, 2: 2}, ends.append)
    network.advance(network.next_event())
    assert ends == [3.0]
    assert network.link_bytes == [8.0, 4.0, 2.0]


def test_weighted_activity_shares_in_proportion_to_its_weight(solver: str) -> None:
    # On link 1 the activity takes half a byte for each byte of its rate: both rates are 30 / (1 + 1/2).
    network = Network([1000.0, 30.0])
    flows = [network.start(0.0, 8, {0: 1, 1: 0.5}, lambda now: None), network.start(0.0, 8, [1], lambda now: None)]
    network.next_event()
    assert [flow.rate for flow in flows] == [20.0, 20.0]


def test_a_route_that_names_a_link_twice_loads_it_twice() -> None:
    network, ends = Network([10.0, 10.0]), []
    network.start(0.0, 10, [0, 1, 0], ends.append)
    network.advance(network.next_event())
    assert ends == [2.0]
    assert network.link_bytes == [20.0, 10.0]


# Behaviour over time


@pytest.mark.parametrize(("size", "usage"), [(0, [0]), (5, []), (5, {}), (0, {}), (5, {0: 0.0})])
def test_nothing_to_carry_completes_at_once(size: float, usage: list[int]) -> None:
    network, ends = Network([1.0]), []
    network.start(2.0, size, usage, ends.append)
    assert network.next_event() == 2.0
    assert len(network.advance(2.0)) == 1
    assert ends == [2.0]
    assert network.next_event() == math.inf
    assert network.link_bytes == [0.0]


def test_done_may_start_flows_at_the_same_instant(solver: str) -> None:
    network, log = Network([10.0]), []

    def again(now: float) -> None:
        log.append((now, len(network.flows)))
        if len(log) < 4:
            network.start(now, 10, [0], again)

    network.start(0.0, 10, [0], again)
    while (now := network.next_event()) < math.inf:
        network.advance(now)
    assert log == [(1.0, 0), (2.0, 0), (3.0, 0), (4.0, 0)]


def test_ended_flows_come_in_start_order_and_out_of_the_network() -> None:
    network, seen = Network([10.0, 20.0]), []
    flows = [
        network.start(0.0, size, [link], lambda now: seen.append(len(network.flows)))
        for size, link in ((20, 1), (10, 0))
    ]
    assert network.advance(1.0) == flows
    assert seen == [0, 0]


def test_a_flow_that_is_due_is_not_delayed_by_one_that_arrives_now(solver: str) -> None:
    network, ends = Network([3.0]), []
    network.start(0.1, 0.7, [0], ends.append)
    due = network.next_event()
    network.start(due, 30.0, [0], ends.append)
    assert network.next_event() == due
    network.advance(due)
    assert network.next_event() == due + 30.0 / 3.0


def test_advance_before_the_next_event_only_moves_the_clock() -> None:
    network = Network([1.0])
    network.start(0.0, 1.0, [0], lambda now: None)
    assert network.advance(0.5) == []
    with pytest.raises(AssertionError, match="the clock went back"):
        network.start(0.25, 1.0, [0], lambda now: None)
    with pytest.raises(AssertionError, match="a flow was due"):
        network.advance(1.5)


def test_busy_time_counts_overlap_once() -> None:
    network = Network([10.0, 10.0])
    drive(network, [Arrival(0.0, 10, once(0)), Arrival(0.5, 10, once(0)), Arrival(5.0, 10, once(0, 1))])
    assert network.link_busy == [3.0, 1.0]


@pytest.mark.parametrize("capacity", [0.0, -1.0, math.inf, math.nan])
def test_capacity_that_cannot_be_is_refused(capacity: float) -> None:
    with pytest.raises(ValueError, match="the capacity of link 1 is"):
        Network([1.0, capacity])


# Against the slow way

usages = st.dictionaries(
    st.integers(0, 5),
    st.sampled_from([1.0, 1.0, 1.0, 0.25, 0.5, 3.0, 1e-6]) | st.floats(0.01, 10.0),
    min_size=1,
    max_size=4,
)
capacity_lists = st.lists(st.sampled_from([1.0, 2.0, 10.0]) | st.floats(0.5, 100.0), min_size=6, max_size=6)
loads = st.lists(
    st.builds(Arrival, st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.0, 5.0), st.floats(0.1, 50.0), usages),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=150)
@given(capacity_lists, st.lists(usages, min_size=1, max_size=14))
@pytest.mark.parametrize("small", [0, math.inf])
def test_rates_equal_exact_filling(small: float, capacities: list[float], flows: list[dict[int, float]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_module, "_SMALL", small)
        network = Network(capacities)
        for usage in flows:
            network.start(0.0, 1.0, usage, lambda now: None)
        network.next_event()
        exact = fair_rates([scaled(usage) for usage in flows], capacities)
        # Weights down to 1e-7 of the largest: what is left of a link has lost as many digits.
        assert [flow.rate for flow in network.flows] == pytest.approx([float(rate) for rate in exact], rel=1e-8)


@settings(deadline=None, max_examples=100)
@given(capacity_lists, loads)
@pytest.mark.parametrize("small", [0, 8, math.inf])
def test_completions_equal_exact_simulation(small: float, capacities: list[float], arrivals: list[Arrival]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network_module, "_SMALL", small)
        network = Network(capacities)
        ends = drive(network, arrivals, lambda event: certify(network.flows, capacities))
    assert ends == pytest.approx(completion_times(arrivals, capacities), rel=1e-8, abs=1e-8)
    for link in range(6):
        carried = sum(arrival.size * arrival.usage.get(link, 0.0) for arrival in arrivals)
        assert network.link_bytes[link] == pytest.approx(carried, rel=1e-14)


@pytest.mark.slow
def test_tree_of_1024_flows_is_fair_at_every_64th_event() -> None:
    capacities, arrivals = tree_load(1024, seed=1)
    network = Network(capacities)

    def inspect(event: int) -> None:
        if event % 64 == 0:
            certify(network.flows, capacities)
        if event == 500:
            exact = fair_rates([scaled(once(*flow.links)) for flow in network.flows], capacities)
            assert [flow.rate for flow in network.flows] == pytest.approx([float(rate) for rate in exact], rel=1e-11)

    ends = drive(network, arrivals, inspect)
    assert all(end > arrival.time for end, arrival in zip(ends, arrivals, strict=True))
    for link in range(len(capacities)):
        assert network.link_bytes[link] == pytest.approx(sum(a.size for a in arrivals if link in a.usage), rel=1e-14)


def test_same_calls_same_results() -> None:
    capacities, arrivals = tree_load(200, seed=2)
    first, second = Network(capacities), Network(capacities)
    assert drive(first, arrivals) == drive(second, arrivals)
    assert first.link_bytes == second.link_bytes
    assert first.link_busy == second.link_busy


def test_whole_bytes_are_counted_exactly() -> None:
    rng = random.Random(3)
    network, carried = Network([1e3] * 8), [0] * 8
    for _ in range(300):
        usage = {link: rng.randrange(1, 10**9) for link in rng.sample(range(8), 5)}
        for link, nbytes in usage.items():
            carried[link] += nbytes
        network.start(0.0, 1, usage, lambda now: None)
    drive(network, [])
    assert network.link_bytes == carried
