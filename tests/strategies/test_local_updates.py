"""Local SGD, FedAvg, post-local SGD and DiLoCo; and what all methods with local updates share."""

import os
import threading
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import geartrain
from geartrain.cluster.placement import Placement
from geartrain.engines.real import RealEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import NotFinite, StrategyError
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from tests.conformance.harness import Steps, run, train
from tests.conformance.tasks import Curve, Exploding, Golden
from tests.runtime.loops import CLUSTER
from tests.strategies.quadratic import Quadratic, history, plain, target
from tests.strategies.rounds import BATCH, cluster, round_time, step, workload

ALL = ["local_sgd:period=2", "cocod_sgd:period=2", "dasgd:period=2,kept=0.5", "diloco:period=2,outer_lr=0.5"]
UNEQUAL = Quadratic(weights=(1 / 4, 3 / 4))
EXACT = {"rtol": 1e-13, "atol": 1e-13}


# The rules


def apart(x, task, worker, begin, steps):
    """The model of a worker that begins at x and takes plain steps alone."""
    for t in range(begin, begin + steps):
        x = x - task.rate * (x - target(task, worker, t))
    return x


@pytest.mark.parametrize(("weights", "shares"), [("samples", (1 / 4, 3 / 4)), ("equal", (1 / 2, 1 / 2))])
def test_local_sgd_and_fedavg(weights, shares):
    x = history(f"local_sgd:period=3,weights={weights}", UNEQUAL, 7).x
    for begin in (0, 3):
        ends = [apart(x[worker][begin], UNEQUAL, worker, begin, 3) for worker in (0, 1)]
        for worker in (0, 1):
            torch.testing.assert_close(x[worker][begin + 3], sum(map(torch.mul, ends, torch.tensor(shares))), **EXACT)


def test_post_local_sgd_is_synchronous_until_the_switch():
    task = Quadratic(weights=(1 / 2, 1 / 2), momentum=0.5)
    ours, synchronous = history("local_sgd:period=3,switch=4", task, 8), history("synchronous", task, 8)
    for t in range(5):
        assert all(torch.equal(ours.x[worker][t], synchronous.x[worker][t]) for worker in (0, 1))
    differs = [not torch.equal(ours.x[0][t], ours.x[1][t]) for t in range(9)]
    assert differs == [False] * 5 + [True, True, False, True]


def test_the_models_are_averaged_once_more_at_the_end():
    for text in ALL[:3]:
        run = history(text, UNEQUAL, 5)
        assert torch.equal(*run.end)
        torch.testing.assert_close(run.end[0], run.mean(5), **EXACT)


def test_diloco_is_a_nesterov_step_with_what_inner_steps_changed():
    """The outer step is that of torch's own SGD with Nesterov momentum."""
    x = history("diloco:period=3", UNEQUAL, 9).x
    theta = nn.Parameter(x[0][0].clone())
    outer = torch.optim.SGD([theta], lr=0.7, momentum=0.9, nesterov=True)
    for begin in (0, 3, 6):
        ends = [apart(theta.detach().clone(), UNEQUAL, worker, begin, 3) for worker in (0, 1)]
        theta.grad = theta.detach() - (ends[0] / 4 + 3 * ends[1] / 4)
        outer.step()
        for worker in (0, 1):
            torch.testing.assert_close(x[worker][begin + 3], theta.detach(), **EXACT)


def test_diloco_takes_an_outer_step_for_what_is_left():
    run = history("diloco:period=3,outer_lr=1.0,momentum=0.0", UNEQUAL, 4)
    assert torch.equal(*run.end)
    torch.testing.assert_close(run.end[0], run.mean(4), **EXACT)


@pytest.mark.parametrize("text", ["local_sgd:period=4", "local_sgd:period=2,switch=1", "diloco:period=4"])
def test_a_round_takes_its_steps_and_the_all_reduce(text):
    place, strategy = cluster(1.5), parse(text)
    expected = (strategy.cycle + 1.5) * step(place)
    assert round_time(text, place) == pytest.approx(expected, rel=1e-3)
    cost = strategy.cost(workload(), Placement(place, 4), BATCH)
    assert strategy.cycle * cost.step_time == pytest.approx(round_time(text, place), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local_sgd:period=0", "period=0 is too small"),
        ("local_sgd:weights=some", "give samples or equal"),
        ("dasgd:period=2,delay=3", "delay=3 is longer than period=2"),
        ("dasgd:kept=1.5", "give a number from 0 to 1"),
        ("diloco:outer_lr=0.0", "give an outer_lr above 0"),
        ("diloco:momentum=1.0", "a momentum below 1"),
    ],
)
def test_settings_that_cannot_be(text, words):
    with pytest.raises(StrategyError, match=words):
        parse(text)


# What all share


def own(size):
    """Numbers that differ between threads and between processes."""
    return torch.rand(size, generator=torch.Generator().manual_seed(threading.get_ident() ^ os.getpid()))


class Different(Curve):
    """Every worker makes another model."""

    def model(self, seed):
        model = super().model(seed)
        with torch.no_grad():
            model[0].bias.copy_(own(7))
        return model


@pytest.mark.parametrize("text", ALL)
def test_different_weights_at_the_start_are_detected(text):
    with pytest.raises(StrategyError, match=r"worker\(s\) 1, 2 start from other weights than worker 0"):
        run(SimulatedEngine(), Steps(parse(text), Different(), 2, 9), 3)


class OneBuffer(Curve):
    """Equal parameters, and a buffer that differs on every worker."""

    def model(self, seed):
        model = super().model(seed)
        model.register_buffer("drawn", own(1))
        return model


def test_different_buffers_at_the_start_are_detected():
    with pytest.raises(StrategyError, match="start from other weights"):
        run(SimulatedEngine(), Steps(parse(ALL[0]), OneBuffer(), 2, 8), 2)


def test_several_models_are_checked_one_by_one():
    def main(ctx):
        for text in ALL:
            parse(text).bind(ctx, Curve()).close()
        return ctx.rank

    assert SimulatedEngine().run(main, CLUSTER, workers=3).results == [0, 1, 2]


class Normed(Curve):
    """With batch-norm, whose statistics differ between workers."""

    def model(self, seed):
        layers = super().model(seed)
        return nn.Sequential(layers[0], nn.BatchNorm1d(7), layers[2])


@pytest.mark.parametrize("text", ALL)
def test_batch_norm_statistics_and_optimizer_state_stay_local(text):
    def main(ctx):
        worker = parse(text).bind(ctx, Normed())
        batches = Normed().batches(ctx.rank, 2, 16, 0)
        for _ in range(4):
            worker.step(batches)
        worker.finish()
        state = worker.state_dict()
        worker.close()
        return state["model"], state["optimizer"]["state"][0]["exp_avg"]

    (first, moment), (second, other) = SimulatedEngine().run(main, CLUSTER, workers=2).results
    assert torch.equal(first["0.weight"], second["0.weight"])
    assert not torch.equal(first["1.running_mean"], second["1.running_mean"])
    assert not torch.equal(moment, other)


class SomeUnused(Golden):
    """A parameter that only worker 0 uses, in odd steps, beside frozen, tied and unused ones."""

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss + model.unused.sum() if batch.inputs[0] > 0 else loss


@pytest.mark.parametrize("text", [*ALL, "local_sgd:period=2,switch=2"])
def test_unused_frozen_and_tied_parameters(text):
    results = train(SimulatedEngine(), parse(text), SomeUnused(awkward=True), 2, steps=4)
    for one, other in zip(*(result["weights"] for result in results), strict=True):
        assert torch.equal(one, other)
    model = Golden(awkward=True).model(0)
    names = [name for name, _ in model.named_parameters()]
    weights = dict(zip(names, results[0]["weights"], strict=True))
    assert torch.equal(weights["frozen"], torch.ones(5))
    assert not torch.equal(weights["unused"], torch.ones(4))
    assert not torch.equal(weights["tied"], torch.zeros(7))


@pytest.mark.parametrize("text", ALL)
def test_a_loss_that_is_not_finite_ends_the_run_for_all(text):
    training = Training(strategy=parse(text), task=Exploding(rank=1, step=2), steps=9, batch=6)
    with pytest.raises(NotFinite, match="worker 1 became inf in step 2") as caught:
        run(SimulatedEngine(), training, 3)
    assert (caught.value.rank, caught.value.step) == (1, 2)


@pytest.mark.multi
def test_a_loss_that_is_not_finite_ends_real_processes():
    training = Training(strategy=parse("cocod_sgd:period=2"), task=Exploding(rank=1, step=2), steps=9, batch=6)
    with pytest.raises(NotFinite, match="worker 1 became inf in step 2"):
        RealEngine("cpu").run(training, CLUSTER, workers=3)


@pytest.mark.multi
def test_different_weights_at_the_start_are_detected_on_real_processes():
    with pytest.raises(StrategyError, match="start from other weights than worker 0"):
        RealEngine("cpu").run(Steps(parse("local_sgd"), OneBuffer(), 2, 8), CLUSTER, workers=2)


def test_counters_survive_a_restart_in_mid_period():
    """Saved after every number of steps: averages come when they would have come."""
    for text in [*ALL, "local_sgd:period=3,switch=2", "dasgd:period=4,delay=3"]:
        strategy, task = parse(text), Curve()
        whole = train(SimulatedEngine(), strategy, task, 2, steps=9)
        for before in range(1, 9):
            saved = train(SimulatedEngine(), strategy, task, 2, steps=before)
            states = tuple(result["state"] for result in saved)
            rest = run(SimulatedEngine(), Steps(strategy, task, 9 - before, 8, states), 2).results
            for mine, full in zip(rest, whole, strict=True):
                assert all(map(torch.equal, mine["weights"], full["weights"])), (text, before)


@dataclass(frozen=True)
class Several:
    """`main(ctx)`: several trainings, one after another, in the same processes."""

    texts: tuple[str, ...]

    def __call__(self, ctx):
        return [Steps(parse(text), Curve(), 5, 8)(ctx) for text in self.texts]


@pytest.mark.multi
def test_real_processes_give_the_weights_of_simulated_ones():
    """Two workers, so that sums have one order only; with averages in flight when the state is taken, after 5 steps."""
    main = Several((*ALL, "local_sgd:period=2,switch=3", "dasgd:period=4,delay=3"))
    real = RealEngine("cpu").run(main, CLUSTER, workers=2).results
    simulated = SimulatedEngine().run(main, CLUSTER, workers=2).results
    for rank in (0, 1):
        for text, mine, other in zip(main.texts, real[rank], simulated[rank], strict=True):
            assert mine["losses"] == other["losses"], text
            assert all(map(torch.equal, mine["weights"], other["weights"])), text


# In a loop


def attached(text, steps=6, optimizer=torch.optim.SGD, **settings):
    """The weights of all workers after a loop of the user's, and the names of the hooks' places that are left."""

    def main(ctx):
        model = Curve().model(ctx.rank)  # other weights everywhere: those of worker 0 are taken
        batches = Curve().batches(ctx.rank, 2, 8, seed=3)
        with geartrain.attach(parse(text), model, optimizer(model.parameters(), lr=0.1), ctx, **settings) as stepper:
            for _ in range(steps):
                stepper.zero_grad()
                Curve().loss(model, batches.take()).backward()
                stepper.step()
        return [p.detach().clone() for p in model.parameters()]

    return SimulatedEngine().run(main, CLUSTER, workers=2).results


def test_attached_local_sgd_of_period_1_is_attached_synchronous():
    ours, synchronous = attached("local_sgd:period=1"), attached("synchronous")
    for worker in (0, 1):
        torch.testing.assert_close(ours[worker], synchronous[worker], rtol=1e-6, atol=1e-6)


def test_attached_post_local_sgd_is_synchronous_to_the_bit_until_the_switch():
    ours, synchronous = attached("local_sgd:switch=6"), attached("synchronous")
    assert all(map(torch.equal, ours[1], synchronous[1]))


@pytest.mark.parametrize("text", ALL)
def test_attached_workers_end_with_one_model(text):
    first, second = attached(text, steps=5, optimizer=torch.optim.AdamW)
    assert all(map(torch.equal, first, second))


def test_post_local_sgd_refuses_to_skip_unused_parameters():
    with pytest.raises(StrategyError, match="leave out skip_unused, or switch=0"):
        attached("local_sgd:switch=2", skip_unused=True)


def test_one_worker_alone_is_the_plain_loop_of_the_quadratic():
    task = Quadratic(weights=(1.0,), momentum=0.9)
    assert all(map(torch.equal, history("local_sgd:period=2,switch=1", task, 5).x[0], plain(task, 5)))


@pytest.mark.parametrize("text", [*(text.replace("period=2", "period=1") for text in ALL), "adascale"])
def test_a_step_before_the_first_backward_is_none(text):
    """A loop may take one to please a scheduler: nobody has any samples then, by which models could be weighed."""

    def main(ctx):
        results = []
        for early in (False, True):
            model, batches = Curve().model(0), Curve().batches(ctx.rank, 2, 8, seed=3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with geartrain.attach(parse(text), model, optimizer, ctx) as stepper:
                if early:
                    stepper.step()
                for _ in range(3):
                    stepper.zero_grad()
                    Curve().loss(model, batches.take()).backward()
                    stepper.step()
                progress = getattr(geartrain.attached(stepper), "progress", None)
            results.append(([p.detach().clone() for p in model.parameters()], progress))
        return results

    for (plain_weights, plain_progress), (weights, progress) in SimulatedEngine().run(main, CLUSTER, workers=2).results:
        assert all(map(torch.equal, weights, plain_weights)) and progress == plain_progress
