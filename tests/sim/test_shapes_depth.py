"""Shapes alone: a walk recorded once and replayed everywhere gives the direct run's trace, to the last bit."""

from dataclasses import asdict
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from geartrain.cluster import load_cluster, parse_cluster
from geartrain.cluster.placement import Placement
from geartrain.compare.grid import Grid
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError, TaskError
from geartrain.models import get_workload
from geartrain.runtime.attach import attach
from geartrain.runtime.charging import uncharged
from geartrain.runtime.loop import Training
from geartrain.runtime.motion import copy
from geartrain.runtime.strategy import Needs
from geartrain.strategies import parse
from geartrain.strategies.synchronous import Synchronous
from geartrain.tasks import workload_task
from geartrain.tasks.workload_task import WorkloadTask
from geartrain.torch_private import gradient_hooks
from geartrain.workload.spec import UNUSED, Layer, Parameter, Workload
from tests.conformance import cases

STAR = load_cluster("ethernet-1g")
NODES = """
name = "mixed"
source = "chosen"
[[nodes]]
name = "old"
count = 2
devices_per_node = 2
device = { name = "old", memory = "16 GiB", memory_rate = "300 GB/s", flops = { fp32 = "5 TFLOP/s" }, source = "-" }
[[nodes]]
name = "new"
count = 8
device = { name = "new", memory = "16 GiB", memory_rate = "900 GB/s", flops = { fp32 = "15 TFLOP/s" }, source = "-" }
"""
TWO_LEVEL = NODES + (
    '[topology]\nkind = "two_level"\nwire = { rate = "10 Gbit/s", latency = "20 us" }\nnodes_per_switch = 2\n'
    'inner = { rate = "80 Gbit/s", latency = "3 us" }\noversubscription = 2\ncore_latency = "30 us"\n'
)
UNEVEN = NODES + (
    '[topology]\nkind = "star"\nwire = { rate = "10 Gbit/s", latency = "20 us" }\n'
    'inner = { rate = "80 Gbit/s", latency = "3 us" }\n'
    "[[overrides.nodes]]\nnode = 'all'\njitter = 0.2\n"
    "[[overrides.nodes]]\nnode = 1\nspeed = 0.3\nstraggler = { probability = 0.5, factor = 3 }\n"
)


def layer(name, *shapes, first, flop):
    parameters = tuple(Parameter(f"{name}.{letter}", shape, first + k) for k, (letter, shape) in enumerate(shapes))
    return Layer(name=name, parameters=parameters, forward_flop=flop, backward_flop=2 * flop, backward_fixed_bytes=flop)


# 1,201 elements, so that nothing divides; a layer in front without parameters, and a parameter that is never used.
WORKLOAD = Workload(
    name="uneven",
    source="chosen",
    layers=(
        Layer(name="input", forward_flop=1e7, backward_flop=1e7),
        layer("a", ("weight", (30, 11)), ("bias", (11,)), first=0, flop=3e8),
        Layer(name="between", forward_flop=1e6, backward_flop=1e6),
        layer("b", ("weight", (40, 20)), first=2, flop=5e8),
        Layer(name=UNUSED, parameters=(Parameter("c.weight", (7,), 3),), num_kernels=0, num_backward_kernels=0),
        layer("d", ("weight", (4, 10)), ("bias", (13,)), first=4, flop=2e8),
    ),
)


def history(record):
    """All that a run leaves but the real time it took."""
    return [asdict(log) for log in record.logs], record.results, record.link_bytes


def run(main, strategy, cluster, workers):
    services = parse(strategy).roles(workers).services
    return SimulatedEngine(Roofline()).run(main, cluster, workers=workers, services=services, seed=3, meta=True)


def both_ways():
    """The task whose ranks all walk, and the one whose ranks replay."""
    return WorkloadTask(WORKLOAD, recorded=False), WorkloadTask(WORKLOAD)


def train(strategy, cluster, workers, *, recorded, workload=WORKLOAD, steps=3, batch=None):
    task = WorkloadTask(workload, recorded=recorded)
    main = Training(strategy=parse(strategy), task=task, steps=steps, batch=batch or 4 * workers + 1)
    return run(main, strategy, cluster, workers)


# Methods that cut a model need its parts, which a workload of layers alone does not have.
SLOW = ("switchml", "adpsgd", "compressed:codec=qsgd")  # many messages or long cycles: five workers, not four as well
CELLS = [
    pytest.param(*cell, name, marks=[pytest.mark.slow] if name == "uneven" and cell[0].startswith(SLOW) else [])
    for name, counts in (("two_level", (1, 5)), ("uneven", (4,)))
    for cell in cases.cells("shapes_alone", *counts)
    if not parse(cell[0]).needs.ordered_model
]


@pytest.mark.parametrize(("strategy", "workers", "cluster"), CELLS)
def test_every_method_leaves_the_trace_of_the_direct_run(strategy, workers, cluster):
    cluster = parse_cluster({"two_level": TWO_LEVEL, "uneven": UNEVEN}[cluster])
    direct, replayed = [history(train(strategy, cluster, workers, recorded=recorded)) for recorded in (False, True)]
    assert replayed == direct
    assert any(log["steps"][-1]["end"] > 0 for log in direct[0])


def test_a_real_model_leaves_the_trace_of_the_direct_run():
    workload = get_workload("resnet50")
    runs = [
        history(train("synchronous", STAR, 4, recorded=recorded, workload=workload, steps=2))
        for recorded in (False, True)
    ]
    assert runs[0] == runs[1]


def test_a_role_is_recorded_once(monkeypatch):
    taken = []
    record = workload_task.record
    monkeypatch.setattr(workload_task, "record", lambda *args: taken.append(args[1]) or record(*args))
    train("synchronous", STAR, 7, recorded=True, batch=16)  # two ranks have a third sample
    assert len(taken) == 2


def loop(task, zero, samples=(3, 5)):
    """A loop of one's own, with what such loops do: accumulation, gradients gone or zero, a step that is free."""

    def main(ctx):
        model = task.model(0)
        if ctx.rank == 1:
            model.get_parameter("a.weight").requires_grad_(False)
        optimizer = task.optimizer(model.parameters())
        times = []
        for step in range(3):
            zero(optimizer)
            for count in samples:
                model(torch.empty(count, 1, device="meta")).backward()
                times.append(ctx.clock.now())
            if step == 1:
                with uncharged():
                    model(torch.empty(2, 1, device="meta")).backward()
            optimizer.step()
            times.append(ctx.clock.now())
        return times, [p.grad is None for p in model.parameters()]

    return run(main, "synchronous", STAR, 2)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_may_be_there_or_not(set_to_none):
    runs = [history(loop(task, lambda optimizer: optimizer.zero_grad(set_to_none))) for task in both_ways()]
    assert runs[0] == runs[1]
    assert runs[0][1][1][1] == [True, False, False, True, False, False]


def test_a_loop_with_hooks_on_gradients_walks_directly():
    def main(ctx, task):
        model = task.model(0)
        seen = []
        model.get_parameter("b.weight").register_hook(lambda gradient: seen.append((ctx.clock.now(), gradient.shape)))
        model(torch.empty(2, 1, device="meta")).backward()
        return seen, ctx.clock.now()

    runs = [history(run(partial(main, task=task), "single", STAR, 1)) for task in both_ways()]
    assert runs[0] == runs[1]
    seen, _ = runs[0][1][0]
    assert len(seen) == 1


def test_an_attached_loop_leaves_the_trace_of_the_direct_run():
    def main(ctx, task):
        model = task.model(0)
        optimizer = task.optimizer(model.parameters())
        with attach(parse("synchronous:bucket_size=2kB"), model, optimizer, ctx) as optimizer:
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.empty(2, 1, device="meta")).backward()
                optimizer.step()

    runs = [history(run(partial(main, task=task), "synchronous", STAR, 3)) for task in both_ways()]
    assert runs[0] == runs[1]


def test_a_gradient_taken_away_in_the_middle_is_refused():
    model = WorkloadTask(WORKLOAD).model(0)
    first, last = model.get_parameter("a.weight"), model.get_parameter("d.weight")
    for p in (first, last):
        p.grad = torch.empty_like(p)
    last.register_post_accumulate_grad_hook(lambda p: setattr(first, "grad", None))
    with pytest.raises(TaskError, match="recorded=False"):
        model(torch.empty(2, 1, device="meta")).backward()


@pytest.mark.slow
def test_many_ranks_take_what_the_closed_form_says():
    workload, place = get_workload("resnet50"), Placement(load_cluster("ethernet-100g"), 256)
    strategy = parse("synchronous")
    record = train("synchronous", place.cluster, 256, recorded=True, workload=workload, steps=2, batch=256 * 32)
    step = record.logs[0].steps[-1]
    cost = strategy.cost(workload, place, 256 * 32)
    assert step.end - step.begin == pytest.approx(cost.step_time, rel=0.01)
    assert sum(op.nbytes for op in record.logs[7].ops) == 2 * cost.sent[7].nbytes


def test_what_depends_on_numbers_is_refused(monkeypatch):
    monkeypatch.setattr(Synchronous, "needs", Needs(data_dependent=True))
    with pytest.raises(StrategyError, match="synchronous sends depends on the numbers"):
        train("synchronous", STAR, 2, recorded=True)
    grid = Grid(
        task=WorkloadTask(WORKLOAD),
        subject="uneven",
        workload=WORKLOAD,
        meta=True,
        strategies=[parse("parameter_server"), parse("synchronous")],
        clusters=[STAR],
        ranks=[2],
        engine=lambda cluster: SimulatedEngine(),
        engine_name="simulated",
        steps=1,
        batch=2,
    )
    with pytest.raises(StrategyError, match="--task"):
        grid.check()


@pytest.mark.parametrize("shape", [(0,), (3,), (4, 5)])
def test_a_copy_that_is_only_charged_costs_what_a_copy_does(shape):
    def main(ctx, move):
        target, source = torch.empty(shape, device=ctx.device), torch.empty(shape, device=ctx.device)
        move(target, source)
        return ctx.clock.now()

    runs = [run(partial(main, move=move), "single", STAR, 1).results for move in (copy, Tensor.copy_)]
    assert runs[0] == runs[1]
    real = torch.zeros(3)
    copy(real, torch.arange(3.0))
    assert real.tolist() == [0, 1, 2]


def test_private_name_of_hooks():
    parameter = nn.Parameter(torch.zeros(2))
    assert list(gradient_hooks(parameter)) == []
    hooks = [lambda p: None, lambda p: None]
    handles = [parameter.register_post_accumulate_grad_hook(hook) for hook in hooks]
    assert list(gradient_hooks(parameter)) == hooks
    handles[0].remove()
    assert list(gradient_hooks(parameter)) == hooks[1:]
