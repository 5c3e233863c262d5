"""What must hold of DaSGD (arXiv 2006.00441): its limits, its algebra, its times, and how it learns."""

import pytest
import torch

from geartrain.cluster.placement import Placement
from geartrain.strategies import parse
from geartrain.tasks.digits import Digits
from tests.strategies.non_iid import train
from tests.strategies.quadratic import Quadratic, history, plain
from tests.strategies.rounds import BATCH, cluster, round_time, step, workload

THREE = Quadratic(weights=(1 / 4, 1 / 4, 1 / 2))
EXACT = {"rtol": 1e-13, "atol": 1e-13}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_1_averaging_every_step_is_synchronous_sgd(momentum):
    task = Quadratic(weights=THREE.weights, momentum=momentum, decay=0.01)
    ours, synchronous = history("dasgd:period=1,delay=0,kept=0.0", task, 8), history("synchronous", task, 8)
    for mine, other in zip(ours.x, synchronous.x, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)


def test_2_without_delay_and_share_it_is_local_sgd_to_the_bit():
    ours, local = history("dasgd:period=3,delay=0,kept=0.0", THREE, 8), history("local_sgd:period=3", THREE, 8)
    assert all(torch.equal(a, b) for a, b in zip(sum(ours.x, ours.end), sum(local.x, local.end), strict=True))


def test_3_a_share_of_1_is_workers_that_train_apart():
    run = history("dasgd:period=2,kept=1.0", THREE, 7)
    for worker, x in enumerate(run.x):
        assert all(map(torch.equal, x, plain(THREE, 7, worker)))


@pytest.mark.parametrize("kept", [0.0, 0.25, 0.5])
@pytest.mark.parametrize("delay", [0, 1, 3])
def test_4_one_worker_slows_down_by_a_factor_that_can_be_computed(kept, delay):
    task, period = Quadratic(weights=(1.0,), spread=0.0), 4
    x = history(f"dasgd:period={period},delay={delay},kept={kept}", task, 4 * period).x[0]
    if delay == 0:
        torch.testing.assert_close(x, plain(task, 4 * period), **EXACT)
    slow = 1 - task.rate
    factor = (kept * slow**delay + 1 - kept) * slow ** (period - delay)
    for begin in (period, 2 * period):
        torch.testing.assert_close(x[begin + period], factor * x[begin], **EXACT)


def blended(text, period, delay):
    """(average that was sent, models before the blend, models after it) of each blend."""
    run = history(text, THREE, 5 * period)
    for sent in range(period, 5 * period - delay + 1, period):
        moment = sent + delay
        before = [x[moment - 1] - THREE.rate * run.gradient(worker, moment - 1) for worker, x in enumerate(run.x)]
        yield run.mean(sent), before, [x[moment] for x in run.x]


def mean(models):
    return sum(p * x for p, x in zip(THREE.weights, models, strict=True))


def test_5_the_mean_after_a_blend():
    found = list(blended("dasgd:period=4,delay=2,kept=0.25", 4, 2))
    assert len(found) == 4
    for average, before, after in found:
        torch.testing.assert_close(mean(after), 0.25 * mean(before) + 0.75 * average, **EXACT)


def test_6_a_blend_shrinks_the_spread_by_the_share_kept():
    for _, before, after in blended("dasgd:period=4,delay=2,kept=0.25", 4, 2):
        spread = [max((x - mean(models)).norm() for x in models) for models in (before, after)]
        torch.testing.assert_close(spread[1], 0.25 * spread[0], **EXACT)


def test_a_displacement_keeps_all_progress_of_the_mean():
    run = history("dasgd:period=4,delay=2,kept=0.25,merge=displacement", THREE, 14)
    for t in range(14):
        torch.testing.assert_close(run.mean(t + 1), run.mean(t) - THREE.rate * run.mean_gradient(t), **EXACT)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_7_time_is_flat_until_the_all_reduce_takes_longer_than_the_delay(delay):
    for ratio in (0.5, 1.0, 1.5, 2.5, 3.0):
        place = cluster(ratio)
        expected = 4 + max(0.0, ratio - delay)
        text = f"dasgd:delay={delay}"
        assert round_time(text, place) == pytest.approx(expected * step(place), rel=1e-3)
        cost = parse(text).cost(workload(), Placement(place, 4), BATCH)
        assert 4 * cost.step_time == pytest.approx(round_time(text, place), rel=1e-9)
        assert 4 * cost.exposed_communication == pytest.approx(max(0.0, ratio - delay) * step(place), abs=1e-9)


def test_8_weak_scaling_is_perfect_while_the_delay_hides_the_all_reduce():
    """A tree, whose time grows with log M: 2 M log2(M) bytes one after another, whatever M."""
    place = cluster(0.5).model_copy(update={"collectives": cluster(0.5).collectives.model_copy(update=TREE)})
    times = {
        name: [
            parse(name).cost(workload(), Placement(place, workers), 16 * workers).step_time for workers in (2, 4, 16)
        ]
        for name in ("dasgd:delay=4", "synchronous:overlap=false")
    }
    assert times["dasgd:delay=4"] == pytest.approx([times["dasgd:delay=4"][0]] * 3)
    first, second, last = times["synchronous:overlap=false"]
    assert last > second > first


TREE = {"all_reduce": "tree"}


def test_9_digits_are_learned_nearly_as_by_local_sgd_and_slower_with_a_longer_delay():
    """Compared by the loss of the averaged model on held-out data, which falls from 2.3."""
    local, late, later = (train(text, Digits())[0]["loss"] for text in ("local_sgd:period=4", "dasgd", "dasgd:delay=3"))
    assert late == pytest.approx(local, abs=0.05)
    assert later > late
