"""What must hold of CoCoD-SGD (IJCAI 2019, arXiv 1906.12043): its identities, its times, and how it learns."""

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Roofline
from geartrain.cost.terms import Traffic
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from geartrain.strategies.cocod_sgd import proportional
from geartrain.tasks.digits import Digits
from tests.conformance.harness import Steps, sent_per_step
from tests.conformance.tasks import Curve
from tests.strategies.non_iid import SortedDigits, train
from tests.strategies.quadratic import Quadratic, history, plain
from tests.strategies.rounds import BATCH, cluster, round_time, step, waits, workload

UNEQUAL = Quadratic(weights=(1 / 6, 2 / 6, 3 / 6))
EXACT = {"rtol": 1e-13, "atol": 1e-13}


@pytest.mark.parametrize(("period", "task"), [(4, UNEQUAL), (1, UNEQUAL), (3, Quadratic())])
def test_1_a_model_is_the_average_of_up_to_two_periods_ago_and_its_own_steps(period, task):
    run = history(f"cocod_sgd:period={period}", task, 4 * period + 2)
    for t in range(period, 4 * period + 2):
        since = (t // period - 1) * period
        for worker, x in enumerate(run.x):
            own = sum(run.gradient(worker, step) for step in range(since, t))
            torch.testing.assert_close(x[t], run.mean(since) - task.rate * own, **EXACT)


def test_2_the_weighted_mean_follows_sgd_with_no_step_lost():
    run = history("cocod_sgd:period=4", UNEQUAL, 18)
    for t in range(18):
        torch.testing.assert_close(run.mean(t + 1), run.mean(t) - UNEQUAL.rate * run.mean_gradient(t), **EXACT)
    assert all(torch.equal(end, run.end[0]) for end in run.end)
    torch.testing.assert_close(run.end[0], run.mean(18), **EXACT)


def test_3_period_1_averages_a_step_late_and_is_not_synchronous():
    run, synchronous = history("cocod_sgd:period=1", UNEQUAL, 6), history("synchronous", UNEQUAL, 6)
    for t in range(1, 7):
        for worker, x in enumerate(run.x):
            late = run.mean(t - 1) - UNEQUAL.rate * run.gradient(worker, t - 1)
            torch.testing.assert_close(x[t], late, **EXACT)
    assert not torch.allclose(run.x[0][6], synchronous.x[0][6], atol=1e-3)


def test_4_one_worker_is_plain_sgd_to_the_bit():
    task = Quadratic(weights=(1.0,))
    assert all(map(torch.equal, history("cocod_sgd:period=2", task, 9).x[0], plain(task, 9)))


@pytest.mark.parametrize("workers", [2, 4])
def test_5_the_same_data_on_all_workers_is_one_worker(workers):
    task = Quadratic(weights=(1 / workers,) * workers, same=True)
    run = history("cocod_sgd:period=3", task, 10)
    for x in run.x:
        assert all(map(torch.equal, x, plain(task, 10)))


@pytest.mark.parametrize("ratio", [0.5, 3.0, 6.0])
def test_6_a_round_takes_the_longer_of_its_steps_and_the_all_reduce(ratio):
    place = cluster(ratio)
    t_c = step(place)
    assert round_time("cocod_sgd:period=4", place) == pytest.approx(max(4.0, ratio) * t_c, rel=1e-3)
    assert round_time("local_sgd:period=4", place) == pytest.approx((4 + ratio) * t_c, rel=1e-3)
    assert round_time("synchronous:overlap=false", place) == pytest.approx((1 + ratio) * t_c, rel=1e-3)


@pytest.mark.slow
def test_7_alike_data_is_learned_as_by_local_sgd_and_sorted_data_worse_as_the_period_grows():
    """With momentum 0.9 and models up to two periods apart: within 0.1 of a loss that fell from 2.3."""
    _, late = train("cocod_sgd:period=4", Digits())
    _, at_once = train("local_sgd:period=4", Digits())
    assert sum(late[-20:]) / 20 == pytest.approx(sum(at_once[-20:]) / 20, abs=0.1)
    lost = {}
    for period in (4, 16):
        apart = [
            train(f"{name}:period={period}", SortedDigits(), steps=80)[0]["accuracy"]
            for name in ("local_sgd", "cocod_sgd")
        ]
        lost[period] = apart[0] - apart[1]
    assert lost[16] > lost[4] + 0.2


HALF_SPEED = [{"node": 0, "speed": 0.5}]


def test_8_shares_in_proportion_to_speed_leave_nobody_waiting():
    """One of two workers at half speed: the other one waits half of its time, unless it takes twice as much."""
    slow, t_c = cluster(0.5, 2, HALF_SPEED), step(cluster(0.5, 2), 2)
    still = waits("cocod_sgd:period=4", slow, 2)
    # The copies that are merged and sent take a thousandth of a step.
    assert still[0] == 0 and still[1] == pytest.approx((2 - 1) * 4 * t_c - 0.5 * t_c, rel=1e-3)
    equal, dealt = (run(f"cocod_sgd:period=4,sampling={sampling}") for sampling in ("equal", "proportional"))
    assert [log.steps[-1].values["samples"] for log in equal.logs] == [32, 32]
    assert [log.steps[0].values["samples"] for log in dealt.logs] == [32, 32]  # measured in the first period
    samples = [log.steps[-1].values["samples"] for log in dealt.logs]
    assert sum(samples) == 64 and samples[0] < samples[1]


def run(text, steps=12):
    half = load_cluster("ethernet-10g").model_validate(
        {**load_cluster("ethernet-10g").model_dump(), "overrides": {"nodes": HALF_SPEED}}
    )
    training = Training(strategy=parse(text), task=Digits(), steps=steps, batch=64)
    return SimulatedEngine(Roofline()).run(training, half, workers=2)


def test_proportional_shares_by_largest_remainder():
    assert proportional(64, [1.0, 2.0]) == [21, 43]
    assert proportional(10, [1.0, 1.0, 1.0]) == [4, 3, 3]
    assert proportional(4, [1e-9, 1.0, 1e-9]) == [1, 2, 1]  # nobody is left without


def test_proportional_shares_go_on_from_a_saved_state():
    strategy, task = parse("cocod_sgd:period=2,sampling=proportional"), Curve()
    for before in (1, 3):
        whole = simulated(Steps(strategy, task, 6, 8))
        saved = simulated(Steps(strategy, task, before, 8))
        rest = simulated(Steps(strategy, task, 6 - before, 8, tuple(result["state"] for result in saved)))
        for one, two, full in zip(saved, rest, whole, strict=True):
            assert one["losses"] + two["losses"] == full["losses"]
            assert all(map(torch.equal, two["weights"], full["weights"]))


def simulated(main):
    return SimulatedEngine(Roofline()).run(main, load_cluster("ethernet-10g"), workers=2).results


def test_proportional_shares_cost_a_gather_once():
    def sent(sampling):
        main = Steps(parse(f"cocod_sgd:period=2,sampling={sampling}"), Curve(), 6, 8)
        return SimulatedEngine(Roofline()).run(main, load_cluster("ethernet-10g"), workers=2)

    dealt, equal = sent("proportional"), sent("equal")
    assert [op.size for op in dealt.logs[0].ops if op.kind == "all_gather"] == [32]
    # 44 parameters, one message to the other worker, every second step.
    assert sent_per_step(dealt, 6, 2) == sent_per_step(equal, 6, 2) == [Traffic(nbytes=4 * 44 / 2, messages=1 / 2)] * 2


def test_proportional_shares_are_refused_where_they_cannot_be():
    strategy = parse("cocod_sgd:sampling=proportional")
    with pytest.raises(StrategyError, match="a loop takes its own"):
        strategy.attach(None, None)
    with pytest.raises(StrategyError, match="shapes alone have none"):
        SimulatedEngine().run(Steps(strategy, Curve(), 1, 8), load_cluster("ethernet-10g"), workers=2, meta=True)


def test_the_closed_form_of_proportional_shares_is_that_of_equal_ends():
    place = Placement(cluster(0.5, 2, HALF_SPEED), 2)
    equal, dealt = (
        parse(f"cocod_sgd:sampling={sampling}").cost(workload(), place, BATCH) for sampling in ("equal", "proportional")
    )
    # 64 samples at speeds 1 and 2: 21 and 43 in place of 32 and 32; the slower one decides, at half speed.
    assert dealt.compute / equal.compute == pytest.approx(43 / 64, rel=0.05)
