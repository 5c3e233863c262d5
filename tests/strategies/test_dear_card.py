"""What must hold of DeAR (Zhang et al., ICDCS 2023, arXiv 2302.12445), simulated; the numbers are those of its card."""

import functools
import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.collectives.messages import whole
from geartrain.collectives.ring import all_gather_in_place, reduce_scatter_in_place, ring_all_reduce
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import NotFinite, RunError, StrategyError
from geartrain.models import get_workload
from geartrain.runtime.loop import Training
from geartrain.runtime.targets import Targets
from geartrain.runtime.tracing import task_workload
from geartrain.runtime.worker import Task
from geartrain.strategies import parse
from geartrain.strategies.dear import DeAR
from geartrain.strategies.dear_cost import Groups, fused_step, ideal_gain, ideal_step, timeline
from geartrain.tasks.workload_task import WorkloadTask
from tests.conformance.cases import SIMULATED, real_engine
from tests.conformance.harness import CLUSTER, Steps, run, sent_per_step, train
from tests.conformance.tasks import Curve, Exploding, Golden
from tests.strategies.test_ps_p2p_ring_card import Layers, cost, simulate, step_time

# Group's constants for clusters of 64 GPUs, T = a + b * bytes: (a, b).
TEN_GIGABIT, INFINIBAND = (7.043e-3, 0.964e-9), (0.806e-3, 0.589e-9)
RESNET50 = ("resnet50", 253.1, 64)  # samples per second alone, samples per worker: the card of the survey, read


@dataclass(frozen=True)
class Deep(Task):
    """Linear layers without biases, so that a module is a tensor; the optimizer is chosen."""

    name = "deep"
    source = "made for tests"

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    adam: bool = False

    def model(self, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = [(3, 9), (9, 7), (7, 11), (11, 2)]
            layers = [layer for size in sizes for layer in (nn.Linear(*size, bias=False), nn.Tanh())]
            return nn.Sequential(*layers[:-1])

    def optimizer(self, params):
        if self.adam:
            return torch.optim.Adam(params, lr=0.01)
        settings = {"momentum": self.momentum, "nesterov": self.nesterov, "weight_decay": self.weight_decay}
        return torch.optim.SGD(params, lr=0.1, **settings)

    def loss(self, model, batch):
        return nn.functional.mse_loss(model(batch.inputs), batch.targets)

    def metric(self, model):
        return {"sum": sum(float(p.detach().sum()) for p in model.parameters())}

    def batches(self, rank, num_workers, batch, seed):
        return Curve().batches(rank, num_workers, batch, seed)


def equal(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def weights(text, task, workers=4, **options):
    return train(SIMULATED, parse(text), task, workers, **options)[0]["weights"]


OPTIMIZERS = [
    Deep(),
    Deep(momentum=0.9),
    Deep(momentum=0.9, nesterov=True, weight_decay=0.01),
    Deep(adam=True),
]


# 1, 2


@pytest.mark.parametrize("task", OPTIMIZERS, ids=["plain", "momentum", "nesterov", "adam"])
def test_1_weights_are_those_of_synchronous_to_the_bit_with_the_same_order_of_sums(task):
    reference = weights("synchronous:bucket_size=none,exchange=ring", task, steps=6)
    assert equal(weights("dear:threshold=none,exchange=ring", task, steps=6), reference)
    reference = weights("synchronous:bucket_size=1B,exchange=ring", task, steps=6)
    assert equal(weights("dear:neighbours=1,exchange=ring", task, steps=6), reference)


@pytest.mark.parametrize("text", ["dear", "dear:neighbours=1", "dear:neighbours=2,exchange=measured"])
def test_1_weights_are_those_of_synchronous_to_rounding_else(text):
    task = Deep(momentum=0.9, weight_decay=0.01)
    for mine, other in zip(weights(text, task, steps=6), weights("synchronous", task, steps=6), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_2_one_group_and_many_give_the_same_weights():
    one, *others = (
        weights(f"dear:{grouping}", Deep(momentum=0.5), 2, steps=6)
        for grouping in ("threshold=none", "neighbours=1", "neighbours=3", "threshold=300B", "exchange=ring")
    )
    assert all(equal(one, other) for other in others)


# 3


@pytest.mark.parametrize("numel", [1, 4, 5, 31])
def test_3_a_scatter_and_a_gather_are_an_all_reduce_to_the_bit(numel):
    def main(ctx):
        flat = torch.randn(numel, generator=torch.Generator().manual_seed(ctx.rank))
        other = flat.clone()
        reduce_scatter_in_place(flat, whole(ctx.workers), 1)
        all_gather_in_place(flat, whole(ctx.workers), 1)
        ring_all_reduce(other, ctx.workers)
        return torch.equal(flat, other)

    assert all(SIMULATED.run(main, CLUSTER, workers=4).results)


@pytest.mark.parametrize("text", ["dear:neighbours=1", "dear:neighbours=1,exchange=ring"])
def test_3_sizes_that_do_not_divide(text):
    """27, 63, 77 and 22 elements on 5 workers."""
    assert equal(weights(text, Golden(), 5, batch=16), weights("synchronous", Golden(), 5, batch=16))
    for mine, other in zip(weights(text, Deep(), 5), weights("synchronous", Deep(), 5), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


# 4


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_4_bytes_are_those_of_an_all_reduce_and_padding(workers):
    task, steps = Deep(), 3

    def sent(text):
        record = run(SIMULATED, Steps(parse(text), task, steps, 2 * workers), workers)
        return [traffic.nbytes for traffic in sent_per_step(record, steps, 1)]

    ring = sent("synchronous:bucket_size=1B,exchange=ring")
    assert sent("dear:neighbours=1,exchange=ring") == ring
    groups, padding = 4, 4 * workers
    for mine, other in zip(sent("dear:neighbours=1"), ring, strict=True):
        # A share of a ring's may be one element longer or shorter than the mean: as much as padding is.
        assert abs(mine - other) < 2 * groups * padding
    assert sum(ring) <= sum(sent("dear:neighbours=1")) < sum(ring) + 2 * groups * padding * workers


@pytest.mark.parametrize("workers", [2, 3, 5])
@pytest.mark.parametrize("text", ["dear:neighbours=1", "dear:threshold=300B", "dear:neighbours=3,exchange=ring"])
def test_4_bytes_and_messages_of_many_groups_are_those_of_the_cost(text, workers):
    strategy, task = parse(text), Deep()
    record = run(SIMULATED, Steps(strategy, task, 3, 2 * workers), workers)
    expected = strategy.cost(task_workload(task), Placement(CLUSTER, workers), 2 * workers).sent
    assert sent_per_step(record, 3, 1) == list(expected)


# 5


@pytest.mark.parametrize("text", ["dear:neighbours=1", "dear:neighbours=2,exchange=ring"])
def test_5_before_it_is_settled_the_last_update_is_missing(text):
    steps, task = 4, Deep(momentum=0.9)

    def main(ctx):
        worker = parse(text).bind(ctx, task)
        batches = task.batches(ctx.rank, ctx.num_workers, 8, seed=3)
        for _ in range(steps):
            worker.step(batches)
        behind = [p.detach().clone() for p in worker.model.parameters()]
        worker.settle()
        current = [p.detach().clone() for p in worker.model.parameters()]
        worker.finish()
        again = [p.detach().clone() for p in worker.model.parameters()]
        worker.close()
        return behind, current, again

    behind, current, again = SIMULATED.run(main, CLUSTER, workers=2).results[0]
    assert equal(behind, weights("synchronous", task, 2, steps=steps - 1))
    assert equal(current, weights("synchronous", task, 2, steps=steps))
    assert equal(again, current)


# 6


def test_6_the_gain_over_wait_free_backpropagation_in_the_ideal_model():
    gains = [ideal_gain(k / 100) for k in range(1, 4000)]
    assert min(gains) >= 1 and max(gains) == ideal_gain(4.0) == 1.25
    assert ideal_gain(2.0) == 1 and ideal_gain(1e6) == pytest.approx(1, abs=1e-5)
    assert ideal_step("dear", 1, 2, 0) == ideal_step("wfbp", 1, 2, 0) == ideal_step("priority", 1, 2, 0) == 3
    assert ideal_step("priority", 1, 2, 4) == 4 and ideal_step("wfbp", 1, 2, 4) == 5


def grouped(all_reduces, gathered):
    """Groups of one layer each; a share of their all-reduces behind the next forward."""
    count = len(all_reduces)
    return Groups(
        layers=[[k] for k in range(count)],
        scatter=[(1 - gathered) * seconds for seconds in all_reduces],
        gather=[gathered * seconds for seconds in all_reduces],
        update=[0.0] * count,
    )


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 1.0, 2.0, 3.0, 4.0, 10.0])
def test_6_alike_groups_are_never_slower_than_whole_all_reduces(count, seconds):
    forward, backward = [1.0] * count, [2.0] * count
    mine = timeline(forward, backward, grouped([seconds] * count, 0.5)).seconds
    whole_ones = timeline(forward, backward, grouped([seconds] * count, 0.0)).seconds
    rounding = 1e-9
    assert 3 * count <= mine <= whole_ones + rounding and whole_ones <= 1.25 * mine + rounding
    assert seconds or mine == 3 * count
    if count > 1:  # at least the first group's halves are exposed
        assert mine >= 3 * count + seconds - 1e-9
    assert mine >= ideal_step("dear", count, 2 * count, count * seconds) - 1e-9


def test_6_unlike_groups_may_be_slower():
    """The card's claim for equal groups needs them alike: here all gradients lie in the last layer, as with a large
    classifier. Backward would have hidden its all-reduce; the forward before it, which gathers, is too short.
    """
    forward, backward = [1.0, 0.1], [2.0, 0.2]
    split = timeline(forward, backward, grouped([0.0, 2.0], 0.5))
    assert split.seconds == pytest.approx(3.3)
    forward, backward = [0.1, 1.0], [2.0, 0.2]
    split, together = (timeline(forward, backward, grouped([0.0, 2.0], share)).seconds for share in (0.5, 0.0))
    assert (split, together) == (pytest.approx(4.2), pytest.approx(3.3))


# 7


def best_threshold(startup, per_byte):
    grid = [1e6 * 10 ** (k / 10) for k in range(21)]
    times = [fused_step("dear", *RESNET50, startup, per_byte, threshold) for threshold in grid]
    least = min(times)
    return grid[times.index(least)], times[0] / least, times[-1] / least


def test_7_the_best_threshold_lies_inside_and_grows_with_latency():
    ten = best_threshold(*TEN_GIGABIT)
    assert 1e6 < ten[0] < 100e6 and min(ten[1:]) > 1.1
    places = [best_threshold(factor * TEN_GIGABIT[0], TEN_GIGABIT[1])[0] for factor in (0.0, 0.1, 1.0, 3.0)]
    assert places == sorted(places) and places[0] < places[2] <= places[3]
    assert best_threshold(*INFINIBAND)[0] < ten[0]


# 8: the tuner by itself is in tests/runtime/test_tuner.py


def test_8_a_tuned_run_finds_a_threshold_close_to_the_best_of_a_grid():
    workload, workers = get_workload("resnet50"), 2
    cluster = load_cluster("ethernet-10g")
    wire = cluster.topology.wire.model_copy(update={"latency": 6e-3})
    cluster = cluster.model_copy(update={"topology": cluster.topology.model_copy(update={"wire": wire})})
    place = Placement(cluster, workers)
    chosen = []

    def main(ctx):
        worker = DeAR(tune=True).bind(ctx, WorkloadTask(workload))
        batches = WorkloadTask(workload).batches(ctx.rank, ctx.num_workers, 128, seed=0)
        for _ in range(57):
            begin = ctx.clock.now()
            worker.step(batches)
            seconds = ctx.clock.now() - begin
        chosen.append(worker.state_dict()["tuner"]["value"])
        worker.finish()
        worker.close()
        return seconds

    record = SimulatedEngine(Roofline()).run(main, cluster, workers=workers, meta=True)
    assert len(set(chosen)) == 1  # worker 0's choice holds for all
    grid = [round(1e6 * 10 ** (k / 10)) for k in range(21)]
    times = [DeAR(threshold=size).cost(workload, place, 128).step_time for size in grid]
    assert max(times) > 1.2 * min(times)
    assert record.results[0] <= 1.03 * min(times)


# Closed form


@pytest.mark.parametrize("text", ["dear", "dear:threshold=5MB", "dear:threshold=none", "dear:exchange=measured"])
@pytest.mark.parametrize("cluster", ["ethernet-10g", "ethernet-100g"])
def test_the_closed_form_is_the_simulation(text, cluster):
    """Nothing contends and shares divide: what is left is the price of a queue."""
    strategy, workload = parse(text), get_workload("resnet50")
    training = Training(strategy=strategy, task=WorkloadTask(workload), steps=4, batch=256)
    record = SimulatedEngine(Roofline()).run(training, load_cluster(cluster), workers=8, meta=True)
    expected = strategy.cost(workload, Placement(load_cluster(cluster), 8), 256)
    assert step_time(record) == pytest.approx(expected.step_time, rel=1e-9)


@pytest.mark.parametrize("text", ["dear:neighbours=1", "dear:neighbours=3,exchange=ring", "dear:threshold=600kB"])
def test_simulated_steps_of_a_real_task_take_what_the_cost_says(text):
    task, workers, batch = Layers(), 4, 4 * 16_384
    simulated = step_time(simulate(text, workers, task, batch=batch, compute=Roofline(), steps=4))
    assert simulated == pytest.approx(cost(text, workers, task, batch).step_time, rel=1e-2)


def test_measured_takes_the_faster_and_the_cost_says_what_it_assumes():
    task, workers = Deep(), 3
    expected = cost("dear:exchange=measured", workers, task, 6)
    assert any("ring for 0 group(s)" in note for note in expected.notes)
    record = run(SIMULATED, Steps(parse("dear:exchange=measured"), task, 3, 6), workers)
    assert sent_per_step(record, 3, 1) == list(expected.sent)
    assert record.logs[0].steps[0].begin > 0  # timed before the first step


# On the way: evaluation, checkpoints, losses that are not finite, tuning


@pytest.mark.parametrize("text", ["dear:neighbours=1", "dear:neighbours=1,exchange=ring"])
def test_an_evaluation_on_the_way_sees_settled_weights_and_changes_nothing(text):
    def results(strategy, targets=None):
        training = Training(strategy=parse(strategy), task=Deep(momentum=0.9), steps=5, batch=8, targets=targets)
        return SIMULATED.run(training, CLUSTER, workers=2).results[0]

    every = Targets(evaluate_every=2)
    watched, plain, reference = results(text, every), results(text), results("synchronous", every)
    assert watched["evaluations"] == reference["evaluations"] and len(watched["evaluations"]) == 2
    assert watched["losses"] == plain["losses"] == reference["losses"]
    assert watched["metric"] == plain["metric"] == reference["metric"]


@pytest.mark.parametrize("engine", [SIMULATED, pytest.param(None, marks=pytest.mark.multi)], ids=["simulated", "real"])
def test_a_loss_that_is_not_finite_stops_the_others_one_step_later(engine):
    training = Training(strategy=parse("dear:neighbours=1"), task=Exploding(rank=1, step=2), steps=6, batch=6)
    if engine is None:
        with pytest.raises(NotFinite, match="worker 1 became inf in step 2"):
            real_engine().run(training, CLUSTER, workers=3)
        return
    ends = {}

    def main(ctx):
        try:
            ends[ctx.rank] = training(ctx)
        except NotFinite as error:
            ends[ctx.rank] = error

    engine.run(main, CLUSTER, workers=3)
    assert (ends[1].rank, ends[1].step) == (1, 2)
    assert ends[0]["stopped"] == ends[2]["stopped"] == 3


def test_regrouping_while_training_keeps_the_optimizer_and_the_weights():
    """Fifty-seven steps: tuning tries all its thresholds, and ends."""
    task = Deep(momentum=0.9)
    tuned = weights("dear:threshold=1MB,tune=true", task, 2, steps=57)
    assert equal(tuned, weights("synchronous", task, 2, steps=57))


def test_measured_goes_on_from_what_was_saved():
    task, strategy = Deep(adam=True), parse("dear:neighbours=1,exchange=measured")
    saved = train(SIMULATED, strategy, task, 2, steps=2)
    main = Steps(strategy, task, 3, 8, tuple(result["state"] for result in saved))
    rest = run(SIMULATED, main, 2).results
    assert equal(rest[0]["weights"], weights(str(strategy), task, 2, steps=5))


# Models whose modules do not run in order, or not by themselves


class Odd(nn.Module):
    """Modules in another order than registered, one twice, one never, and a list that never runs by itself."""

    def __init__(self, sometimes=False):
        super().__init__()
        self.last = nn.Linear(3, 2, bias=False)
        self.never = nn.Linear(3, 3)
        self.first = nn.Linear(3, 3)
        self.factors = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))])
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)
        self.sometimes = sometimes
        self.calls = 0

    def forward(self, inputs):
        hidden = self.first(self.first(inputs).tanh())
        if not self.sometimes or self.calls:
            hidden = hidden + self.factors[0]  # keeps nothing for backward, which would notice
        self.calls += 1
        hidden = hidden + self.attention(hidden[:, None], hidden[:, None], hidden[:, None])[0][:, 0]
        return self.last(hidden)


class Oddly(Deep):
    """`Odd`, trained."""

    def __init__(self, sometimes=False):
        super().__init__(momentum=0.9)
        object.__setattr__(self, "sometimes", sometimes)

    def model(self, seed):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Odd(self.sometimes)


@pytest.mark.parametrize("text", ["dear:neighbours=1", "dear:neighbours=2", "dear:neighbours=1,exchange=ring"])
def test_modules_in_another_order_used_twice_never_or_only_by_another_one(text):
    assert equal(weights(text, Oddly(), 2, steps=5), weights("synchronous", Oddly(), 2, steps=5))


def test_a_parameter_that_only_later_steps_read_behind_the_back_of_its_module_is_refused():
    with pytest.raises(RunError, match=r"factors\.0 was used in forward while its update was pending"):
        train(SIMULATED, parse("dear:neighbours=1"), Oddly(sometimes=True), 2, steps=3)


def test_no_hook_is_left_on_a_module():
    def main(ctx):
        worker = parse("dear:neighbours=1").bind(ctx, Oddly())
        batches = worker_batches(ctx)
        worker.step(batches)
        hooked = sum(len(module._forward_pre_hooks) for module in worker.model.modules())
        worker.finish()
        worker.close()
        return hooked, sum(len(module._forward_pre_hooks) for module in worker.model.modules())

    worker_batches = functools.partial(lambda ctx: Deep().batches(ctx.rank, ctx.num_workers, 8, 3))
    for hooked, left in SIMULATED.run(main, CLUSTER, workers=2).results:
        # first, never, last and the attention own parameters; its projection and the list do not run by themselves
        assert hooked >= 4 and left == 0


# Settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dear:neighbours=2,threshold=1MB", "give neighbours alone"),
        ("dear:neighbours=2,tune=true", "give neighbours alone"),
        ("dear:threshold=none,tune=true", "between 1 MB and 100 MB"),
        ("dear:threshold=200MB,tune=true", "between 1 MB and 100 MB"),
        ("dear:neighbours=0", "too small"),
    ],
)
def test_settings_that_say_two_things_are_refused(text, words):
    with pytest.raises(StrategyError, match=words):
        parse(text)


def test_an_optimizer_that_looks_at_all_gradients_is_refused():
    class Whole(Deep):
        def optimizer(self, params):
            return torch.optim.LBFGS(params)

    with pytest.raises(StrategyError, match="LBFGS looks at all gradients at once"):
        train(SIMULATED, parse("dear"), Whole(), 2, steps=1)


@pytest.mark.multi
def test_real_processes_send_the_bytes_of_the_cost_with_our_halves():
    """Of the whole run: when a lane posts what, beside a step that ends, is nobody's to say on a real clock."""
    strategy, task, steps = parse("dear:neighbours=1,exchange=ring"), Deep(), 3
    record = run(real_engine(), Steps(strategy, task, steps, 6), 3)
    assert equal(record.results[0]["weights"], weights(str(strategy), task, 3, steps=steps, batch=6))
    expected = strategy.cost(task_workload(task), Placement(CLUSTER, 3), 6).sent
    for log, traffic in itertools.zip_longest(record.logs, expected):
        messages = [op for op in log.ops if op.lane == "halves"]
        assert sum(op.nbytes for op in messages) == steps * traffic.nbytes
        assert sum(op.messages for op in messages) == steps * traffic.messages
