"""A strategy in an unchanged loop: DistributedDataParallel's weights, whatever the loop does, and no trace of it."""

import contextlib
import itertools
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import geartrain
from geartrain.cluster.load import load_cluster
from geartrain.engines.real import RealEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import RunError, StrategyError
from geartrain.runtime.attachment import Attachment
from geartrain.runtime.strategy import Needs, Strategy
from geartrain.strategies import TABLE, parse
from tests.conformance.harness import train
from tests.conformance.tasks import Curve
from tests.runtime.loops import Net, Train, data, hooks, share, uneven

CLUSTER = load_cluster("ethernet-10g")
BUCKETS = "synchronous:bucket_size=64B"


def run(main, workers=2):
    return SimulatedEngine().run(main, CLUSTER, workers=workers).results


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


# --- the same weights as others ---------------------------------------------------------------------------------------

LOOPS = {
    "one bucket": Train(),
    "buckets": Train(BUCKETS),
    "after backward": Train("synchronous:overlap=false,bucket_size=64B"),
    "own ring": Train("synchronous:bucket_size=64B,exchange=ring"),
    "clipping": Train(BUCKETS, clip=0.05),
    "accumulation": Train(BUCKETS, micro=3, clip=0.05),
    "gradients kept": Train(BUCKETS, micro=2, keep=True, clip=0.05),
    "adam": Train(BUCKETS, adam=True),
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
    strategy, task, workers = parse(name), Curve(), 1 if "several_workers" in TABLE[name].opt_outs else 2

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


def test_two_loops_in_one_program():
    def main(ctx):
        pairs = [small(ctx), small(ctx)]
        with contextlib.ExitStack() as stack:
            for model, optimizer in pairs:
                stack.enter_context(geartrain.attach(parse(BUCKETS), model, optimizer, ctx))
            first, second = (model for model, _ in pairs)
            for _ in range(2):
                for _, optimizer in pairs:
                    optimizer.zero_grad()
                (first(inputs(ctx)).sum() + 2 * second(inputs(ctx)).sum()).backward()
                for _, optimizer in pairs:
                    optimizer.step()
        return [model.weight.grad.tolist() for model, _ in pairs]

    record = SimulatedEngine().run(main, CLUSTER, workers=2)
    assert record.results == [[[[3.0] * 3], [[6.0] * 3]]] * 2
    assert [mark.step for mark in record.logs[0].steps if mark.end >= 0] == [0, 1]


# --- what a loop may do -----------------------------------------------------------------------------------------------


def small(ctx, rate=0.5):
    torch.manual_seed(ctx.rank)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=rate)


def inputs(ctx):
    return torch.full((2, 3), ctx.rank + 1.0)


def test_closures():
    def main(ctx):
        model, optimizer = small(ctx)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):

            def closure():
                optimizer.zero_grad()
                loss = model(inputs(ctx)).sum()
                loss.backward()
                return loss

            for _ in range(2):
                optimizer.step(closure)
        return [p.grad.clone() for p in model.parameters()]

    record = SimulatedEngine().run(main, CLUSTER, workers=2)
    for weight, bias in record.results:
        assert weight.tolist() == [[3.0] * 3] and bias.tolist() == [2.0]  # the mean of 2 and 4; of 2 and 2
    assert sum(op.kind == "all_reduce" for op in record.logs[0].ops) == 2


def test_gradient_scaler_skips_a_step_on_all_workers():
    def main(ctx):
        model, optimizer = small(ctx)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        weights = []
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):
            for step in range(3):
                optimizer.zero_grad()
                factor = float("inf") if step == 1 and ctx.rank == 1 else 1.0
                scaler.scale(model(inputs(ctx)).sum() * factor).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
                scaler.step(optimizer)
                scaler.update()
                weights.append(model.weight.detach().clone())
        return weights, scaler.get_scale()

    (first, scale), (second, other_scale) = run(main)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(first[0], first[1]) and not torch.equal(first[1], first[2])
    assert scale == other_scale == 2.0


def test_a_step_before_the_last_backward_exchanges_what_there_is():
    def main(ctx):
        model, optimizer = small(ctx)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx, accumulate=3):
            for _ in range(2):
                model(inputs(ctx)).sum().backward()
            optimizer.step()
        return model.weight.grad.clone()

    assert [gradient.tolist() for gradient in run(main)] == [[[6.0] * 3]] * 2


def test_a_worker_whose_loss_reaches_nothing_keeps_up():
    def main(ctx):
        model, optimizer = small(ctx)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):
            for step in range(2):
                optimizer.zero_grad()
                if step == 0 or ctx.rank == 0:
                    model(inputs(ctx)).sum().backward()
                optimizer.step()
        return model.weight.detach().clone(), model.weight.grad.clone()

    (weight, gradient), (other_weight, other_gradient) = run(main)
    assert torch.equal(weight, other_weight) and torch.equal(gradient, other_gradient)
    assert gradient.tolist() == [[1.0] * 3]


def test_a_step_before_the_first_backward_does_nothing():
    def main(ctx):
        model, optimizer = small(ctx)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):
            optimizer.step()
            return [p.grad for p in model.parameters()]

    assert run(main) == [[None, None]] * 2


class Blocks(nn.Module):
    """Blocks that are computed again in backward; with `reentrant` each in a backward of its own."""

    def __init__(self, reentrant, spare):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.reentrant = reentrant
        if spare:
            self.spare = nn.Linear(2, 2)

    def forward(self, hidden):
        hidden = self.blocks[0](hidden)
        for block in self.blocks[1:]:
            hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
        return hidden


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("spare", [False, True])
def test_checkpoints(reentrant, spare):
    def main(ctx):
        torch.manual_seed(0)
        model = Blocks(reentrant, spare)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):
            for _ in range(2):
                optimizer.zero_grad()
                model(inputs(ctx)).square().sum().backward()
                found.append([p.grad.clone() for p in model.blocks.parameters()])
        local = []
        for rank in range(2):
            optimizer.zero_grad()
            model(torch.full((2, 3), rank + 1.0)).square().sum().backward()
            local.append([p.grad.clone() for p in model.blocks.parameters()])
        return found, [(a + b) / 2 for a, b in zip(*local, strict=True)]

    for found, expected in run(main):
        torch.testing.assert_close(found[0], expected)
        torch.testing.assert_close(found[1], expected)


class Shared(nn.Module):
    """A layer inside and outside of a re-entrant checkpoint; its gradients come twice in a backward."""

    def __init__(self, spare):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        if spare:
            self.spare = nn.Linear(2, 2)

    def forward(self, hidden):
        hidden.requires_grad_(True)
        return self.layer(hidden).sum() + checkpoint(self.layer, hidden, use_reentrant=True).sum()


@pytest.mark.parametrize("spare", [False, True])
def test_a_parameter_inside_and_outside_of_a_reentrant_checkpoint(spare):
    def main(ctx):
        model = Shared(spare)
        with geartrain.attach(parse(BUCKETS), model, torch.optim.SGD(model.parameters()), ctx):
            model(inputs(ctx)).backward()
        return model.layer.weight.grad.tolist()

    if spare:  # so that the first gradient does not look like the end of backward
        with pytest.raises(RunError, match="use_reentrant=False"):
            run(main)
    else:
        assert run(main) == [[[6.0] * 3]] * 2


def test_sparse_gradients_are_refused():
    def main(ctx):
        model = nn.Embedding(4, 2, sparse=True)
        with geartrain.attach(parse(BUCKETS), model, torch.optim.SGD(model.parameters()), ctx):
            model(torch.tensor([1])).sum().backward()

    with pytest.raises(RunError, match="sparse=False"):
        run(main)


def test_a_parameter_that_is_thawed_inside_is_refused():
    def main(ctx):
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):
            model.frozen.requires_grad_(True)
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()

    with pytest.raises(RunError, match=r"frozen.weight, frozen.bias began to be trained"):
        run(main)


# --- before, after, and what is refused -------------------------------------------------------------------------------


def test_hooks_go_also_after_an_error_and_one_may_attach_again():
    def main(ctx):
        model, optimizer = small(ctx)
        with contextlib.suppress(ZeroDivisionError), geartrain.attach(parse(BUCKETS), model, optimizer, ctx):
            assert hooks(model, optimizer) == 4
            raise ZeroDivisionError
        after = hooks(model, optimizer)
        with geartrain.attach(parse("synchronous:exchange=ring"), model, optimizer, ctx) as stepper:
            assert stepper is optimizer and geartrain.attached(stepper).state_dict() == {}
            with pytest.raises(StrategyError, match="attached to this model or optimizer already"):
                geartrain.attach(parse("synchronous"), model, optimizer, ctx).__enter__()
        with pytest.raises(StrategyError, match="not attached"):
            geartrain.attached(optimizer)
        return after, hooks(model, optimizer)

    assert run(main) == [(0, 0)] * 2


def refused(match, strategy="synchronous", *, model=None, optimizer=None, error=StrategyError, **options):
    def main(ctx):
        mine = nn.Linear(3, 1) if model is None else model(ctx)
        step = torch.optim.SGD(mine.parameters(), lr=0.1) if optimizer is None else optimizer(mine)
        with geartrain.attach(parse(strategy), mine, step, ctx, **options):
            pass

    with pytest.raises(error, match=match):
        run(main)


def test_what_is_refused():
    refused(r"(?s)it needs 2 server\(s\).*attachable: .*single, synchronous", "parameter_server:servers=2")
    refused(r"(?s)peer_to_peer cannot be attached.*takes whole steps", "peer_to_peer")
    refused("single trains in one process", "single")
    refused("accumulate=0", accumulate=0)
    refused("attach model.module", model=lambda ctx: nn.parallel.DistributedDataParallel(nn.Linear(3, 1)))
    refused("nothing would be trained", model=lambda ctx: nn.Linear(3, 1).requires_grad_(False), optimizer=other)
    refused(r"trains 2 parameter\(s\) that are not the model's", optimizer=other)
    refused(r"worker\(s\) 1 attach something else", model=lambda ctx: nn.Linear(3, 1 + ctx.rank))


def other(model):
    return torch.optim.SGD(nn.Linear(3, 1).parameters(), lr=0.1)


def test_steps_are_in_the_record():
    record = SimulatedEngine().run(Train(BUCKETS, micro=2, steps=3), CLUSTER, workers=2)
    log = record.logs[0]
    ended = [mark for mark in log.steps if mark.end >= 0]
    assert [mark.step for mark in ended] == [0, 1, 2]
    per_step = [sum(op.kind == "all_reduce" for op in log.ops if m.begin <= op.posted < m.end) for m in ended]
    assert per_step[1] == per_step[2] > 1  # one for each bucket, in the last of two backwards


# --- strategies that own the step -------------------------------------------------------------------------------------


class Halting(Attachment):
    """Steps in every second step of the loop only."""

    owns_step: ClassVar[bool] = True

    def __init__(self):
        self.calls = []

    def gradients_ready(self):
        self.calls.append("gradients")

    def before_step(self):
        self.calls.append("before")

    def step(self, take):
        if self.calls.count("before") % 2 == 0:
            take()
            self.calls.append("taken")

    def after_step(self):
        self.calls.append("after")

    def finish(self):
        self.calls.append("finish")

    def close(self):
        self.calls.append("close")

    def state_dict(self):
        return {"calls": list(self.calls)}


@dataclass(frozen=True, kw_only=True)
class Halts(Strategy):
    name: ClassVar[str] = "halts"
    needs: ClassVar[Needs] = Needs(attachable=True)

    def bind(self, ctx, task):
        raise NotImplementedError

    def cost(self, workload, place, batch):
        raise NotImplementedError

    def attach(self, ctx, loop):
        return Halting()


def test_a_facade_for_strategies_that_own_the_step():
    def main(ctx):
        model, optimizer = small(ctx)
        before = optimizer.state_dict()
        early = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        with geartrain.attach(Halts(), model, optimizer, ctx) as stepper:
            assert stepper is not optimizer and isinstance(stepper, torch.optim.Optimizer)
            assert stepper.param_groups is optimizer.param_groups and stepper.defaults is optimizer.defaults
            scheduler = torch.optim.lr_scheduler.StepLR(stepper, 1, 0.5)
            weights, running = [], geartrain.attached(stepper)
            for _ in range(4):
                stepper.zero_grad()
                model(inputs(ctx)).sum().backward()
                stepper.step()
                scheduler.step()
                weights.append(model.weight.detach().clone())
            assert [group["lr"] for group in optimizer.param_groups] == [0.5 / 16]
            assert stepper.state_dict().keys() == before.keys()
            stepper.load_state_dict({**before, "param_groups": [{**before["param_groups"][0], "lr": 0.125}]})
            assert optimizer.param_groups[0]["lr"] == stepper.param_groups[0]["lr"] == 0.125
            assert running.state_dict()["calls"][:4] == ["gradients", "before", "after", "gradients"]
            stepper.step(lambda: torch.ones(()))
        assert early.optimizer is optimizer
        return [torch.equal(a, b) for a, b in itertools.pairwise(weights)], running.calls[-2:]

    assert run(main, 1) == [([False, True, False], ["finish", "close"])]


def test_a_facade_under_a_gradient_scaler():
    def main(ctx):
        model, optimizer = small(ctx)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with geartrain.attach(Halts(), model, optimizer, ctx) as stepper:
            for _ in range(2):
                stepper.zero_grad()
                scaler.scale(model(inputs(ctx)).sum()).backward()
                scaler.unscale_(stepper)
                scaler.step(stepper)
                scaler.update()
            return geartrain.attached(stepper).calls.count("taken"), model.weight.grad.tolist()

    assert run(main, 1) == [(1, [[2.0] * 3])]
