"""Trust, rank correlation and bars, by numbers that can be done in one's head."""

import math

import pytest

from geartrain.validation.cells import Outcome
from geartrain.validation.grid import Bars, Trust
from geartrain.validation.verdict import judge, kendall, swapped, tau_of, why_not
from tests.validation.outcomes import case, outcome, step

FOUR = ("synchronous", "parameter_server", "peer_to_peer", "peer_to_peer:kind=broadcast")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, None),
        ({"bandwidth_term": 0.05}, None),
        ({"bandwidth_term": 0.049}, "host-bound: bytes take 4.9 times a collective of 4-byte messages"),
        ({"host_busy": 0.79}, None),
        ({"host_busy": 0.8}, "host-bound: host busy 80%"),
        ({"host_busy": None}, "host-bound: host busy unknown"),
        (
            {"bandwidth_term": 0.01, "host_busy": 0.9},
            "host-bound: bytes take 1.0 times a collective of 4-byte messages, host busy 90%",
        ),
        ({"small_collective": None}, "host-bound: unknown network"),
        ({"failed": "a rank was lost"}, "failed"),
    ],
)
def test_a_cell_is_believed_if_it_measures_the_wires_and_not_the_host(changes, says):
    assert why_not(outcome(**changes), Trust()) == says


def test_a_real_cell_has_no_wires_to_judge_it_by():
    real = outcome(on=case(engine="real"), bandwidth_term=None, small_collective=None, host_busy=None)
    assert why_not(real, Trust()) is None


@pytest.mark.parametrize(
    ("xs", "ys", "tau"),
    [
        ((1, 2, 3, 4), (10, 20, 30, 40), 1.0),
        ((1, 2, 3, 4), (40, 30, 20, 10), -1.0),
        ((1, 2, 3, 4), (10, 30, 20, 40), 4 / 6),  # five pairs agree, one does not
        ((1, 2, 3), (10, 10, 20), 2 / math.sqrt(3 * 2)),  # two pairs agree, one is tied in y
        ((1, 1), (1, 2), None),
        ((1,), (2,), None),
    ],
)
def test_kendall_is_what_it_is_by_hand(xs, ys, tau):
    assert kendall(xs, ys) == (tau if tau is None else pytest.approx(tau))


def test_strategies_that_are_as_fast_may_change_places():
    assert swapped([1.00, 1.02, 2.0], [1.1, 1.0, 1.05], tie=0.03) == [(0, 2)]
    assert swapped([1.00, 1.02, 2.0], [1.1, 1.0, 1.05], tie=0.01) == [(0, 1), (0, 2)]


def test_errors_are_shares_of_the_measured_step():
    one = Outcome(case=case(), simulated=step(1.1, 0.6, 0.3, 0.2), measured=step(1.0, 0.5, 0.25, 0.25))
    assert one.errors == pytest.approx({"step_time": 0.1, "compute": 0.1, "exposed_communication": 0.05, "wait": -0.05})
    assert Outcome(case=case(), simulated=step(1.0)).errors == {}


def judged(*outcomes, **bars):
    return {bar.what.split(",")[0]: (bar.found, bar.met) for bar in judge(outcomes, Trust(), Bars(**bars))}


def cells(*times, **changes):
    """One cell for each (simulated, measured), each of another strategy."""
    return [outcome(*pair, on=case(text), **changes) for text, pair in zip(FOUR, times, strict=False)]


def test_bars_hold_for_cells_that_are_believed():
    good = cells((1.02, 1.0), (2.08, 2.0), (3.3, 3.0))
    bound = outcome(9.0, 4.0, on=case(FOUR[3]), host_busy=0.95)
    assert judged(*good, bound) == {
        "share of trustworthy cells": (0.75, True),
        "median step-time error": (pytest.approx(0.04), True),
        "worst step-time error": (pytest.approx(0.1), True),
        "strategies in another order": (0, True),
        "cells that failed": (0, True),
    }
    assert tau_of([*good, bound]) == 1.0


def test_bars_are_missed():
    found = judged(*cells((1.3, 1.0), (1.2, 1.1), (3.0, 3.0)), outcome(on=case(FOUR[3]), failed="lost"))
    assert found["median step-time error"] == (pytest.approx(1 / 11), False)
    assert found["worst step-time error"] == (pytest.approx(0.3), False)
    assert found["strategies in another order"] == (1, False)
    assert found["cells that failed"] == (1, False)


def test_nothing_believed_is_nothing_reached():
    found = judged(*cells((1.0, 1.0), (2.0, 2.0), host_busy=0.9))
    assert [met for _, met in found.values()] == [False, False, False, False, True]
    assert found["median step-time error"][0] is None and found["strategies in another order"][0] is None


def test_the_worst_case_and_what_changed_places_are_named():
    told = [str(bar) for bar in judge(cells((1.3, 1.0), (1.2, 1.1)), Trust(), Bars())]
    assert (
        told[2]
        == "g: worst step-time error, at most 0.12: 0.3 (g: synchronous, digits, 2 workers, ethernet-1g)   MISSED"
    )
    assert told[3].endswith("1 (g: synchronous, digits, 2 workers, ethernet-1g and parameter_server)   MISSED")


def test_grids_that_are_not_judged_have_no_bars():
    assert judge([outcome(9.0, 1.0, on=case(judged=False))], Trust(), Bars()) == []
