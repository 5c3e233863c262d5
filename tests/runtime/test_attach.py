"""A strategy in an unchanged loop: DistributedDataParallel's weights, whatever the loop does, and no trace of it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import geartrain
from geartrain.engines.real import RealEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.strategies import TABLE, parse
from tests.conformance.harness import train
from tests.conformance.tasks import Curve
from tests.runtime.loops import BUCKETS, CLUSTER, Net, Train, data, run, share, uneven


def assert_equal(left, right):
    for name in ("weights", "buffers"):
        assert all(torch.equal(a, b) for a, b in zip(left[name], right[name], strict=True)), name


def reference(train, workers):
    """One process that adds up the workers' gradients by hand; what nobody used has a gradient of zero."""
    torch.manual_seed(0)
    model = Net()
    optimizer = train.optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    trained = [p for p in model.parameters() if p.requires_grad]
    for step in range(train.steps):
        total = [torch.zeros_like(p) for p in trained]
        for rank in range(workers):
            inputs, targets = data(rank, step, 3 + rank if train.weighted else 4)
            loss = nn.functional.mse_loss(model(inputs, train.detour(rank, step)), targets)
            for sum_, gradient in zip(total, torch.autograd.grad(loss, trained, allow_unused=True), strict=True):
                if gradient is not None:
                    sum_ += gradient * (share(rank, workers) if train.weighted else 1 / workers)
        for parameter, gradient in zip(trained, total, strict=True):
            parameter.grad = gradient
        optimizer.step()
        scheduler.step()
    return {"weights": [p.detach() for p in model.parameters()], "buffers": list(model.buffers())}


LOOPS = {
    "one bucket": Train(),
    "buckets": Train(BUCKETS),
    "after backward": Train("synchronous:overlap=false,bucket_size=64B"),
    "own ring": Train("synchronous:bucket_size=64B,exchange=ring"),
    "clipping": Train(BUCKETS, clip=0.05),
    "accumulation": Train(BUCKETS, micro=3, clip=0.05),
    "gradients kept": Train(BUCKETS, micro=2, keep=True, clip=0.05),
    "adam": Train(BUCKETS, adam=True),
    "unused parameters skipped": Train(BUCKETS, detour=uneven, skip_unused=True, clip=0.05),
    "autocast": Train(BUCKETS, autocast=True, clip=0.05),
    "bf16 parameters": Train(BUCKETS, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", LOOPS)
def test_weights_are_those_of_ddp(name):
    train = LOOPS[name]
    ours, ddp = run(train), run(replace(train, strategy="ddp"))
    for result in ours:
        assert_equal(result, ddp[0])
        assert result["norms"] == ddp[0]["norms"]  # what clipping saw
        assert result["rates"] == ddp[0]["rates"]
        assert result["names"] and result["same"] and result["state"] == ["param_groups", "state"]
        assert result["hooks"] == 0
    assert all(weight.dtype == train.dtype for weight in ours[0]["weights"])


def test_three_workers_are_near_ddp():
    """Not to the bit: DDP multiplies by 1/3 before it adds, and sums buckets of other sizes in another order."""
    ours, ddp = run(Train(BUCKETS, clip=1.0), 3), run(Train("ddp", clip=1.0), 3)
    for result in ours:
        assert_equal(result, ours[0])
        torch.testing.assert_close(result["weights"], ddp[0]["weights"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("strategy", [BUCKETS, "synchronous", "synchronous:bucket_size=64B,exchange=ring"])
@pytest.mark.parametrize("clip", [None, 1e9])
def test_parameters_that_some_workers_do_not_use(strategy, clip):
    train = Train(strategy, detour=uneven, clip=clip)
    first, second = run(train)
    assert_equal(first, second)
    assert first["norms"] == second["norms"]
    assert_equal(first, reference(train, 2))


def test_batches_of_different_sizes():
    train = Train(BUCKETS, weighted=True)
    first, second = run(train)
    assert_equal(first, second)
    torch.testing.assert_close(first["weights"], reference(train, 2)["weights"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", ["single", "synchronous"])
def test_one_worker_is_the_plain_loop(strategy):
    train = Train(strategy, detour=uneven, adam=True, micro=2)
    assert_equal(run(train, 1)[0], run(replace(train, strategy="none"), 1)[0])


@pytest.mark.multi
@pytest.mark.xdist_group("processes")
def test_real_processes_give_the_weights_of_ddp_and_of_the_simulator():
    def real(main):
        return RealEngine("cpu").run(main, CLUSTER, workers=2).results

    train = Train(BUCKETS, clip=0.05, micro=2)
    ours, ddp, simulated = real(train), real(replace(train, strategy="ddp")), run(train)
    uneven_real, uneven_simulated = real(LOOPS["own ring"]), run(LOOPS["own ring"])
    for rank in range(2):
        assert_equal(ours[rank], ddp[rank])
        assert_equal(ours[rank], simulated[rank])
        assert ours[rank]["norms"] == ddp[rank]["norms"] and ours[rank]["hooks"] == 0
        assert_equal(uneven_real[rank], uneven_simulated[rank])


@pytest.mark.parametrize("name", [name for name, entry in TABLE.items() if entry.kind.needs.attachable])
def test_an_attached_loop_takes_the_steps_of_the_strategys_own_worker(name):
    strategy, task, workers = parse(name), Curve(), 1 if name == "single" else 2

    def main(ctx):
        model = task.model(ctx.seed)
        optimizer = task.optimizer(model.parameters())
        batches = task.batches(ctx.rank, workers, 8, seed=3)
        with geartrain.attach(strategy, model, optimizer, ctx) as optimizer:
            for _ in range(4):
                optimizer.zero_grad()
                task.loss(model, batches.take()).backward()
                optimizer.step()
        return list(model.parameters())

    expected = train(SimulatedEngine(), strategy, task, workers)[0]["weights"]
    for weights in run(main, workers):
        assert all(torch.equal(a, b) for a, b in zip(weights, expected, strict=True))
