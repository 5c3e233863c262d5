"""Strategies that own the step: the loop has a facade of its optimizer."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import torch

import geartrain
from geartrain.runtime.attachment import Attachment
from geartrain.runtime.strategy import Needs, Strategy
from tests.runtime.loops import inputs_of, run, small


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
                model(inputs_of(ctx)).sum().backward()
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
                scaler.scale(model(inputs_of(ctx)).sum()).backward()
                scaler.unscale_(stepper)
                scaler.step(stepper)
                scaler.update()
            return geartrain.attached(stepper).calls.count("taken"), model.weight.grad.tolist()

    assert run(main, 1) == [(1, [[2.0] * 3])]
