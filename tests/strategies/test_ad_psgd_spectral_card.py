"""What must hold for D-PSGD and AD-PSGD (`dpsgd`, `adpsgd`): items of the paper's card, and of the issue."""

import os
import signal
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from geartrain.cluster.load import load_cluster
from geartrain.cluster.overrides import NodeOverride, Overrides, Straggler
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Constant
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import NotFinite, StrategyError
from geartrain.runtime.loop import Training
from geartrain.runtime.tracing import task_workload
from geartrain.runtime.worker import Batch, Task
from geartrain.strategies import mixing, parse
from geartrain.strategies.adpsgd import ADPSGD, exchange_time
from geartrain.strategies.dpsgd import DPSGD
from geartrain.tasks.digits import Digits
from tests.conformance.cases import SIMULATED, real_engine
from tests.conformance.harness import CLUSTER, Steps, plain_loop, run, train
from tests.conformance.tasks import Curve, Exploding, Golden
from tests.conformance.test_resume import Noisy, history, latest
from tests.conformance.test_resume import train as train_saved

NODES_OF_8 = load_cluster("v100x8-25g")
GRAPHS = ("ring", "random_ring", "exponential", "uniform")
ORDERS = ("combine_then_adapt", "adapt_then_combine")
RATE = 0.125


@dataclass(frozen=True)
class Plain(Task):
    """A quadratic in double precision under SGD without momentum; `pull=0` takes the gradients away."""

    name = "plain"
    source = "made for tests"

    size: int = 6
    pull: float = 1.0

    def model(self, seed):
        return nn.ParameterList([nn.Parameter(torch.ones(self.size, dtype=torch.float64))])

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=RATE)

    def loss(self, model, batch: Batch):
        return self.pull * ((model[0] - batch.targets) ** 2).sum(1).mean() / 2

    def metric(self, model):
        return {}

    def batches(self, rank, num_workers, batch, seed):
        return Targets(rank, num_workers, batch, self.size)


class Targets:
    """Each worker pulls to points of its own."""

    def __init__(self, rank, num_workers, batch, size):
        self._random = torch.Generator().manual_seed(rank)
        self._shape, self._weight = (batch // num_workers, size), 1 / num_workers

    def take(self, num_samples=None):
        targets = torch.randn(self._shape, generator=self._random, dtype=torch.float64)
        return Batch(torch.zeros(len(targets), 1), targets, self._weight)


def histories(strategy, task, workers, steps, start=None, cluster=CLUSTER):
    """Models [step, worker, element] and gradients [step, worker, element] of a D-PSGD run, simulated."""
    models, gradients = np.zeros((steps + 1, workers, task.size)), np.zeros((steps, workers, task.size))

    def main(ctx):
        worker = strategy.bind(ctx, task)
        parameter = next(iter(worker.model.parameters()))
        if start is not None:
            parameter.data.copy_(torch.from_numpy(start[ctx.rank]))
        models[0, ctx.rank] = parameter.detach().numpy()
        batches = task.batches(ctx.rank, workers, workers, 0)
        for step in range(steps):
            worker.step(batches)
            models[step + 1, ctx.rank] = parameter.detach().numpy()
            gradients[step, ctx.rank] = parameter.grad.numpy()
        worker.finish()
        worker.close()

    SIMULATED.run(main, cluster, workers=workers)
    return models, gradients


def spread(models):
    """Squared consensus distance: mean over workers of ||x_i - mean x||^2, for each step."""
    return ((models - models.mean(axis=-2, keepdims=True)) ** 2).sum(axis=-1).mean(axis=-1)


# 1. Limits


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_uniform_mixing_from_an_equal_start_is_synchronous_sgd(workers):
    task = Curve(torch.float64, linear=True)
    mine = train(SIMULATED, parse("dpsgd:graph=uniform,order=adapt_then_combine"), task, workers, steps=8, batch=10)
    other = train(SIMULATED, parse("synchronous"), task, workers, steps=8, batch=10)
    torch.testing.assert_close(mine[0]["weights"], other[0]["weights"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_without_neighbours_it_is_independent_runs(order, monkeypatch):
    monkeypatch.setattr(mixing, "sources", lambda graph, size, seed=0, step=0: ((),) * size)
    models, gradients = histories(DPSGD(order=order), Plain(), 3, 4)
    for step in range(4):
        np.testing.assert_array_equal(models[step + 1], models[step] - RATE * gradients[step])
    assert spread(models)[-1] > 0


# 2. The mean


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("order", ORDERS)
def test_the_mean_moves_by_the_mean_gradient(graph, order):
    models, gradients = histories(DPSGD(graph=graph, order=order), Plain(), 5, 6)
    expected = models[:-1].mean(axis=1) - RATE * gradients.mean(axis=1)
    np.testing.assert_allclose(models[1:].mean(axis=1), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_step_is_the_matrix_form_of_the_rule(graph):
    models, gradients = histories(DPSGD(graph=graph), Plain(), 6, 4)
    for step in range(4):
        matrix = mixing.mixing_matrix(mixing.sources(graph, 6, 0, step))
        np.testing.assert_allclose(models[step + 1], matrix.T @ models[step] - RATE * gradients[step], atol=1e-14)
    models, gradients = histories(DPSGD(graph=graph, order="adapt_then_combine"), Plain(), 6, 4)
    for step in range(4):
        matrix = mixing.mixing_matrix(mixing.sources(graph, 6, 0, step))
        np.testing.assert_allclose(models[step + 1], matrix.T @ (models[step] - RATE * gradients[step]), atol=1e-14)


@pytest.mark.parametrize("text", ["adpsgd", "adpsgd:graph=ring", "adpsgd:steps_per_average=1"])
@pytest.mark.parametrize("workers", [2, 5, 6])
def test_exchanges_of_pairs_keep_the_sum_of_the_models(text, workers):
    """Also when gradients come in between: on small integers nothing is rounded, so the sum is exact."""
    sums, strategy, task = {}, parse(text), Plain(size=4, pull=0.0)

    def main(ctx):
        worker = strategy.bind(ctx, task)
        state = worker.state_dict()
        state["shared"] = torch.arange(4, dtype=torch.float64) + 64.0 * ctx.rank
        worker.load_state_dict(state)
        batches = task.batches(ctx.rank, workers, workers, 0)
        for _ in range(20):
            ctx.clock.sleep(20e-6 * (1 + ctx.rank))
            worker.step(batches)
        sums[ctx.rank] = worker.state_dict()["shared"].clone()
        worker.finish()
        worker.close()
        return next(iter(worker.model.parameters())).detach().clone()

    record = SIMULATED.run(main, CLUSTER, workers=workers)
    total = torch.stack(list(sums.values())).sum(0)
    start = workers * torch.arange(4, dtype=torch.float64) + 64.0 * sum(range(workers))
    assert sum(log.counts.get("exchanges", 0) for log in record.logs) > workers
    assert torch.equal(total, start)
    for result in record.results:
        torch.testing.assert_close(result, start / workers, rtol=1e-15, atol=0)


# 3. How fast models agree


@pytest.mark.parametrize("workers", [8, 16, 32])
def test_a_fixed_ring_contracts_by_its_second_eigenvalue(workers):
    eigenvalue = (1 + 2 * np.cos(2 * np.pi / workers)) / 3
    angles = 2 * np.pi * np.arange(workers) / workers
    start = np.stack([np.cos(angles), np.sin(angles)], axis=1)  # its slowest eigenvectors
    left = spread(histories(DPSGD(), Plain(size=2, pull=0.0), workers, 4, start)[0])
    np.testing.assert_allclose(left[1:] / left[:-1], eigenvalue**2, rtol=1e-12)
    assert mixing.squared_contraction(graph="ring", ranks=workers) == pytest.approx(eigenvalue**2)
    anywhere = np.random.default_rng(1).standard_normal((workers, 2))
    left = spread(histories(DPSGD(), Plain(size=2, pull=0.0), workers, 4, anywhere)[0])
    assert (left[1:] / left[:-1] <= eigenvalue**2 + 1e-12).all()


@pytest.mark.parametrize("workers", [8, 16, 32])
def test_a_random_ring_contracts_by_a_third_on_average(workers):
    start = np.random.default_rng(2).standard_normal((workers, 64))
    left = spread(histories(DPSGD(graph="random_ring"), Plain(size=64, pull=0.0), workers, 3, start)[0])
    drawn = [mixing.mixing_matrix(mixing.sources("random_ring", workers, 0, step)).T for step in range(800)]
    np.testing.assert_allclose(left[3], spread(drawn[2] @ drawn[1] @ drawn[0] @ start), rtol=1e-9)
    expected = 1 / 3 - 2 / (3 * (workers - 1))
    assert np.mean([spread(matrix @ start) for matrix in drawn]) / left[0] == pytest.approx(expected, rel=0.02)
    assert mixing.squared_contraction(graph="random_ring", ranks=workers) == pytest.approx(expected)


def test_spectral_facts():
    gaps = {8: 0.1953, 16: 0.0507, 32: 0.01281, 64: 0.003210, 128: 0.000803}
    for ranks, gap in gaps.items():
        assert mixing.gap(graph="ring", ranks=ranks) == pytest.approx(gap, rel=1e-3)
    for ranks, left in {16: 0.2889, 64: 0.3228, 128: 0.3281}.items():
        assert mixing.squared_contraction(graph="random_ring", ranks=ranks) == pytest.approx(left, rel=1e-3)
    for ranks in (8, 64):
        pair, matching = (mixing.squared_contraction(graph=g, ranks=ranks) for g in ("pair", "matching"))
        assert pair == pytest.approx(1 - 1 / (ranks - 1))
        assert matching == pytest.approx(0.5 - 1 / (2 * (ranks - 1)))
    assert mixing.gap(graph="exponential", ranks=64) == pytest.approx(2 / (1 + 6))  # 2/(1 + log2 n), derived


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_matrices_are_doubly_stochastic_and_messages_have_two_ends(graph, size):
    received = mixing.sources(graph, size, 5, 3)
    matrix = mixing.mixing_matrix(received)
    np.testing.assert_allclose([matrix.sum(0), matrix.sum(1)], np.ones((2, size)))
    assert (matrix >= 0).all() and all(worker not in those for worker, those in enumerate(received))
    sent = mixing.targets(received)
    assert {(j, i) for i, those in enumerate(received) for j in those} == {
        (i, j) for i, those in enumerate(sent) for j in those
    }


@pytest.mark.parametrize("graph", ["ring", "random"])
@pytest.mark.parametrize("size", range(1, 8))
def test_roles_are_bipartite_and_nobody_is_left_out(graph, size):
    asked = mixing.partners(graph, size)
    active, passive = {i for i in range(size) if asked[i]}, {j for those in asked for j in those}
    assert not active & passive
    assert size == 1 or active | passive == set(range(size))


def test_the_gap_is_told_for_the_number_of_workers_at_hand():
    for text, words in (
        ("dpsgd", "spectral gap 0.05075 for 16"),
        ("dpsgd:graph=random_ring", "on average 0.2889"),
        ("adpsgd", "spectral gap 0.0625 for 16 learner(s) on random"),
        ("dpsgd:hierarchical=true", "spectral gap 1 for 2 learner(s)"),
    ):
        cluster = NODES_OF_8 if "hier" in text else CLUSTER
        cost = parse(text).cost(task_workload(Golden()), Placement(cluster, 16), 32)
        assert any(words in note for note in cost.notes), cost.notes


# 4. AD-PSGD waits for nobody


def slow(node, **override):
    return CLUSTER.model_copy(update={"overrides": Overrides(nodes=(NodeOverride(node=node, **override),))})


@pytest.mark.parametrize("text", ["adpsgd", "adpsgd:graph=ring", "adpsgd:steps_per_average=1,averages_per_step=1"])
@pytest.mark.parametrize("workers", [2, 3, 6, 7])
def test_random_delays_on_every_learner_never_lock(text, workers):
    stumbling = slow("all", jitter=0.5, straggler=Straggler(probability=0.2, factor=20))
    main = Training(strategy=parse(text), task=Curve(), steps=15, batch=14)
    record = SimulatedEngine(Constant(20e-6)).run(main, stumbling, workers=workers, seed=workers)
    assert [len(result["losses"]) for result in record.results] == [15] * workers
    assert sum(log.counts.get("exchanges", 0) for log in record.logs) > workers


def test_one_slow_learner_slows_nobody_else():
    workers, steps, ends = 8, 12, {}
    for text in ("dpsgd", "adpsgd"):
        for cluster in (CLUSTER, slow("node-3", speed=0.1)):
            main = Training(strategy=parse(text), task=Curve(), steps=steps, batch=workers)
            record = SimulatedEngine(Constant(20e-6)).run(main, cluster, workers=workers)
            ends.setdefault(text, []).append([log.steps[-1].end for log in record.logs])
    equal, unequal = (np.array(times) for times in ends["adpsgd"])
    rates = [(steps / times).sum() for times in (equal, unequal)]
    assert unequal[3] > 9 * equal[3]  # it is slow
    np.testing.assert_allclose(np.delete(unequal, 3), np.delete(equal, 3), rtol=0.02)
    assert rates[1] > rates[0] * (1 - 1 / workers)
    equal, unequal = (np.array(times) for times in ends["dpsgd"])
    assert unequal.min() > 5 * equal.max()  # a delay has reached everybody


def test_the_gradient_is_taken_at_the_model_read_and_applied_to_the_present_one():
    """An exchange ends while gradients are computed: x <- (x_0 + x_1)/2 - lr * g(x as it was read)."""
    task, found = Plain(size=1), {}

    def main(ctx):
        worker = ADPSGD(averages_per_step=1).bind(ctx, task)
        state = worker.state_dict()
        state["shared"] = torch.tensor([8.0 * ctx.rank], dtype=torch.float64)
        worker.load_state_dict(state)
        target = task.batches(ctx.rank, 2, 2, 0).take().targets.item()
        worker.step(task.batches(ctx.rank, 2, 2, 0))
        found[ctx.rank] = worker.state_dict()["shared"].item(), target
        worker.finish()
        worker.close()

    record = SimulatedEngine(Constant(100e-6)).run(main, CLUSTER, workers=2)
    assert record.logs[0].counts["exchanges"] == 1
    for after, target in found.values():
        assert after == pytest.approx((0 + 8) / 2 - RATE * (1 - target))  # all have read 1 at the start


# 5. Delay by one


def test_delay_by_one_spreads_as_far_as_the_last_gradients():
    models, gradients = histories(DPSGD(graph="uniform"), Plain(), 5, 6)
    np.testing.assert_allclose(spread(models)[1:], RATE**2 * spread(gradients), rtol=1e-9)


@pytest.mark.parametrize("rate", ["1 Mbit/s", "100 Gbit/s"])
def test_delay_by_one_takes_the_longer_of_computing_and_averaging(rate):
    cluster = CLUSTER.model_copy(
        update={
            "topology": CLUSTER.topology.model_validate({"wire": {"rate": rate, "latency": "1 us"}, "kind": "star"})
        }
    )
    main = Training(strategy=DPSGD(graph="uniform"), task=Curve(), steps=4, batch=4)
    engine = SimulatedEngine(Constant(20e-6))
    record = engine.run(main, cluster, workers=4)
    alone = engine.run(Training(strategy=parse("single"), task=Curve(), steps=4, batch=1), cluster, workers=1)
    times = [log.steps[-1].end - log.steps[-1].begin for log in (record.logs[0], alone.logs[0])]
    averaging = [op for op in record.logs[0].ops if op.kind == "all_reduce"][2]
    whole = averaging.done - averaging.posted
    if whole > times[1]:
        assert times[0] == pytest.approx(whole, abs=20e-6 * 40)  # a copy before it, the update after it
    else:
        assert times[0] == pytest.approx(times[1], abs=20e-6 * 12)  # moving gradients, a copy, a product


def test_the_consensus_distance_is_traced():
    main = Training(strategy=DPSGD(consensus_every=2), task=Curve(), steps=6, batch=10)
    record = SIMULATED.run(main, CLUSTER, workers=5)
    for log in record.logs:
        traced = ["consensus_distance" in mark.values for mark in log.steps]
        assert traced == [False, True] * 3
    assert all(mark.values["consensus_distance"] > 0 for mark in record.logs[0].steps[1::2])
    models, _ = histories(DPSGD(consensus_every=2), Plain(), 3, 4)
    main = Training(strategy=DPSGD(consensus_every=2), task=Plain(), steps=4, batch=3)
    logs = SIMULATED.run(main, CLUSTER, workers=3).logs
    for step in (1, 3):
        distances = [log.steps[step].values["consensus_distance"] for log in logs]
        center = models[step + 1].mean(axis=0)
        np.testing.assert_allclose(distances, np.linalg.norm(models[step + 1] - center, axis=1), rtol=1e-9)


# 6. The trend


class Linear(Digits):
    """Softmax regression on the pixels: cheap enough for many learners."""

    def model(self, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=2.0)


def test_at_32_learners_a_random_ring_learns_no_worse_than_a_fixed_one():
    """At equal steps and bytes, by the learners' own losses; the mean of all models hides how far they are apart."""
    found = {}
    for graph in ("ring", "random_ring"):
        main = Training(strategy=DPSGD(graph=graph), task=Linear(), steps=24, batch=256)
        record = SIMULATED.run(main, CLUSTER, workers=32)
        losses = np.array([result["losses"] for result in record.results])[:, -4:].mean()
        found[graph] = losses, sum(op.nbytes for log in record.logs for op in log.ops)
    assert found["random_ring"][0] < 0.8 * found["ring"][0]
    assert found["random_ring"][1] == found["ring"][1]


# Costs


@pytest.mark.parametrize("text", ["adpsgd", "adpsgd:graph=ring,averages_per_step=1"])
@pytest.mark.parametrize("workers", [2, 3, 6])
def test_an_exchange_sends_the_model_once_each_way(text, workers):
    engine = SimulatedEngine(Constant(20e-6))
    task = Golden()
    record = engine.run(Steps(parse(text), task, steps=8, batch=8), CLUSTER, workers=workers)
    sends = [(log.rank, op) for log in record.logs for op in log.ops if op.lane == "averaging" and op.kind == "send"]
    exchanges = [log.counts.get("exchanges", 0) for log in record.logs]
    assert {op.nbytes for _, op in sends} == {31 * 4}
    assert [sum(rank == other for other, _ in sends) for rank in range(0, workers, 2)] == exchanges[::2]
    assert len(sends) == 2 * sum(exchanges) > 0


def test_the_time_of_an_exchange_and_of_a_step():
    place, workload = Placement(CLUSTER, 2), task_workload(Digits())
    nbytes = workload.gradient_bytes
    assert exchange_time(place, [0, 1], nbytes) == pytest.approx(2 * 50e-6 + 2 * nbytes / 1.25e9)
    record = SIMULATED.run(Steps(ADPSGD(steps_per_average=1, averages_per_step=1), Digits(), 6, 8), CLUSTER, workers=2)
    marks = record.logs[0].steps
    closed = exchange_time(place, [0, 1], nbytes)
    assert (marks[-1].end - marks[1].end) / 4 == pytest.approx(closed, rel=1e-6)


def test_the_time_of_an_exchange_is_the_mean_over_who_asks_whom():
    """Nine workers on two nodes: four in the first ask four others in it, and the ninth asks them from the second."""
    place, nbytes = Placement(NODES_OF_8, 9), 1 << 20
    inside = exchange_time(place, [0, 1], nbytes)
    between = exchange_time(place, [8, 1], nbytes)
    assert between > 5 * inside
    assert exchange_time(place, range(9), nbytes) == pytest.approx((4 * inside + between) / 5)
    assert exchange_time(place, range(9), nbytes, "ring") == pytest.approx((7 * inside + between) / 8)
    assert exchange_time(place, [3], nbytes) == 0


@pytest.mark.parametrize(
    "text", ["dpsgd", "dpsgd:order=adapt_then_combine", "dpsgd:graph=exponential", "dpsgd:graph=uniform"]
)
def test_closed_forms_of_a_step_are_the_simulated_times(text):
    strategy, workload = parse(text), task_workload(Digits())
    engine = SimulatedEngine(Constant(1e-6))
    record = engine.run(Training(strategy=strategy, task=Digits(), steps=4, batch=16), CLUSTER, workers=8)
    cost = strategy.cost(workload, Placement(CLUSTER, 8), 16, Constant(1e-6))
    marks = record.logs[0].steps
    assert cost.step_time == pytest.approx((marks[-1].end - marks[0].end) / 3, rel=0.03)


# Hierarchical


@pytest.mark.parametrize("text", ["dpsgd:hierarchical=true", "dpsgd:hierarchical=true,order=adapt_then_combine"])
def test_a_node_is_one_learner(text):
    """All in one node: gradients are summed, nobody is left to average with, so it is the loop with the whole batch."""
    record = SIMULATED.run(Steps(parse(text), Golden(), steps=4, batch=8), NODES_OF_8, workers=4)
    for result in record.results:
        assert all(map(torch.equal, result["weights"], plain_loop(Golden(), steps=4, batch=8)))


def test_a_node_is_one_asynchronous_learner():
    record = SIMULATED.run(Steps(ADPSGD(hierarchical=True), Golden(), steps=4, batch=8), NODES_OF_8, workers=4)
    for result in record.results:
        assert all(map(torch.equal, result["weights"], plain_loop(Golden(), steps=4, batch=8)))


@pytest.mark.parametrize("text", ["dpsgd:hierarchical=true", "adpsgd:hierarchical=true,averages_per_step=1"])
def test_members_of_a_node_share_a_model_and_only_leaders_use_the_wires_between(text):
    models = {}
    task, strategy = Plain(), parse(text)

    def main(ctx):
        worker = strategy.bind(ctx, task)
        batches = task.batches(ctx.rank, 20, 20, 0)
        for _ in range(3):
            worker.step(batches)
        models[ctx.rank] = next(iter(worker.model.parameters())).detach().clone()
        worker.finish()
        worker.close()

    record = SimulatedEngine(Constant(20e-6)).run(main, NODES_OF_8, workers=20)
    nodes = Placement(NODES_OF_8, 20).nodes
    for rank in range(20):
        assert torch.equal(models[rank], models[nodes.index(nodes[rank])])
    assert not torch.equal(models[0], models[8])
    between = {op.peers for log in record.logs for op in log.ops if op.kind in ("send", "recv")}
    assert {rank for peers in between for rank in peers} == {0, 8, 16}


@pytest.mark.parametrize("graph", GRAPHS)
def test_hierarchical_traffic_is_that_of_the_cost(graph):
    strategy, task = DPSGD(graph=graph, hierarchical=True), Golden()
    record = SIMULATED.run(Steps(strategy, task, steps=2, batch=16), NODES_OF_8, workers=12)
    cost = strategy.cost(task_workload(task), Placement(NODES_OF_8, 12), 16)
    for log, sent in zip(record.logs, cost.sent, strict=True):
        ops = [op for op in log.ops if log.steps[0].begin <= op.posted < log.steps[-1].end]
        assert (sum(op.nbytes for op in ops) / 2, sum(op.messages for op in ops) / 2) == (sent.nbytes, sent.messages)


# What remains of the suite's checks


@pytest.mark.parametrize("text", ["dpsgd", "dpsgd:graph=uniform", "adpsgd", "adpsgd:steps_per_average=1"])
@pytest.mark.parametrize("workers", [2, 3, 5])
def test_unused_frozen_and_tied_parameters(text, workers):
    """The gradients of this task do not depend on the model, so the mean of all models is that of one process."""
    results = train(SIMULATED, parse(text), Golden(awkward=True), workers)
    for result in results:
        torch.testing.assert_close(result["weights"], plain_loop(Golden(awkward=True), steps=4, batch=8))


@pytest.mark.parametrize(
    "text", ["dpsgd", "dpsgd:graph=uniform,hierarchical=true", "adpsgd", "adpsgd:steps_per_average=1"]
)
def test_a_loss_that_is_not_finite_ends_the_run(text):
    main = Training(strategy=parse(text), task=Exploding(rank=1, step=2), steps=5, batch=6)
    with pytest.raises(NotFinite, match="worker 1 became inf in step 2"):
        SimulatedEngine(Constant(20e-6)).run(main, CLUSTER, workers=3)


def test_statistics_in_buffers_are_averaged_at_the_end():
    class Counting(Curve):
        def model(self, seed):
            model = super().model(seed)
            model.append(nn.BatchNorm1d(2))
            return model

    for text in ("dpsgd", "adpsgd"):
        found = []

        def main(ctx, text=text, found=found):
            worker = parse(text).bind(ctx, Counting())
            batches = Counting().batches(ctx.rank, 3, 12, 3)
            for _ in range(3):
                worker.step(batches)
            before = worker.model[-1].running_mean.clone()
            worker.finish()
            worker.close()
            found.append((before, worker.model[-1].running_mean.clone()))

        SIMULATED.run(main, CLUSTER, workers=3)
        mean = torch.stack([before for before, _ in found]).mean(0)
        assert not torch.equal(found[0][0], found[1][0])
        for _, after in found:
            torch.testing.assert_close(after, mean)


@pytest.mark.parametrize("ended", [3, 5, 7])
@pytest.mark.parametrize(
    ("text", "workers"),
    [("adpsgd", 2), ("adpsgd", 5), ("adpsgd:graph=ring,steps_per_average=1", 3), ("adpsgd:averages_per_step=1", 5)],
)
def test_a_run_saved_between_exchanges_goes_on_bit_for_bit(text, workers, ended, tmp_path):
    """Computing takes time, so that lanes are in an exchange, at another place each time, when the run is saved."""
    engine = SimulatedEngine(Constant(20e-6))
    whole = train_saved(text, tmp_path / "whole", 8, workers=workers, task=Noisy(), engine=engine)
    train_saved(text, tmp_path / "ended", ended, workers=workers, task=Noisy(), engine=engine)
    path = latest(tmp_path / "ended")
    resumed = train_saved(text, tmp_path / "ended", 8, workers=workers, task=Noisy(), engine=engine, resume=path)
    begins = whole.logs[0].steps[ended - 1].begin
    averaged = [op.posted for log in whole.logs for op in log.ops if op.lane == "averaging" and op.kind == "send"]
    assert min(averaged) < begins < max(averaged)
    assert history(resumed) == history(whole)


def test_what_cannot_be_is_refused():
    for text in ("dpsgd:graph=torus", "dpsgd:consensus_every=-1", "adpsgd:averages_per_step=0", "adpsgd:graph=uniform"):
        with pytest.raises(StrategyError):
            parse(text)

    class Mixed(Curve):
        def model(self, seed):
            model = super().model(seed)
            model[2].double()
            return model

    with pytest.raises(StrategyError, match="one data type"):
        run(SIMULATED, Steps(ADPSGD(), Mixed(), 1, 4), 2)


# Real processes


@dataclass(frozen=True, kw_only=True)
class Mortal(Digits):
    """Digits, on which some workers' processes are killed in some step."""

    victims: tuple[int, ...] = (2,)
    step: int = 6

    def batches(self, rank, num_workers, batch, seed):
        batches = super().batches(rank, num_workers, batch, seed)
        return Killing(batches, self.step) if rank in self.victims else batches


class Killing:
    def __init__(self, batches, step):
        self._batches, self._left = batches, step

    def take(self, num_samples=None):
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        return self._batches.take(num_samples)


@pytest.mark.multi
@pytest.mark.parametrize(("text", "victim"), [("adpsgd", 1), ("adpsgd:graph=ring,steps_per_average=1", 0)])
def test_a_dead_peer_does_not_stop_the_others(text, victim):
    main = Training(strategy=parse(text), task=Mortal(victims=(victim,)), steps=30, batch=64)
    record = real_engine().run(main, load_cluster("local"), workers=4)
    assert list(record.lost) == [victim] and "SIGKILL" in record.lost[victim]
    assert record.results[victim] is None
    for rank in {0, 1, 2, 3} - {victim}:
        assert np.isfinite(record.results[rank]["losses"]).all() and len(record.results[rank]["losses"]) == 30
        assert "consensus_distance" in record.logs[rank].counts  # it was there when the models were averaged


@pytest.mark.multi
def test_workers_of_unlike_speed_end_cleanly():
    main = Training(strategy=ADPSGD(), task=Uneven(), steps=10, batch=32)
    record = real_engine().run(main, load_cluster("local"), workers=3)
    assert [len(result["losses"]) for result in record.results] == [10] * 3
    assert record.logs[0].counts["exchanges"] + record.logs[2].counts["exchanges"] > 0


class Uneven(Digits):
    """The last worker takes its time."""

    def batches(self, rank, num_workers, batch, seed):
        import time

        batches = super().batches(rank, num_workers, batch, seed)
        take = batches.take

        def slowly(num_samples=None):
            time.sleep(0.05 * rank)
            return take(num_samples)

        batches.take = slowly
        return batches
