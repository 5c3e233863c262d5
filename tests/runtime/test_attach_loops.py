"""What a loop may do inside `attach`, and what is refused."""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import geartrain
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import RunError, StrategyError
from geartrain.strategies import parse
from tests.runtime.loops import BUCKETS, CLUSTER, Net, Train, hooks, inputs_of, run, small


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
                (first(inputs_of(ctx)).sum() + 2 * second(inputs_of(ctx)).sum()).backward()
                for _, optimizer in pairs:
                    optimizer.step()
        return [model.weight.grad.tolist() for model, _ in pairs]

    record = SimulatedEngine().run(main, CLUSTER, workers=2)
    assert record.results == [[[[3.0] * 3], [[6.0] * 3]]] * 2
    assert [mark.step for mark in record.logs[0].steps if mark.end >= 0] == [0, 1]


def test_closures():
    def main(ctx):
        model, optimizer = small(ctx)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx):

            def closure():
                optimizer.zero_grad()
                loss = model(inputs_of(ctx)).sum()
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
                scaler.scale(model(inputs_of(ctx)).sum() * factor).backward()
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
                model(inputs_of(ctx)).sum().backward()
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
                    model(inputs_of(ctx)).sum().backward()
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
                model(inputs_of(ctx)).square().sum().backward()
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
            model(inputs_of(ctx)).backward()
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


@pytest.mark.parametrize("workers", [1, 2])
def test_a_backward_that_broke_off(workers):
    def main(ctx):
        model, optimizer = small(ctx)
        hidden = torch.ones(2, 3, requires_grad=True)
        hidden.register_hook(lambda gradient: 1 / 0)
        with geartrain.attach(parse(BUCKETS), model, optimizer, ctx, accumulate=2):
            with pytest.raises(ZeroDivisionError):
                model(hidden).sum().backward()
            optimizer.zero_grad()
            for _ in range(2):
                model(inputs_of(ctx)).sum().backward()
        return model.weight.grad.tolist()

    if workers == 1:
        assert run(main, 1) == [[[4.0] * 3]]
    else:
        with pytest.raises(RunError, match="broke off with an error"):
            run(main)


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
