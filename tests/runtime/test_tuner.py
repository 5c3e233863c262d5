"""The tuner by itself, on times without noise: a rule for the step time of a threshold, and steps of a cost model."""

import functools
import math

import pytest

from geartrain.runtime.tuner import Tuner
from geartrain.strategies.dear_cost import fused_step

MEGABYTE = 1e6


def tuned(seconds, **settings):
    """The tuner after all its trials, and how many steps they took."""
    tuner = Tuner(MEGABYTE, 100 * MEGABYTE, 25 * MEGABYTE, **settings)
    steps = 0
    while not tuner.done:
        steps += 1
        assert steps < 1_000
        if tuner.observe(seconds(tuner.value)):
            tuner.use(tuner.proposal())
    return tuner, steps


@functools.cache
def grid(seconds):
    return min(seconds(MEGABYTE * 100 ** (k / 100)) for k in range(101))


def bowl(x):
    return 1.0 + 0.05 * math.log(x / 8e6) ** 2


def latency_and_bytes(x):
    return 0.3 + 2e-9 * x + 5e4 / x


def corner(x):
    return 1.0 + abs(math.log(x / 60e6))


def steps_of(x):
    return 1.0 + 0.01 * math.floor(100e6 / x) + 1e-9 * x


def resnet50(x):
    return fused_step("dear", "resnet50", 253.1, 64, 7.043e-3, 0.964e-9, x)


def bert(x):
    return fused_step("dear", "bert-base", 212.8, 64, 0.806e-3, 0.589e-9, x)


@pytest.mark.parametrize("seconds", [bowl, latency_and_bytes, corner, steps_of, resnet50, bert])
def test_ten_trials_come_within_a_few_per_cent_of_the_best_of_a_grid(seconds):
    tuner, steps = tuned(seconds)
    assert steps == 55  # a window to warm up, and ten trials
    assert seconds(tuner.value) <= 1.03 * grid(seconds)
    assert MEGABYTE <= tuner.value <= 100 * MEGABYTE * (1 + 1e-9)


def test_the_same_times_give_the_same_trials_also_from_a_saved_state():
    first, _ = tuned(resnet50)
    again = Tuner(MEGABYTE, 100 * MEGABYTE, 25 * MEGABYTE)
    while not again.done:
        if again.observe(resnet50(again.value)):
            again.use(again.proposal())
        fresh = Tuner(MEGABYTE, 100 * MEGABYTE, 25 * MEGABYTE)
        fresh.load_state_dict(again.state_dict())
        again = fresh
    assert again.state_dict() == first.state_dict()


def test_neither_the_first_window_nor_the_first_step_of_a_window_counts():
    tuner = Tuner(1.0, 100.0, 25.0, trials=2, window=3)
    answers = [tuner.observe(seconds) for seconds in (9.0, 9.0, 9.0, 9.0, 1.0, 3.0)]
    assert answers == [False] * 5 + [True]
    assert tuner.state_dict()["tried"] == [(25.0, 2.0)]
    tuner.use(50.0)
    assert not tuner.done
    assert [tuner.observe(seconds) for seconds in (0.1, 7.0, 7.0)] == [False, False, True]
    assert tuner.proposal() == 25.0  # the best of those that were tried
    tuner.use(25.0)
    assert tuner.done and not tuner.observe(1.0)


def test_times_that_do_not_depend_on_the_number_are_no_error():
    tuner, _ = tuned(lambda x: 1.0)
    assert tuner.done
