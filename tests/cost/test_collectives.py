"""Closed forms of collectives against reference times, against plain message-by-message clocks, and in their limits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geartrain.cost.collective_forms import ALGORITHMS, shares
from geartrain.cost.collectives import CollectivePlan, choose, plan_collective
from geartrain.errors import UnknownName
from geartrain.sim.network import Network

EVERY = [(kind, name) for kind, names in ALGORITHMS.items() for name in names]
ALPHA, RATE = 50e-6, 1.25e9

RESNET, ALEXNET, VGG = 25_557_000 * 4, 61_100_000 * 4, 138_360_000 * 4

# bytes, workers, milliseconds: one parameter server, sharded and broadcasting peers, ring. Derived, not published.
REFERENCE = [
    (RESNET, 2, 327.2, 81.9, 81.8, 81.9),
    (RESNET, 4, 654.4, 123.0, 245.5, 123.0),
    (RESNET, 8, 1308.6, 143.8, 572.8, 143.8),
    (RESNET, 16, 2617.1, 154.8, 1227.5, 154.8),
    (ALEXNET, 8, 3128.4, 342.9, 1369.0, 342.9),
    (VGG, 8, 7084.1, 775.5, 3099.6, 775.5),
    (VGG, 16, 14168.2, 831.7, 6642.0, 831.7),
]


def seconds(kind: str, num_ranks: int, nbytes: int, algorithm: str, alpha: float = ALPHA) -> float:
    return plan_collective(kind, num_ranks, nbytes, algorithm=algorithm).time(alpha, RATE)


def parameter_server(workers: int, nbytes: int, alpha: float = ALPHA) -> float:
    push = seconds("reduce", workers + 1, nbytes, "linear", alpha)
    return push + seconds("broadcast", workers + 1, nbytes, "linear", alpha)


# 0.1 ms covers the rounding of the table and of the parameter counts that it was computed from (five digits).
@pytest.mark.parametrize(("nbytes", "workers", "server", "sharded", "broadcasting", "ring"), REFERENCE)
def test_reference_times(
    nbytes: int, workers: int, server: float, sharded: float, broadcasting: float, ring: float
) -> None:
    off = 1e-4 * server + 0.06
    assert parameter_server(workers, nbytes) * 1e3 == pytest.approx(server, abs=off)
    assert 2 * seconds("all_to_all", workers, nbytes, "pairwise") * 1e3 == pytest.approx(sharded, abs=0.1)
    spread = seconds("all_gather", workers, workers * nbytes, "ring")
    assert spread * 1e3 == pytest.approx(broadcasting, abs=1e-4 * broadcasting + 0.06)
    assert seconds("all_reduce", workers, nbytes, "ring") * 1e3 == pytest.approx(ring, abs=0.1)


@pytest.mark.parametrize("workers", [3, 4, 8, 16, 64])
def test_small_messages_favour_the_server_up_to_the_crossover(workers: int) -> None:
    crossover = RATE * ALPHA * (workers - 2) / (workers - 1 + 1 / workers)
    for factor, server_wins in ((0.99, True), (1.01, False)):
        nbytes = int(crossover * factor)
        assert (parameter_server(workers, nbytes) < seconds("all_reduce", workers, nbytes, "ring")) == server_wins


@pytest.mark.parametrize("nbytes", [0, 4, 40, 1000, 4096])
@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 13])
def test_ring_all_reduce_counts(n: int, nbytes: int) -> None:
    plan = plan_collective("all_reduce", n, nbytes, element=4, algorithm="ring")
    assert sum(plan.sent) == sum(plan.received) == 2 * (n - 1) * nbytes
    assert plan.messages == (2 * (n - 1),) * n
    assert max(plan.sent) - min(plan.sent) <= 8
    gamma = 1e-9
    even = 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * nbytes / RATE + (n - 1) / n * nbytes * gamma
    rounding = (n - 1) * 4 * (2 / RATE + gamma)
    assert even <= plan.time(ALPHA, RATE, gamma) * (1 + 1e-12) <= (even + rounding) * (1 + 2e-12)


def ring_clock(n: int, parts: tuple[int, ...], first: int, num_steps: int) -> tuple[float, list[int]]:
    """When the last message of a ring is over, and the bytes sent: rank r sends share r + first - step in each step."""
    over, sent = [0.0] * n, [0] * n
    for step in range(num_steps):
        sizes = [parts[(rank + first - step) % n] for rank in range(n)]
        sent = [total + size for total, size in zip(sent, sizes, strict=True)]
        # A send waits for the rank's own last one, and for what it received in the step before.
        over = [max(over[rank], over[rank - 1]) + ALPHA + sizes[rank] / RATE for rank in range(n)]
    return max(over), sent


@given(st.integers(2, 9), st.integers(0, 60))
def test_rings_equal_the_clock_of_their_messages(n: int, num_elements: int) -> None:
    parts = shares(4 * num_elements, n, 4)
    all_reduce = plan_collective("all_reduce", n, 4 * num_elements, element=4, algorithm="ring")
    # The second half starts at share r + 1, which is where n - 1 steps back from share r lead.
    over, sent = ring_clock(n, parts, 0, 2 * (n - 1))
    assert all_reduce.time(ALPHA, RATE) == pytest.approx(over, rel=1e-12)
    assert sum(all_reduce.sent) == sum(sent)
    assert list(all_reduce.sent) == sent
    for kind, first in (("reduce_scatter", -1), ("all_gather", 0)):
        plan = plan_collective(kind, n, 4 * num_elements, element=4)
        over, sent = ring_clock(n, parts, first, n - 1)
        assert plan.time(ALPHA, RATE) == pytest.approx(over, rel=1e-12)
        assert list(plan.sent) == sent


@given(st.integers(2, 9), st.integers(1, 40), st.integers(1, 12))
def test_pipeline_equals_the_clock_of_its_messages(n: int, nbytes: int, segment: int) -> None:
    plan = plan_collective("broadcast", n, nbytes, algorithm="pipeline", segment=segment)
    sizes = [min(segment, nbytes - start) for start in range(0, nbytes, segment)]
    here = [0.0] * len(sizes)  # when each segment is at the rank
    for _ in range(n - 1):
        free, arrivals = 0.0, []
        for ready, size in zip(here, sizes, strict=True):
            free = max(free, ready) + ALPHA + size / RATE
            arrivals.append(free)
        here = arrivals
    assert plan.time(ALPHA, RATE) == pytest.approx(here[-1], rel=1e-12)
    assert plan.messages == (len(sizes),) * (n - 1) + (0,)
    reduce = plan_collective("reduce", n, nbytes, algorithm="pipeline", segment=segment)
    assert reduce.messages == (0,) + (len(sizes),) * (n - 1)
    assert reduce.received == plan.sent


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_powers_of_two(n: int) -> None:
    k, nbytes = int(math.log2(n)), 960 * n
    halving = plan_collective("all_reduce", n, nbytes, algorithm="halving_doubling")
    assert halving.latency_terms == 2 * k
    assert halving.sent == halving.received == (2 * 960 * (n - 1),) * n
    assert halving.critical_bytes == halving.busiest_bytes
    assert halving.reduced_bytes == 960 * (n - 1)
    doubling = plan_collective("all_reduce", n, nbytes, algorithm="recursive_doubling")
    assert (doubling.latency_terms, doubling.critical_bytes, doubling.sent) == (k, k * nbytes, (k * nbytes,) * n)


def test_other_numbers_of_ranks_fold_first() -> None:
    # Six ranks: 0 and 2 hand over to 1 and 3; of four members each, 100 bytes are sent as 50 + 25 and back.
    plan = plan_collective("all_reduce", 6, 100, algorithm="halving_doubling")
    assert plan.latency_terms == 6
    assert plan.critical_bytes == 100 + 150 + 100
    assert plan.sent == (100, 250, 100, 250, 150, 150)
    assert plan.messages == (1, 5, 1, 5, 4, 4)
    # The busiest rank takes 100 in before and 150 during; the 100 that it gives back are in the other direction.
    assert plan.busiest_bytes == 250
    assert plan.fixed_time(0.0, 1.0) == 100.0


@pytest.mark.parametrize("root", [0, 3])
@pytest.mark.parametrize("n", [2, 5, 8, 11])
def test_trees(n: int, root: int) -> None:
    if root >= n:
        root = n - 1
    depth = (n - 1).bit_length()
    reduce = plan_collective("reduce", n, 30, root=root, algorithm="tree")
    assert (reduce.latency_terms, reduce.critical_bytes, reduce.received[root]) == (depth, 30 * depth, 30 * depth)
    assert sum(reduce.sent) == 30 * (n - 1)
    assert reduce.sent[root] == 0
    broadcast = plan_collective("broadcast", n, 30, root=root, algorithm="tree")
    assert broadcast.sent == reduce.received
    assert broadcast.reduced_bytes == 0
    both = plan_collective("all_reduce", n, 30, algorithm="tree")
    assert both.time(ALPHA, RATE) == pytest.approx(reduce.time(ALPHA, RATE) + broadcast.time(ALPHA, RATE))


@pytest.mark.parametrize("algorithm", ["linear", "tree"])
@pytest.mark.parametrize(("n", "root"), [(2, 1), (5, 0), (7, 3), (8, 7)])
def test_gather_brings_every_share_but_the_own_to_the_root(n: int, root: int, algorithm: str) -> None:
    parts = shares(101, n)
    gather = plan_collective("gather", n, 101, root=root, algorithm=algorithm)
    assert gather.received[root] == 101 - parts[root]
    # What is not passed on is a rank's own share.
    kept = [sent - received for sent, received in zip(gather.sent, gather.received, strict=True)]
    assert all(kept[rank] == parts[rank] for rank in range(n) if rank != root)
    scatter = plan_collective("scatter", n, 101, root=root, algorithm=algorithm)
    assert scatter.sent == gather.received
    assert scatter.latency_terms == gather.latency_terms == (1 if algorithm == "linear" else (n - 1).bit_length())


@pytest.mark.parametrize("n", [2, 3, 8])
def test_all_to_all(n: int) -> None:
    parts = shares(1001, n)
    for algorithm, latency_terms in (("pairwise", n - 1), ("linear", 1)):
        plan = plan_collective("all_to_all", n, 1001, algorithm=algorithm)
        assert plan.latency_terms == latency_terms
        assert plan.messages == (n - 1,) * n
        assert plan.sent == tuple(1001 - part for part in parts)
        assert plan.received == tuple((n - 1) * part for part in parts)
        assert sorted((source, target) for source, target, _ in plan.traffic()) == [
            (source, target) for source in range(n) for target in range(n) if source != target
        ]


def test_barrier_is_latency_only() -> None:
    plan = plan_collective("barrier", 9, 0)
    assert plan.time(1.0, 1.0) == plan.latency_terms == 4
    assert plan.messages == (4,) * 9


# What holds for every algorithm


def star(source: int, target: int) -> tuple[int, int]:
    return 2 * source, 2 * target + 1


@pytest.mark.parametrize("n", [2, 3, 6, 8])
@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_every_plan_adds_up(kind: str, algorithm: str, n: int) -> None:
    plan = plan_collective(kind, n, 1200, element=4, algorithm=algorithm)
    sent, received = [0] * n, [0] * n
    pairs = list(plan.traffic())
    assert len({pair[:2] for pair in pairs}) == len(pairs)
    for source, target, nbytes in pairs:
        assert source != target
        sent[source] += nbytes
        received[target] += nbytes
    assert (tuple(sent), tuple(received)) == (plan.sent, plan.received)
    assert plan.critical_bytes >= plan.busiest_bytes
    assert plan.latency_terms >= 1
    assert all(messages or not nbytes for messages, nbytes in zip(plan.messages, plan.sent, strict=True))


@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_one_rank_sends_nothing(kind: str, algorithm: str) -> None:
    plan = plan_collective(kind, 1, 1200, algorithm=algorithm)
    assert (plan.time(1.0, 1.0, 1.0), plan.sent, plan.messages) == (0.0, (0,), (0,))
    assert list(plan.traffic()) == []


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize(("kind", "algorithm"), EVERY)
def test_as_one_fluid_activity_it_takes_its_closed_form(kind: str, algorithm: str, n: int) -> None:
    plan = plan_collective(kind, n, 12000, element=4, algorithm=algorithm)
    network, ends = Network([RATE] * (2 * n)), []
    network.start(plan.fixed_time(ALPHA, RATE), 1, plan.link_bytes(star), ends.append)
    network.advance(network.next_event())
    assert ends == [pytest.approx(plan.time(ALPHA, RATE), rel=1e-15)]
    assert network.link_bytes[0::2] == list(plan.sent)
    assert network.link_bytes[1::2] == list(plan.received)


# Choice and refusal


def test_choice_goes_by_size() -> None:
    names = [choose("all_reduce", 8, nbytes) for nbytes in (4, 1 << 14, (1 << 14) + 1, 1 << 20, 1 << 26)]
    assert names == ["recursive_doubling"] * 2 + ["halving_doubling"] * 2 + ["ring"]
    assert choose("all_reduce", 8, 4, "ring") == "ring"
    assert [choose("broadcast", 8, nbytes) for nbytes in (4, 1 << 26)] == ["tree", "pipeline"]
    for kind, names_of_kind in ALGORITHMS.items():
        assert choose(kind, 8, 1 << 24) in names_of_kind


@pytest.mark.parametrize(("alpha", "nbytes"), [(50e-6, 1 << 10), (50e-6, 1 << 27)])
def test_choice_is_the_fastest_at_both_ends(alpha: float, nbytes: int) -> None:
    chosen = seconds("all_reduce", 8, nbytes, choose("all_reduce", 8, nbytes))
    assert chosen <= 1.01 * min(seconds("all_reduce", 8, nbytes, name) for name in ALGORITHMS["all_reduce"])


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="did you mean 'all_reduce'"):
        choose("allreduce", 4, 100)
    with pytest.raises(UnknownName, match=r"algorithm of all_gather.*\n.*ring"):
        plan_collective("all_gather", 4, 100, algorithm="tree")


@pytest.mark.parametrize("wrong", [{"num_ranks": 0}, {"root": 4}, {"nbytes": -4}, {"nbytes": 5}, {"segment": 0}])
def test_impossible_calls_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        plan_collective("all_reduce", **{"num_ranks": 4, "nbytes": 8, "element": 4, **wrong}, algorithm="ring")  # type: ignore[arg-type]


def test_shares_differ_by_one_element_at_most() -> None:
    assert shares(40, 4, 4) == (12, 12, 8, 8)
    assert shares(8, 4, 4) == (4, 4, 0, 0)


def test_plans_are_plain_values() -> None:
    plan = plan_collective("all_reduce", 4, 40)
    assert isinstance(plan, CollectivePlan)
    assert plan_collective("all_reduce", 4, 40) is plan
