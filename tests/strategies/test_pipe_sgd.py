"""Pipe-SGD (Li and others, 2018, recalled): its rule, its times, and what it does in a loop."""

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
from tests.strategies.quadratic import Quadratic, history
from tests.strategies.rounds import BATCH, cluster, round_time, step, workload
from tests.strategies.test_local_updates import SomeUnused

UNEQUAL = Quadratic(weights=(1 / 6, 2 / 6, 3 / 6), momentum=0.5, decay=0.01)


def test_a_mean_gradient_is_applied_one_step_late_and_none_is_lost():
    """Against torch's own optimizer, fed by hand; the workers' shares differ."""
    run, steps = history("pipe_sgd", UNEQUAL, 7), 7
    for x in run.x:
        assert all(map(torch.equal, x, run.x[0])), "the same weights on all workers"
    assert torch.equal(run.x[0][1], run.x[0][0]), "nothing has come yet"
    point = nn.Parameter(run.x[0][0].clone())
    optimizer = UNEQUAL.optimizer([point])
    for t in range(steps):
        point.grad = run.mean_gradient(t)
        optimizer.step()
        after = run.x[0][t + 2] if t + 2 <= steps else run.end[0]
        torch.testing.assert_close(after, point.detach(), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_it_is_abs_sgd_in_rounds_of_one_micro_batch(workers):
    task = Quadratic(weights=(1 / workers,) * workers, momentum=0.5)
    ours, rounds = history("pipe_sgd", task, 9), history("abs_sgd:micro_batch=1,most=1,rate=1.0", task, 9)
    assert all(map(torch.equal, sum(ours.x, ours.end), sum(rounds.x, rounds.end)))


@pytest.mark.parametrize(("rate", "bears"), [(0.9, True), (1.1, False)])
def test_a_delay_of_one_bears_half_of_the_rate(rate, bears):
    distance = history("pipe_sgd", Quadratic(rate=rate, spread=0.0), 200).end[0].abs().max()
    assert distance < 1e-3 if bears else distance > 1e3


@pytest.mark.parametrize("ratio", [0.25, 0.9, 3.0])
def test_a_step_takes_the_longer_of_computing_and_the_all_reduce(ratio):
    place = cluster(ratio)
    assert round_time("pipe_sgd", place) == pytest.approx(max(1.0, ratio) * step(place), rel=2e-3)
    cost = parse("pipe_sgd").cost(workload(), Placement(place, 4), BATCH)
    assert cost.step_time == pytest.approx(round_time("pipe_sgd", place), rel=1e-6)


def test_it_goes_on_from_any_step():
    strategy, task = parse("pipe_sgd"), Curve()
    whole = train(SimulatedEngine(), strategy, task, 3, steps=5)
    for before in range(5):
        saved = train(SimulatedEngine(), strategy, task, 3, steps=before)
        states = tuple(result["state"] for result in saved)
        rest = run(SimulatedEngine(), Steps(strategy, task, 5 - before, 8, states), 3).results
        for one, two, full in zip(saved, rest, whole, strict=True):
            assert one["losses"] + two["losses"] == full["losses"]
            assert all(map(torch.equal, two["weights"], full["weights"]))


class TwoTypes(Curve):
    """Layers of two data types, and a batch that does not divide among three workers."""

    def model(self, seed):
        model = super().model(seed)
        model[2].double()
        return model

    def loss(self, model, batch):
        hidden = model[1](model[0](batch.inputs)).double()
        return nn.functional.mse_loss(model[2](hidden), batch.targets.double())


@pytest.mark.parametrize("task", [SomeUnused(awkward=True), TwoTypes()], ids=["unused", "two types"])
@pytest.mark.parametrize("workers", [2, 3, 16])
def test_parameters_that_one_worker_does_not_use_and_several_data_types(task, workers):
    results = train(SimulatedEngine(), parse("pipe_sgd"), task, workers, steps=3, batch=max(8, workers))
    start = [p for p in task.model(0).parameters()]
    for result in results:
        assert all(map(torch.equal, result["weights"], results[0]["weights"]))
    if isinstance(task, Golden):
        name = [name for name, _ in task.model(0).named_parameters()].index("frozen")
        assert torch.equal(results[0]["weights"][name], start[name])
    else:
        assert not any(map(torch.equal, results[0]["weights"], start))


EXPLODING = Training(strategy=parse("pipe_sgd"), task=Exploding(rank=1, step=2), steps=9, batch=6)


@pytest.mark.parametrize("engine", [SimulatedEngine, pytest.param(RealEngine, marks=pytest.mark.multi)])
def test_a_loss_that_is_not_finite_ends_the_run_for_all(engine):
    with pytest.raises(NotFinite, match="worker 1 became inf in step 2"):
        engine().run(EXPLODING, CLUSTER, workers=3)


@pytest.mark.multi
def test_real_processes_give_the_weights_of_simulated_ones():
    main = Steps(parse("pipe_sgd"), Golden(awkward=True), 5, 8)
    real, simulated = (engine.run(main, CLUSTER, workers=3).results for engine in (RealEngine(), SimulatedEngine()))
    for mine, other in zip(real, simulated, strict=True):
        assert mine["losses"] == other["losses"] and all(map(torch.equal, mine["weights"], other["weights"]))


# In a loop


def attached(steps, saved=(None, None), **settings):
    """Weights and states of both workers after a loop of two passes a step, a clip and a schedule."""

    def main(ctx):
        model, batches = Curve().model(0), Curve().batches(ctx.rank, 2, 8, seed=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "batches": batches}
        with geartrain.attach(parse("pipe_sgd"), model, optimizer, ctx, accumulate=2, **settings) as stepper:
            parts["strategy"] = geartrain.attached(stepper)
            for name, state in (saved[ctx.rank] or {}).items():
                parts[name].load_state_dict(state)
            for _ in range(steps):
                for _ in range(2):
                    (Curve().loss(model, batches.take()) / 2).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)
                stepper.step()
                schedule.step()
                stepper.zero_grad()
                with torch.no_grad():
                    model(torch.ones(1, 3))
            states = {name: clone(part.state_dict()) for name, part in parts.items()}
        return [p.detach().clone() for p in model.parameters()], states

    return SimulatedEngine().run(main, CLUSTER, workers=2).results


def clone(state):
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    if isinstance(state, list):
        return [clone(value) for value in state]
    return state.clone() if isinstance(state, torch.Tensor) else state


def by_hand(steps):
    """The same by one loop over both workers' data: each clipped gradient one step late, the last not clipped."""
    model, batches = Curve().model(0), [Curve().batches(rank, 2, 8, seed=3) for rank in (0, 1)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    parameters, last = list(model.parameters()), [None] * 4
    for t in range(steps + 1):
        now = [None] * 4
        if t < steps:
            for part in (*batches, *batches):
                (Curve().loss(model, part.take()) / 4).backward()
            now = [p.grad for p in parameters]
        for parameter, gradient in zip(parameters, last, strict=True):
            parameter.grad = gradient
        if 0 < t < steps:
            nn.utils.clip_grad_norm_(parameters, 0.05)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        last = now
    return [p.detach() for p in parameters]


def test_attached_with_passes_clipping_and_a_schedule():
    (first, _), (second, _) = attached(5)
    assert all(map(torch.equal, first, second))
    torch.testing.assert_close(first, by_hand(5))


def test_attached_it_goes_on_from_its_state():
    whole = attached(5)
    for before in (0, 1, 3):
        rest = attached(5 - before, [states for _, states in attached(before)])
        for (mine, _), (full, _) in zip(rest, whole, strict=True):
            assert all(map(torch.equal, mine, full))


def test_it_refuses_to_skip_unused_parameters():
    with pytest.raises(StrategyError, match="leave out skip_unused"):
        attached(1, skip_unused=True)
