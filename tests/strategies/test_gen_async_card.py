"""What the card of GenAsync says must hold, item by item; and bounds, times, ends, and the loss of a worker."""

import math
import signal
import statistics
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from benchmarks.generalisation import Part, study, train
from geartrain.cluster.load import load_cluster
from geartrain.cluster.overrides import NodeOverride, Overrides
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import NotFinite, StrategyError
from geartrain.models import get_workload
from geartrain.record.means import mean_step
from geartrain.record.split import split
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batch, Task
from geartrain.strategies import parse, serving
from geartrain.tasks.workload_task import WorkloadTask
from tests.conformance import harness
from tests.conformance.tasks import Curve, Exploding, Golden
from tests.conformance.test_resume import Noisy, history, latest
from tests.conformance.test_resume import train as train_saved
from tests.strategies.mortal import Mortal

CLUSTER = load_cluster("ethernet-1g")
UNEQUAL = CLUSTER.model_copy(
    update={
        "overrides": Overrides(
            nodes=(NodeOverride(node="all", jitter=0.2), NodeOverride(node="node-1", speed=0.0001)),
        )
    }
)


def run(text, task, workers, steps, *, batch=12, cluster=CLUSTER, compute=None, meta=False):
    strategy = parse(text)
    main = Training(strategy=strategy, task=task, steps=steps, batch=batch)
    services = strategy.roles(workers).services
    return SimulatedEngine(compute).run(main, cluster, workers=workers, services=services, meta=meta)


def ages(record):
    return [age for mark in record.logs[-1].steps for age in mark.values["staleness"]]


def dropped(record):
    return [age for mark in record.logs[-1].steps for age in mark.values.get("dropped", ())]


def weights_of(text, task, workers, **options):
    return harness.train(SimulatedEngine(), parse(text), task, workers, **options)[0]["weights"]


# 1. W = 1 is serial, K = W synchronous


@pytest.mark.parametrize("step", ["constant", "static", "per_update"])
def test_one_worker_is_the_serial_trajectory(step):
    serial = harness.plain_loop(Curve(), steps=6, batch=8)
    mine = weights_of(f"async_sgd:step={step}", Curve(), 1, steps=6)
    assert all(map(torch.equal, mine, serial))


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_gathering_all_is_synchronous_averaging_in_the_order_of_ranks(workers):
    """Bit for bit that of the synchronous server, which sums in the same order; shares differ in size."""
    mine = weights_of("async_sgd:gather=none", Curve(), workers, steps=6)
    other = weights_of("parameter_server:shard=tensors", Curve(), workers, steps=6)
    assert all(map(torch.equal, mine, other))


def test_unused_frozen_and_tied_parameters():
    mine = weights_of("async_sgd", Golden(awkward=True), 1)
    assert all(map(torch.equal, mine, harness.plain_loop(Golden(awkward=True), steps=4, batch=8)))
    assert len(weights_of("async_sgd", Golden(awkward=True), 3)) == len(mine)


# 2. A recorded schedule replayed gives the same trajectory


def test_replaying_the_schedule_of_delays_by_hand_gives_the_trajectory():
    """From the versions that gradients were computed at, all else follows: w_{t+1} = w_t - rate * g(w_{t - tau_t})."""
    record = run("async_sgd:step=constant", Lined(), 3, 8, batch=3)
    path = [Lined.start]
    for delay in ages(record):
        path.append(path[-1] - Lined().rate * path[len(path) - 1 - delay])
    assert len(path) == 25
    assert record.results[0]["metric"]["x"] == pytest.approx(path[-1], rel=1e-5)


@pytest.fixture
def updates(monkeypatch):
    """The server's log: for each update, (worker, version of its model, gradient) of its gradients, and the model."""
    found, update_with = [], serving.Server._update_with

    def logged(server, group):
        used = [(worker, server._versions[worker], server._pushed[worker].clone()) for worker in group]
        update_with(server, group)
        found.append((used, server._flat.clone()))

    monkeypatch.setattr(serving.Server, "_update_with", logged)
    return found


def flat(tensors):
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def load(parameters, values):
    parts = values.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter).clone() for parameter, part in zip(parameters, parts, strict=True)]


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("async_sgd:step=constant", lambda t, tau: 1),
        ("async_sgd:gather=3,step=decaying,kappa=0.5", lambda t, tau: 1 / (1 + 0.5 * 1) / t),
        ("async_sgd:gather=2,step=per_update", lambda t, tau: 1 / max(1, tau)),
    ],
)
def test_replaying_the_log_of_gradients_gives_every_gradient_and_every_model_bit_for_bit(text, factor, updates):
    """Gradients are recomputed at the model of the version they name, and applied by a loop without any server."""
    workers, batch, task = 5, 17, Curve()
    gather = parse(text).gather
    run(text, task, workers, 6, batch=batch, cluster=UNEQUAL, compute=Roofline())
    model = task.model(0)
    parameters = list(model.parameters())
    optimizer, worker = task.optimizer(parameters), task.model(0)
    streams = [task.batches(rank, workers, batch, 0) for rank in range(workers)]
    versions = [flat(parameters)]
    for t, (used, after) in enumerate(updates, start=1):
        for rank, version, gradient in used:
            for parameter, values in zip(worker.parameters(), load(parameters, versions[version]), strict=True):
                parameter.data, parameter.grad = values, None
            taken = streams[rank].take()
            loss = task.loss(worker, taken)
            loss.backward(gradient=torch.full_like(loss, taken.weight * workers / gather))
            assert torch.equal(flat(p.grad for p in worker.parameters()), gradient)
        total = used[0][2].clone()
        for _, _, gradient in used[1:]:
            total += gradient
        total *= gather / len(used)  # at the end fewer workers are left than are gathered
        for parameter, gradient in zip(parameters, load(parameters, total), strict=True):
            parameter.grad = gradient
        optimizer.param_groups[0]["lr"] = task.rate * factor(t, max(t - 1 - version for _, version, _ in used))
        optimizer.step()
        versions.append(flat(parameters))
        assert torch.equal(versions[-1], after)
    assert sum(len(used) for used, _ in updates) == 6 * workers


# 3. Mean staleness


@pytest.mark.parametrize("cluster", [CLUSTER, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("workers", [2, 4])
def test_mean_staleness_is_one_less_than_the_workers(cluster, workers):
    record = run("async_sgd", Curve(), workers, 40, cluster=cluster, compute=Roofline())
    found = ages(record)
    assert len(found) == 40 * workers
    # The first gradients are younger, and at the end, where fast workers have finished, so are those of slow ones.
    until = min(log.steps[-1].end for log in record.logs[:workers])
    training = [age for mark in record.logs[-1].steps if mark.end <= until for age in mark.values["staleness"]]
    updates = len(training)
    assert abs(statistics.fmean(training) - (workers - 1)) <= 2 * workers * (workers - 1) / updates
    if cluster is CLUSTER:
        assert set(found[workers:-workers]) == {workers - 1}


# 4. The boundary of stability on x^2 / 2


@dataclass(frozen=True)
class Lined(Task):
    """x^2 / 2 from x = 1, with the gradient x; constant delay W - 1 with equal workers."""

    name = "lined"
    source = "made for tests"
    start = 1.0

    rate: float = 0.1

    def model(self, seed):
        model = nn.Linear(1, 1, bias=False)
        nn.init.constant_(model.weight, self.start)
        return model

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=self.rate)

    def loss(self, model, batch):
        return 0.5 * model(torch.ones(1)).pow(2).sum()

    def metric(self, model):
        return {"x": model.weight.item()}

    def batches(self, rank, num_workers, batch, seed):
        return _Nothing(1 / num_workers)


@dataclass(frozen=True)
class _Nothing:
    weight: float

    def take(self, num_samples=None):
        return Batch(torch.zeros(1), torch.zeros(1), self.weight)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        return


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_the_step_is_stable_just_below_the_boundary_and_not_just_above(delay):
    boundary = 2 * math.sin(math.pi / (2 * (2 * delay + 1)))
    steps = 300
    below, above = (
        abs(
            run("async_sgd:step=constant", Lined(rate=share * boundary), delay + 1, steps, batch=delay + 1).results[0][
                "metric"
            ]["x"]
        )
        for share in (0.97, 1.03)
    )
    assert below < 0.5 < 1.5 < above


# 5., 6., 7. Twins and steps


def twin_distance(delay, step, *, samples=50, updates=120, rate=0.2, seed=0):
    task = {"samples": samples, "rate": rate}
    _, one, _ = train(delay, step, Part(**task), updates, seed)
    _, other, _ = train(delay, step, Part(**task, twin=True), updates, seed)
    return (one - other).norm().item()


def test_twins_are_equal_until_the_other_sample_is_drawn():
    batches = Part(samples=50).batches(0, 1, 0, 0)
    other = Part(samples=50, twin=True).batches(0, 1, 0, 0)
    first = next(k for k in range(100) if not torch.equal(batches.take().inputs, other.take().inputs))
    assert first > 0
    assert twin_distance(0, "fixed", updates=first) == 0
    assert twin_distance(0, "fixed", updates=first + 1) > 0


def test_twins_stay_closer_with_more_samples_and_with_a_reduced_step():
    base = twin_distance(3, "fixed")
    assert twin_distance(3, "fixed", samples=400) < 0.5 * base
    assert twin_distance(3, "reduced") < base


def test_a_large_step_breaks_with_delay_and_a_reduced_one_restores_it():
    quality = {}
    for delay, step in [(0, "fixed"), (15, "fixed"), (15, "reduced")]:
        measured, _, _ = train(delay, step, Part(samples=200, rate=1.0), 480, 0)
        quality[delay, step] = measured["training_loss"]
    assert quality[15, "fixed"] > 5 * quality[0, "fixed"]
    assert quality[15, "reduced"] < 0.5 * quality[15, "fixed"]


def test_the_study_gives_the_same_bits_again():
    first, second = (study(24, 1, delays=(0, 2), samples=30) for _ in range(2))
    assert first == second and [row.step for row in first] == ["fixed", "fixed", "reduced"]


# The bound, backup workers, who gathers


def test_the_bound_is_kept_by_dropping():
    record = run("async_sgd:max_staleness=1", Curve(), 4, 10)
    assert max(ages(record)) <= 1 and min(dropped(record)) > 1
    assert len(ages(record)) + len(dropped(record)) == 40


@pytest.mark.parametrize("gather", [1, 2])
def test_the_bound_is_kept_by_blocking_and_nothing_is_dropped(gather):
    bound = 3 if gather == 1 else 1
    loose = run(f"async_sgd:gather={gather}", Curve(), 4, 20, cluster=UNEQUAL, compute=Roofline())
    record = run(
        f"async_sgd:gather={gather},max_staleness={bound},late=block",
        Curve(),
        4,
        20,
        cluster=UNEQUAL,
        compute=Roofline(),
    )
    assert max(ages(loose)) > bound >= max(ages(record))
    assert not dropped(record) and len(ages(record)) == 80


def test_backup_workers_are_synchronous_steps_without_the_latest():
    """gather = W - 1 with max_staleness = 0: the slow worker's gradients come too late and are dropped."""
    record = run("async_sgd:gather=3,max_staleness=0", Curve(), 4, 10, cluster=UNEQUAL, compute=Roofline())
    assert set(ages(record)) == {0} and dropped(record)


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(StrategyError, match="gather=5 waits for more gradients than 4"):
        parse("async_sgd:gather=5").roles(4)
    with pytest.raises(StrategyError, match="use max_staleness=3, or late=drop"):
        parse("async_sgd:max_staleness=2,late=block").roles(4)
    with pytest.raises(StrategyError, match="give max_staleness"):
        parse("async_sgd:late=block")
    with pytest.raises(StrategyError, match=r"kappa=-1\.0"):
        parse("async_sgd:kappa=-1")


def test_rates_answer_to_staleness():
    """One update of size rate * factor on x: the first gradient is 1 everywhere."""
    for text, factor in [
        ("async_sgd:step=constant", 1),
        ("async_sgd:step=static", 1 / 4),
        ("async_sgd:step=static,kappa=0.5", 1 / 2.5),
        ("async_sgd:step=static,max_staleness=1", 1 / 2),
        ("async_sgd:step=per_update", (1 + 1 + 1 / 2 + 1 / 3) / 4),
        ("async_sgd:step=decaying", (1 + 1 / 2 + 1 / 3 + 1 / 4) / 16),
    ]:
        record = run(text, Lined(rate=0.01), 4, 1, batch=4)
        used = len(ages(record))
        assert record.results[0]["metric"]["x"] == pytest.approx(1 - 0.01 * factor * used, rel=1e-5)


# Cost


@pytest.mark.parametrize(
    ("workload", "workers", "bound"),
    [("resnet50", 2, "computing"), ("resnet50", 12, "the wire")],
)
@pytest.mark.parametrize("text", ["async_sgd", "apam"])
def test_time_is_that_of_the_closed_form(text, workload, workers, bound):
    task, cluster = WorkloadTask(get_workload(workload)), load_cluster("ethernet-10g")
    strategy, batch = parse(text), 32 * workers
    form = strategy.cost(get_workload(workload), Placement(cluster, workers, strategy.roles(workers).services), batch)
    record = run(text, task, workers, 8, batch=batch, cluster=cluster, compute=Roofline(), meta=True)
    found = [step.shares.time for rank in split(record).ranks[:workers] for step in rank.steps[2:-1]]
    assert statistics.fmean(found) == pytest.approx(form.step_time, rel=0.03)
    alone = form.compute + 2 * 102.2e6 / 1.2e9
    assert (form.step_time > 1.5 * alone) == (bound == "the wire")


def test_a_step_sends_eight_bytes_for_each_parameter():
    workload = get_workload("resnet50")
    strategy = parse("async_sgd")
    sent = strategy.cost(workload, Placement(CLUSTER, 4, strategy.roles(4).services), 64).sent
    assert [(one.nbytes, one.messages) for one in sent[:4]] == [(4 * workload.num_parameters, 1)] * 4
    assert (sent[4].nbytes, sent[4].messages) == (16 * workload.num_parameters, 4)


# Ends


@pytest.mark.parametrize("text", ["async_sgd", "async_sgd:gather=2", "apam"])
def test_a_loss_that_is_not_finite_stops_everybody_within_two_steps(text):
    ends = {}
    training = Training(strategy=parse(text), task=Exploding(rank=1, step=2), steps=9, batch=6)

    def main(ctx):
        try:
            ends[ctx.rank] = training(ctx)
        except NotFinite as error:
            ends[ctx.rank] = error

    SimulatedEngine().run(main, CLUSTER, workers=3, services=training.strategy.roles(3).services)
    assert (ends[1].rank, ends[1].step) == (1, 2)
    assert {ends[0]["stopped"], ends[2]["stopped"]} <= {2, 3, 4}


def test_all_have_the_last_model_at_the_end():
    results = harness.train(SimulatedEngine(), parse("async_sgd"), Curve(), 3)
    for other in results[1:3]:
        assert all(map(torch.equal, other["weights"], results[0]["weights"]))


@pytest.mark.parametrize(
    "text", ["async_sgd:gather=2,max_staleness=1,late=block", "async_sgd:gather=2,max_staleness=0"]
)
def test_a_saved_run_goes_on_bit_for_bit_where_gradients_are_gathered(text, tmp_path):
    whole = train_saved(text, tmp_path / "whole", 7, workers=3, task=Noisy())
    train_saved(text, tmp_path / "ended", 5, workers=3, task=Noisy())
    path = latest(tmp_path / "ended")
    resumed = train_saved(text, tmp_path / "ended", 7, workers=3, task=Noisy(), resume=path)
    assert history(resumed) == history(whole)


@pytest.mark.multi
@pytest.mark.parametrize(
    ("text", "number", "how"),
    [
        ("async_sgd:gather=2", signal.SIGKILL, "was killed by SIGKILL in step 5"),
        ("apam", signal.SIGTERM, "was stopped by SIGTERM in step 5"),
    ],
)
def test_the_others_go_on_when_a_worker_dies(text, number, how):
    from geartrain.engines.real import RealEngine

    strategy = parse(text)
    main = Training(strategy=strategy, task=Mortal(number=number), steps=12, batch=12)
    record = RealEngine(patience=30).run(main, CLUSTER, workers=3, services=strategy.roles(3).services)
    assert record.lost == {1: how}
    assert record.results[1] is None and record.interrupted is None
    assert [len(record.results[rank]["losses"]) for rank in (0, 2)] == [12, 12]
    assert record.results[0]["metric"]
    steps = mean_step(split(record))
    assert steps is not None and steps.steps == 11
