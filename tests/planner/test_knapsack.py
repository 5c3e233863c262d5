"""The integer programme against all choices tried one by one, and against scipy's solver."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from geartrain.planner.knapsack import Choice, choose

CHOICES = st.builds(Choice, st.just("a"), st.integers(0, 20).map(float), st.integers(0, 20))
LAYERS = st.lists(st.lists(CHOICES, min_size=1, max_size=4), min_size=1, max_size=5)


def brute_force(layers, budget, total=sum):
    """(seconds, memory) of the best of all combinations, or None."""
    found = [
        (sum(choice.seconds for choice in way), total(choice.memory for choice in way))
        for way in itertools.product(*layers)
    ]
    return min((pair for pair in found if pair[1] <= budget), default=None)


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.integers(0, 60))
def test_brute_force(layers, budget):
    chosen = choose(layers, budget)
    expected = brute_force(layers, budget)
    assert (chosen and (chosen.seconds, chosen.memory)) == expected
    if chosen:
        assert all(choice in layer for choice, layer in zip(chosen.choices, layers, strict=True))
        assert sum(choice.memory for choice in chosen.choices) == chosen.memory


@settings(max_examples=40, deadline=None)
@given(LAYERS, st.integers(0, 25))
def test_brute_force_where_layers_share_the_bytes(layers, budget):
    chosen = choose(layers, budget, shared=True)
    expected = brute_force(layers, budget, max)
    assert (chosen and chosen.seconds) == (expected and expected[0])
    assert chosen is None or chosen.memory <= budget


def test_scipy_on_a_network_of_fifty_layers():
    layers = [
        [Choice("gemm", 1.0 + k % 7 / 10, 0), Choice("winograd", 0.5 + k % 5 / 9, 10 + k), Choice("fft", 0.4, 50 + k)]
        for k in range(50)
    ]
    budget = 900
    flat = [choice for layer in layers for choice in layer]
    one_each = [[float(index // 3 == k) for index in range(len(flat))] for k in range(50)]
    found = milp(
        [choice.seconds for choice in flat],
        integrality=1,
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint([[choice.memory for choice in flat]], ub=budget),
            LinearConstraint(one_each, lb=1, ub=1),
        ],
        options={"mip_rel_gap": 0.0},
    )
    chosen = choose(layers, budget)
    assert chosen.seconds == pytest.approx(found.fun, rel=1e-9)
    assert chosen.memory <= budget


def test_time_never_rises_with_the_budget():
    layers = [[Choice("slow", 3.0, 0), Choice("fast", 1.0, 7 + k), Choice("faster", 0.5, 19)] for k in range(8)]
    times = [choose(layers, budget).seconds for budget in range(0, 160, 5)]
    assert times == sorted(times, reverse=True)
    assert (times[0], times[-1]) == (24.0, 4.0)


def test_alike_layers_take_no_time():
    layers = [[Choice("keep", 0.0, 10**9 + 17), Choice("recompute", 3.1e-3, 10**7)] for _ in range(200)]
    chosen = choose(layers, 50 * 10**9)
    assert sum(choice.name == "keep" for choice in chosen.choices) == 48  # 48 * 1.000000017e9 + 152 * 1e7 <= 50e9
    assert chosen.seconds == pytest.approx(152 * 3.1e-3)


def test_nothing_fits():
    layers = [[Choice("small", 1.0, 3)], [Choice("large", 1.0, 4), Choice("larger", 0.5, 9)]]
    assert choose(layers, 6) is None
    assert choose(layers, 3, shared=True) is None
    assert choose(layers, 7).memory == 7
    assert choose([], 0).seconds == 0.0
