"""What computing costs on the virtual clock: by hand for a roofline, by factor for slow devices, by seed for jitter."""

from typing import Any

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.cluster.overrides import NodeOverride, Overrides, Straggler
from geartrain.cluster.spec import Cluster
from geartrain.cost.compute import Constant, Roofline, Work
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime import charging
from geartrain.runtime.context import Context

CLUSTER = load_cluster("ethernet-10g")  # V100s: 15.7 TFLOP/s in fp32, 900 GB/s
FLOPS, MEMORY_RATE = 15.7e12, 900e9


def simulated(main: Any, cluster: Cluster = CLUSTER, workers: int = 1, **options: Any) -> Any:
    model = options.pop("compute", Roofline())
    return SimulatedEngine(model).run(main, cluster, workers=workers, **options).results


def overridden(**override: Any) -> Cluster:
    return CLUSTER.model_copy(update={"overrides": Overrides(nodes=(NodeOverride(**override),))})


def product(ctx: Context) -> float:
    left, right = torch.empty(512, 1024, device=ctx.device), torch.empty(1024, 2048, device=ctx.device)
    before = ctx.clock.now()
    left @ right
    return ctx.clock.now() - before


def test_a_product_is_bound_by_arithmetic():
    assert simulated(product) == [pytest.approx(2 * 512 * 1024 * 2048 / FLOPS, rel=1e-9)]


def test_a_sum_is_bound_by_memory():
    def main(ctx: Context) -> float:
        x, y = torch.zeros(1_000_000), torch.zeros(1_000_000)
        before = ctx.clock.now()
        x + y
        return ctx.clock.now() - before

    assert simulated(main) == [pytest.approx(3 * 4e6 / MEMORY_RATE, rel=1e-9)]


def test_forward_and_backward_are_charged_as_they_run():
    def main(ctx: Context) -> Any:
        layer = torch.nn.Linear(256, 256, bias=False)
        inputs = torch.zeros(64, 256, requires_grad=True)
        times = [ctx.clock.now()]
        seen: list[float] = []
        layer.weight.register_hook(lambda _: seen.append(ctx.clock.now()))
        loss = layer(inputs).sum()
        times.append(ctx.clock.now())
        loss.backward()
        return times[1] - times[0], seen[0] - times[1], ctx.clock.now() - times[1]

    forward, at_weight, backward = simulated(main)[0]
    kernel = 2 * 64 * 256 * 256 / FLOPS
    assert forward > kernel * 0.9
    assert 0.0 < at_weight <= backward
    assert backward > 2 * kernel * 0.9


def test_a_slow_device_takes_twice_the_time_and_others_do_not():
    base = simulated(product, workers=2)
    slowed = simulated(product, overridden(node=1, speed=0.5), workers=2)
    assert slowed == [base[0], pytest.approx(2 * base[1], rel=1e-12)]


def test_devices_of_one_name_are_priced_each_by_its_own_rates():
    (group,) = CLUSTER.nodes
    slow = group.device.model_copy(update={"flops": {"fp32": FLOPS / 4}})
    both = (
        group.model_copy(update={"name": "fast", "count": 1}),
        group.model_copy(update={"name": "slow", "device": slow}),
    )
    mixed = CLUSTER.model_copy(update={"nodes": both})
    fast, slower = simulated(product, mixed, workers=2)
    assert fast == simulated(product)[0]
    assert slower > 2 * fast


def steps(ctx: Context) -> list[float]:
    found = []
    for step in range(200):
        ctx.mark_step(step, "begin")
        found.append(product(ctx))
        ctx.mark_step(step, "end")
    return found


def test_jitter_is_drawn_per_step_and_by_seed():
    cluster = overridden(node="all", jitter=0.1)
    first, again, other = (simulated(steps, cluster, 2, seed=seed, meta=True) for seed in (3, 3, 4))
    assert first == again != other
    assert first[0] != first[1]
    mean = simulated(product, meta=True)[0]
    assert sum(first[0]) / 200 == pytest.approx(mean, rel=0.05)  # 0.1 / sqrt(200) is 0.007: seven deviations
    assert len(set(first[0])) == 200


def test_a_straggler_is_slow_now_and_then():
    cluster = overridden(node=0, straggler=Straggler(probability=0.25, factor=4.0))
    (found,) = simulated(steps, cluster, meta=True)
    mean = simulated(product, meta=True)[0]
    slow = sum(time == pytest.approx(4 * mean, rel=1e-9) for time in found)
    assert slow + sum(time == pytest.approx(mean, rel=1e-9) for time in found) == 200
    assert 25 <= slow <= 75  # 50 are expected, with a deviation of 6


def test_meta_tensors_cost_what_real_ones_cost():
    assert simulated(product) == simulated(product, meta=True)


def test_constant_counts_kernels_and_no_model_is_free():
    def main(ctx: Context) -> float:
        x = torch.zeros(8)
        before = ctx.clock.now()
        (x + 1).view(2, 4).mul_(2)
        return ctx.clock.now() - before

    assert simulated(main, compute=Constant(1.0)) == [2.0]  # views run no kernel
    assert simulated(main, compute=None) == [0.0]


def test_work_that_is_only_said_and_work_that_shall_be_free():
    def main(ctx: Context) -> Any:
        charging.charge(Work("pretended", flop=FLOPS, nbytes=0.0))
        told = ctx.clock.now()
        with charging.uncharged():
            product(ctx)
        return told, ctx.clock.now()

    assert simulated(main) == [(1.0, 1.0)]


def test_lanes_are_charged_too():
    def main(ctx: Context) -> float:
        ctx.spawn(lambda: [product(ctx) for _ in range(3)] and None, "computes").join()
        return ctx.clock.now()

    assert simulated(main, compute=Constant(1.0))[0] >= 3.0


def test_where_no_steps_are_marked_the_pace_is_drawn_after_every_wait():
    def main(ctx: Context) -> list[float]:
        took = []
        for _ in range(12):
            took.append(product(ctx))
            torch.distributed.barrier(group=ctx.workers)
        return took

    cluster = overridden(node=0, straggler=Straggler(probability=0.5, factor=4.0))
    slow, steady = simulated(main, cluster, workers=2)
    even = min(slow)
    assert steady == [pytest.approx(even)] * 12
    factors = {round(seconds / even) for seconds in slow}
    assert factors == {1, 4}
