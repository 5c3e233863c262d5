"""What must hold for SPP, item by item of its card; and what its pipelines give, beside those of PyTorch."""

import functools
import itertools
import random
from dataclasses import dataclass

import pytest
import tomlkit
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

from geartrain.cluster import Placement
from geartrain.cluster.load import parse_cluster
from geartrain.cluster.overrides import NodeOverride, Overrides
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import GeartrainError, NotFinite, StrategyError, TaskError
from geartrain.parallel.list_order import Channel, Times, list_order, replay
from geartrain.parallel.ordering import min_cut_order
from geartrain.parallel.partition import parse_plan
from geartrain.parallel.planning import UniformPrices, partition
from geartrain.parallel.schedule_table import Block, ScheduleTable
from geartrain.record.means import mean_step
from geartrain.record.split import split
from geartrain.runtime.loop import Training
from geartrain.runtime.targets import Targets
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from geartrain.strategies.spp import SPP
from geartrain.strategies.spp_cost import PipelinePrices
from geartrain.tasks.characters import Characters
from geartrain.tasks.digits import Digits
from tests.conformance.cases import real_engine
from tests.conformance.harness import CLUSTER, Steps, plain_loop, planned, predicted, run, sent_per_step, train
from tests.conformance.tasks import Chain, Golden
from tests.parallel.pipelines import Deep, poisoned

ENGINE = SimulatedEngine(Roofline())


def times(forward, backward, channel=0.0, *, sums=None, duplex=False):
    """Of stages with channels alike."""
    channels = (Channel(channel, channel),) * (len(forward) - 1)
    sums = tuple(sums or (0.0,) * len(forward))
    return Times(forward=tuple(forward), backward=tuple(backward), channels=channels, sums=sums, duplex=duplex)


# 1


def test_worked_examples_of_list_ordering():
    assert list_order(times([1] * 4, [2] * 4), 8).total == 33
    assert list_order(times([1] * 2, [2] * 2, 0.5), 4).total == 16
    assert list_order(times([1, 2, 1], [2, 4, 2], 0.5), 6).total == 40


def random_times(draw, stages, *, duplex):
    channels = tuple(Channel(draw.uniform(0, 2), draw.uniform(0, 2)) for _ in range(stages - 1))
    forward, backward, sums = (tuple(draw.uniform(0, 2) for _ in range(stages)) for _ in range(3))
    return Times(forward=forward, backward=backward, channels=channels, sums=sums, duplex=duplex)


@pytest.mark.parametrize("duplex", [False, True])
def test_list_ordering_is_within_its_bounds(duplex):
    draw = random.Random(4)
    for _ in range(300):
        stages, count = draw.randint(2, 6), draw.randint(1, 16)
        given = random_times(draw, stages, duplex=duplex)
        total = list_order(given, count).total
        assert count * given.bottleneck <= total + 1e-9
        assert total <= given.bound(count) + 1e-9


# 2


def rows(stage, count):
    """All orders of a stage's blocks in which micro-batches, which are alike, come in their order."""
    for places in itertools.combinations(range(2 * count), count):
        row, forward, backward = [], 0, 0
        for index in range(2 * count):
            if index in places:
                row.append(Block("F", stage, forward))
                forward += 1
            else:
                row.append(Block("B", stage, backward))
                backward += 1
            if backward > forward:
                break
        else:
            yield tuple(row)


def best_total(given, count):
    """The least time of any order; channels are full duplex, so that each carries blocks of one kind in their order."""
    stages = len(given.forward)
    least = float("inf")
    for chosen in itertools.product(*(list(rows(stage, count)) for stage in range(stages))):
        try:
            least = min(least, replay(ScheduleTable(chosen, stages, count), given).total)
        except StrategyError:  # all wait
            continue
    return least


def test_list_ordering_on_tiny_instances_is_within_the_bound_of_the_best_order():
    draw = random.Random(7)
    for stages, count in [(2, 2), (2, 3), (3, 2), (3, 3)] * 3:
        given = random_times(draw, stages, duplex=True)
        best, total = best_total(given, count), list_order(given, count).total
        assert best <= total + 1e-9 and total <= given.bound(count) + 1e-9


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_list_ordering_is_the_best_order_for_equal_stages(stages, count):
    for channel in (0.0, 0.5):
        given = times([1.0] * stages, [2.0] * stages, channel, duplex=True)
        assert list_order(given, count).total == pytest.approx(best_total(given, count))


# 3


def random_prices(draw):
    parts, devices = draw.randint(1, 6), draw.randint(1, 4)
    rates = [[0.0] * devices for _ in range(devices)]
    for a, b in itertools.combinations(range(devices), 2):
        rates[a][b] = rates[b][a] = draw.choice([1.0, 3.0, 10.0])
    numbers = ([float(draw.randint(1, 9)) for _ in range(parts)] for _ in range(5))
    return UniformPrices(*numbers, rates)


def compositions(total, count):
    for cuts in itertools.combinations(range(1, total), count - 1):
        yield [b - a for a, b in itertools.pairwise((0, *cuts, total))]


def objective(prices, order, sizes, replicas, count):
    """M C + A of a partition, straight from the card's equations."""
    bottleneck = summed = 0.0
    part = device = 0
    before = None
    for size, r in zip(sizes, replicas, strict=True):
        span, ranks = range(part, part + size), tuple(order[device : device + r])
        bottleneck = max(bottleneck, sum(prices.work(span, ranks)))
        summed = max(summed, prices.gradient_sum(span, ranks))
        if before:
            channel = prices.channel(part, before, ranks)
            bottleneck = max(bottleneck, channel.forward + channel.backward)
        before, part, device = ranks, part + size, device + r
    return count * bottleneck + summed


def test_dynamic_programming_equals_exhaustive_search():
    draw = random.Random(1)
    for _ in range(40):
        prices, count = random_prices(draw), draw.randint(1, 8)
        order = min_cut_order(prices.rates)
        for stages in range(1, min(prices.num_parts, prices.num_devices) + 1):
            plan, found = partition(prices, order, stages, count)
            least = min(
                objective(prices, order, sizes, replicas, count)
                for used in range(stages, prices.num_devices + 1)
                for sizes in compositions(prices.num_parts, stages)
                for replicas in compositions(used, stages)
            )
            assert found == pytest.approx(least)
            sizes, ranks = [s.parts[0] for s in plan.stages], [rank for s in plan.stages for rank in s.ranks]
            replicas = [len(stage.ranks) for stage in plan.stages]
            assert sorted(ranks) == sorted(order[: len(ranks)])
            assert objective(prices, order, sizes, replicas, count) == pytest.approx(found)


def test_without_replicas_every_stage_has_one_device():
    prices = UniformPrices([1.0] * 4, [2.0] * 4, [0.0] * 4, [0.0] * 4, [1.0] * 4, equal_rates(4))
    plan, _ = partition(prices, range(4), 2, 8, replicate=False)
    assert str(plan) == "2@0/2@1"
    plan, _ = partition(prices, range(4), 2, 8, idle=False)
    assert sum(len(stage.ranks) for stage in plan.stages) == 4


# 4


def equal_rates(devices, rate=5.0):
    return [[0.0 if a == b else rate for b in range(devices)] for a in range(devices)]


def island_rates(islands, fast=10.0, slow=1.0):
    """Rates between devices, given the island of each."""
    return [[0.0 if a == b else fast if one == other else slow for b, other in enumerate(islands)]
            for a, one in enumerate(islands)]  # fmt: skip


def test_order_of_equal_devices_stays_and_does_not_matter():
    assert min_cut_order(equal_rates(6)) == tuple(range(6))
    prices = UniformPrices([1.0, 2.0, 3.0, 1.0], [2.0, 3.0, 5.0, 2.0], [4.0] * 4, [4.0] * 4, [6.0] * 4, equal_rates(4))
    found = {partition(prices, order, 3, 6)[1] for order in itertools.permutations(range(4))}
    assert len(found) == 1


@pytest.mark.parametrize("islands", ["aabb", "abab", "abbaab", "aaabbbb", "abababababababab"])
@pytest.mark.parametrize("slow", [0.1, 4.0])
def test_islands_stay_together(islands, slow):
    """Sixteen devices go by Stoer and Wagner's cut, which for a wire not much slower peels off devices one by one."""
    order = min_cut_order(island_rates(islands, slow=slow))
    assert sorted(order) == list(range(len(islands)))
    assert sum(islands[a] != islands[b] for a, b in itertools.pairwise(order)) == 1


def test_ends_that_touch_have_a_fast_wire():
    """Two pairs; between 1 and 2 the wire is the fastest of the slow ones."""
    rates = [[0, 9, 1, 1], [9, 0, 1, 2], [1, 1, 0, 9], [1, 2, 9, 0]]
    assert min_cut_order(rates) == (0, 1, 3, 2)


# 5


def test_one_device_computes_all_micro_batches_one_after_another():
    assert list_order(times([3.0], [5.0]), 7).total == 7 * 8
    prices = UniformPrices([1.0, 2.0], [2.0, 3.0], [1.0] * 2, [1.0] * 2, [1.0] * 2, [[0.0]])
    assert partition(prices, (0,), 1, 7)[1] == 7 * 8


def test_one_stage_on_all_devices_is_data_parallelism():
    prices = UniformPrices([4.0, 4.0], [8.0, 8.0], [1.0] * 2, [1.0] * 2, [10.0] * 2, equal_rates(4))
    plan, found = partition(prices, range(4), 1, 2, idle=False)
    assert str(plan) == "2@0+1+2+3"
    assert found == 2 * 24 / 4 + 2 * 3 / 4 * 20 / 5


def test_thirty_layers_on_four_stages():
    draw = random.Random(3)
    numbers = [[draw.uniform(1, 2) for _ in range(30)] for _ in range(5)]
    plan, _ = partition(UniformPrices(*numbers, equal_rates(4, 50.0)), range(4), 4, 8)
    placed = [part for span in plan.pieces for part in span]
    assert placed == list(range(30)) and len(plan.stages) == 4


# 6

PLANS = [
    ("spp:plan=6@0", 1),
    ("spp:plan=2@0/4@1", 2),
    ("spp:plan=2@1/4@0,micro_batches=5", 2),
    ("spp:plan=6@0+1+2,micro_batches=2", 3),
    ("spp:plan=1@0+1/5@2", 3),
    ("spp:plan=3@0+2/2@1+3+4/1@5", 6),
    ("spp:plan=3@0/2@3/1@1,schedule=gpipe", 4),
    ("spp:plan=1@0/1@1/4@2,schedule=1f1b,micro_batches=6", 3),
    ("spp:plan=2.1@0/1.2@1,schedule=interleaved,chunks=2", 2),
    ("spp:plan=1.1@0+1/1.1@2+3+4/1.1@5,schedule=interleaved,chunks=2,micro_batches=3", 6),
    ("spp:schedule=interleaved,chunks=2,stages=2,replicate=false", 4),
]


@pytest.mark.parametrize(("text", "workers"), PLANS)
def test_every_plan_gives_the_weights_of_one_process_and_sends_what_the_cost_says(text, workers):
    """Micro-batches of unequal sizes too, and replicas with unequal shares; float64, so that only rounding differs."""
    record = run(ENGINE, Steps(parse(text), Deep(), steps=5, batch=16), workers)
    assert sent_per_step(record, 5, 1) == list(predicted(parse(text), Deep(), workers, batch=16))
    results = record.results
    losses = plain_losses(Deep(), steps=5, batch=16)
    for result in results:
        for mine, plain in zip(result["weights"], plain_loop(Deep(), steps=5, batch=16), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-10)
    first = parse(text).planned(task_workload(Deep()), Placement(CLUSTER, workers), 16)
    stage = first.plan.split("/")[0].split("@")[1]
    if "+" not in stage:  # who has the whole batch has its mean loss
        assert results[int(stage)]["losses"] == pytest.approx(losses)


def plain_losses(task, *, steps, batch):
    model, batches, losses = task.model(0), task.batches(0, 1, batch, 3), []
    optimizer = task.optimizer(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = task.loss(model, batches.take())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_whole_numbers_are_exact_on_one_worker():
    result = train(ENGINE, SPP(), Chain(), 1)[0]
    assert all(map(torch.equal, result["weights"], plain_loop(Golden(), steps=4, batch=8)))


@pytest.mark.multi
@pytest.mark.parametrize("text", ["spp:plan=2@0+1/4@2", "spp:plan=2.1@0/1.2@1,schedule=interleaved,chunks=2"])
def test_real_processes_give_the_weights_of_one_process(text):
    workers = 3 if "+" in text else 2
    for result in train(real_engine(), parse(text), Deep(), workers, steps=3, batch=16):
        for mine, plain in zip(result["weights"], plain_loop(Deep(), steps=3, batch=16), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-10, atol=1e-10)


@dataclass(frozen=True)
class Stock:
    """`main(ctx)`: the same pipeline by torch.distributed.pipelining, one half of the model on each of two ranks."""

    schedule: str

    def __call__(self, ctx):
        task = Deep()
        layers = list(task.model(0).children())
        half = nn.Sequential(*layers[3 * ctx.rank : 3 * ctx.rank + 3])
        stage = PipelineStage(half, ctx.rank, 2, ctx.device, group=ctx.workers)
        kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[self.schedule]
        schedule = kind(stage, 4, loss_fn=nn.functional.mse_loss)
        optimizer, batches = task.optimizer(half.parameters()), task.batches(0, 1, 16, 3)
        for _ in range(4):
            batch = batches.take()
            optimizer.zero_grad()
            schedule.step(batch.inputs) if ctx.rank == 0 else schedule.step(target=batch.targets)
            optimizer.step()
        return [p.detach().clone() for p in half.parameters()]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_tables_give_the_weights_of_pytorch_pipelines(schedule):
    stock = ENGINE.run(Stock(schedule), CLUSTER, workers=2).results
    mine = train(ENGINE, parse(f"spp:plan=3@0/3@1,schedule={schedule}"), Deep(), 2, steps=4, batch=16)[0]
    for one, other in zip(mine["weights"], [*stock[0], *stock[1]], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


# 7


def advantage(slow):
    """Time of the best plan in the order as devices are numbered / in the order of SPP: two islands, mixed up."""
    numbers = ([4.0] * 8, [8.0] * 8, [6.0] * 8, [6.0] * 8, [6.0] * 8)
    prices = UniformPrices(*numbers, island_rates("abab", slow=slow))
    return best(prices, range(4)) / best(prices, min_cut_order(prices.rates))


def best(prices, order):
    return min(partition(prices, order, stages, 8, idle=False)[1] for stages in range(1, 5))


def test_a_slower_link_makes_the_order_of_devices_matter_more():
    found = [advantage(slow) for slow in (10.0, 1.0, 0.5, 0.25)]
    assert found[0] == 1.0
    assert found == sorted(found) and found[-1] > 1.2


def test_many_micro_batches_hide_what_fills_and_drains():
    given = times([1.0, 2.0, 1.5], [2.0, 4.0, 3.0], 0.7, sums=[3.0, 1.0, 0.0])
    ratios = [list_order(given, count).total / (count * given.bottleneck) for count in (1, 4, 16, 64, 256)]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] < 1.02


# The closed form, and the loop around it


def sites(*places, slow="100 Mbit/s", fast="10 Gbit/s"):
    """A cluster of one wire for every pair of workers: fast ones within a place, slow ones between."""
    rates = [["-" if a == b else fast if one == other else slow for b, other in enumerate(places)]
             for a, one in enumerate(places)]  # fmt: skip
    latencies = [["-" if a == b else "50 us" for b in range(len(places))] for a in range(len(places))]
    device = {"name": "V100", "flops": {"fp32": "15.7 TFLOP/s", "fp64": "7.8 TFLOP/s"}, "memory": "16 GiB"}
    device |= {"memory_rate": "900 GB/s", "source": "chosen"}
    topology = {"kind": "matrix", "rate": rates, "latency": latencies}
    nodes = [{"name": "node", "count": len(places), "device": device}]
    tables = {"name": "sites", "summary": "made for tests", "source": "chosen", "nodes": nodes, "topology": topology}
    return parse_cluster(tomlkit.dumps(tables))


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("spp:stages=2,replicate=false", 2),
        ("spp:stages=2,idle=false", 4),
        ("spp:stages=1,idle=false,micro_batches=1", 4),
        ("spp:stages=4,schedule=gpipe,micro_batches=8", 4),
        ("spp:stages=3,schedule=1f1b,micro_batches=8", 4),
        ("spp:stages=2,schedule=interleaved,chunks=2,replicate=false", 2),
    ],
)
@pytest.mark.parametrize("places", ["aaaa", "abba"])
def test_simulated_steps_take_what_the_closed_form_says(text, workers, places):
    """To 2 %, where each pair has a wire of its own: wires that are shared are not in the form.

    Also, micro-batches add gradients up from the second on, and a stage begins its next step when it can.
    """
    place = Placement(sites(*places), workers)
    assert simulated_time(parse(text), place) == pytest.approx(form_of(parse(text), place), rel=0.02)


def form_of(strategy, place):
    return strategy.cost(traced(), place, 128).step_time


def simulated_time(strategy, place):
    main = Training(strategy=strategy, task=Digits(hidden=256), steps=4, batch=128, evaluate=False)
    workers, cluster = place.num_workers, place.cluster
    return mean_step(split(ENGINE.run(planned(main, cluster, workers), cluster, workers=workers))).step_time


@functools.cache
def traced():
    return task_workload(Digits(hidden=256))


def test_an_order_of_ones_own_says_how_many_stages_there_are():
    strategy = parse("spp:order=F2B2/FBFB,micro_batches=2").planned(task_workload(Deep()), Placement(CLUSTER, 3), 8)
    assert len(parse_plan(strategy.plan).stages) == 2 and strategy.order == "F2B2/FBFB"


def test_workers_alike_are_priced_once_and_the_slowest_replica_counts():
    slow = CLUSTER.model_copy(update={"overrides": Overrides(nodes=(NodeOverride(node=1, speed=0.5),))})
    prices = PipelinePrices(task_workload(Deep()), Placement(slow, 4), 16, 4, Roofline())
    quick, half, both = (prices.work(range(2), ranks) for ranks in ((0,), (1,), (2, 1)))
    assert prices.work(range(2), (3,)) == quick and half == (2 * quick[0], 2 * quick[1])
    assert both == PipelinePrices(task_workload(Deep()), Placement(slow, 4), 8, 4, Roofline()).work(range(2), (1,))
    assert len(prices._known) == 4  # on a whole micro-batch, and on halves of it


def test_memory_is_that_of_the_whole_model_and_of_one_stage_of_the_rest():
    memory = parse("spp:plan=2@0/4@1").cost(task_workload(Deep()), Placement(CLUSTER, 2), 16).memory
    stage = 8 * (4 * 30 - 18)  # parameters of the second stage, in float64
    assert memory["parameters"] == 8 * sum(p.numel() for p in Deep().model(0).parameters())
    assert (memory["gradients"], memory["optimizer"]) == (stage, 2 * stage)


def test_a_transformer_is_cut_where_the_cluster_says():
    strategy = SPP(stages=3, micro_batches=8).planned(task_workload(Characters()), Placement(CLUSTER, 3), 16)
    assert len(strategy.plan.split("/")) == 3 and parse(str(strategy)) == strategy
    assert strategy.planned(task_workload(Characters()), Placement(CLUSTER, 3), 16) == strategy


def test_a_pipeline_crosses_slow_wires_once():
    """Two places with every second worker each; stages in the order of ranks would cross at every boundary."""
    place, workload = Placement(sites(*"abab"), 4), traced()
    strategy, blind = SPP(stages=4, micro_batches=8), SPP(stages=4, micro_batches=8, ordering="given")
    stages = parse_plan(strategy.planned(workload, place, 128).plan).stages
    assert sum(a.ranks[0] % 2 != b.ranks[0] % 2 for a, b in itertools.pairwise(stages)) == 1
    assert blind.planned(workload, place, 128).plan == "1@0/1@1/1@2/1@3"
    form, simulated = ([seconds(one, place) for one in (blind, strategy)] for seconds in (form_of, simulated_time))
    assert simulated[0] / simulated[1] == pytest.approx(form[0] / form[1], rel=0.03)
    assert simulated[0] / simulated[1] > 1.2


def test_evaluation_on_the_way_sees_all_stages():
    strategy = parse("spp:stages=3,replicate=false")
    main = Training(strategy=strategy, task=Deep(), steps=4, batch=16, targets=Targets(evaluate_every=2), seed=3)
    result = run(ENGINE, main, 3).results[0]
    model, batches, found = Deep().model(0), Deep().batches(0, 1, 16, 3), []
    optimizer = Deep().optimizer(model.parameters())
    for _ in range(4):
        optimizer.zero_grad()
        Deep().loss(model, batches.take()).backward()
        optimizer.step()
        found.append(Deep().metric(model)["error"])
    assert [metrics["error"] for _, metrics in result["evaluations"]] == pytest.approx([found[1], found[3]])
    assert result["metric"]["error"] == pytest.approx(found[3])


@pytest.mark.parametrize(("text", "workers"), [("spp:plan=2@0+1/4@2", 3), ("spp:plan=2@1/4@2", 4)])
def test_a_loss_that_is_not_finite_stops_every_stage_in_the_same_step(text, workers):
    """Workers without a stage stop too."""
    order = Deep().batches(0, 1, 16, 3)
    bad = torch.randn(60, 3, generator=torch.Generator().manual_seed(1)).double()[0]  # sample 0 of the data
    step = next(k for k in range(3) if (order.take().inputs == bad).all(1).any())
    ends = {}

    def main(ctx):
        try:
            ends[ctx.rank] = training(ctx)["stopped"]
        except NotFinite as error:
            ends[ctx.rank] = error.step

    task = poisoned(Deep(), 0)
    place = Placement(CLUSTER, workers)
    strategy = parse(text).planned(task_workload(task), place, 16)
    training = Training(strategy=strategy, task=task, steps=3, batch=16, seed=3)
    ENGINE.run(main, CLUSTER, workers=workers)
    assert ends == dict.fromkeys(range(workers), step)


# What is refused


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("spp:chunks=2", "an interleaved schedule has 2 or more"),
        ("spp:schedule=interleaved", "an interleaved schedule has 2 or more"),
        ("spp:schedule=interleaved,chunks=2,stages=1", "nothing to interleave"),
        ("spp:schedule=gpipe,order=FB", "is an order of its own"),
        ("spp:stages=3,plan=1@0/1@1", "unlike stages or chunks"),
        ("spp:stages=3,order=F4B4/F4B4", "is of 2 stage"),
        ("spp:plan=3@0,order=F4B4/F4B4", "is of 2 stage"),
        ("spp:order=F2B2/F2B2", "compute each of its blocks once"),
        ("spp:replicate=false,plan=1@0+1", "replicate=false excludes them"),
        ("spp:plan=1@0+0", "names one twice"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(text, words):
    with pytest.raises(StrategyError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("text", "workers", "batch", "words"),
    [
        ("spp:micro_batches=9", 2, 8, "cannot be cut into 9 micro-batches"),
        ("spp:stages=7", 8, 16, "cannot be laid on 8"),
        ("spp:stages=1,idle=false", 4, 8, "a sample per device"),
        ("spp:plan=3@0/2@1", 2, 16, "is for 5 part"),
        ("spp:plan=3@0/3@2", 2, 16, "2 worker"),
        ("spp:plan=3@0/3@1+2", 3, 7, "among 2 workers, and the smallest of 4 in a batch of 7 has 1 sample"),
        ("spp:stages=3", 2, 16, "3 stages need as many workers|cannot be laid"),
    ],
)
def test_plans_that_cannot_be_are_refused(text, workers, batch, words):
    with pytest.raises(StrategyError, match=words):
        parse(text).planned(task_workload(Deep()), Placement(CLUSTER, workers), batch)


def test_models_that_are_no_chain_are_refused():
    with pytest.raises(StrategyError, match="not known as a chain"):
        SPP().planned(task_workload(Golden()), Placement(CLUSTER, 2), 8)
    with pytest.raises(GeartrainError, match="bound without a plan"):
        ENGINE.run(Steps(SPP(), Deep(), 1, 8), CLUSTER, workers=2)

    class Crossed(Deep):
        def cuts(self):
            return ("0", "2", "1", "3", "4", "5")

    with pytest.raises(TaskError, match="are no chain"):
        task_workload(Crossed())
