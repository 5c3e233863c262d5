"""DeAR in a user's own loop: it owns the step, and what is seen between steps is one update behind until settled."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import geartrain
from geartrain.engines.simulated import SimulatedEngine
from geartrain.strategies import parse
from tests.conformance.cases import real_engine
from tests.runtime.loops import CLUSTER, Train, data, uneven
from tests.strategies.test_dear_card import equal

GROUPS = ["dear:neighbours=1", "dear", "dear:neighbours=2,exchange=ring"]


def results(train, workers=2):
    return SimulatedEngine().run(train, CLUSTER, workers=workers).results


@pytest.mark.parametrize("text", GROUPS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"adam": True},
        {"micro": 2},
        {"weighted": True},
        {"keep": True},
        {"detour": uneven},
        {"detour": uneven, "skip_unused": True, "adam": True},
        {"autocast": True},
    ],
    ids=lambda settings: ",".join(settings) or "plain",
)
def test_a_loop_gets_the_weights_of_synchronous(text, settings):
    """Also with schedulers, which step between a step and the update that belongs to it."""
    mine, other = results(Train(text, **settings)), results(Train("synchronous", **settings))
    for rank in range(2):
        assert equal(mine[rank]["weights"], other[rank]["weights"])
        assert mine[rank]["rates"] == other[rank]["rates"] and mine[rank]["names"]
        assert mine[rank]["hooks"] == other[rank]["hooks"] and not mine[rank]["same"]


def test_alone_the_loop_is_as_it_was():
    assert equal(results(Train("dear"), 1)[0]["weights"], results(Train("none"), 1)[0]["weights"])


@dataclass(frozen=True)
class Looked:
    """`main(ctx)`: a loop that looks at its model, saves and goes on."""

    text: str = "dear:neighbours=1"

    def __call__(self, ctx):
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        seen = {}
        with geartrain.attach(parse(self.text), model, optimizer, ctx) as stepper:
            stepper.step()  # a loop may step before its first backward, to please a scheduler
            for step in range(4):
                inputs, targets = data(ctx.rank, step)
                stepper.zero_grad()
                nn.functional.mse_loss(model(inputs), targets).backward()
                seen.setdefault("gradients", []).append(sum(p.grad is not None for p in model.parameters()))
                stepper.step()
                if step == 1:
                    seen["before"] = model[0].weight.detach().clone()
                    if ctx.rank == 0:  # worker 0 alone may evaluate: nobody else is asked for anything
                        model.eval()
                        with torch.no_grad():
                            seen["behind"] = model(torch.ones(1, 3))
                        model.train()
                    geartrain.attached(stepper).settle()
                    seen["settled"] = model[0].weight.detach().clone()
                    model.eval()
                    with torch.no_grad():
                        seen["current"] = model(torch.ones(1, 3))
                    model.train()
                    seen["state"] = geartrain.attached(stepper).state_dict()
        seen["weights"] = [p.detach().clone() for p in model.parameters()]
        return seen


def test_a_look_between_steps_sees_the_last_update_once_it_is_settled_and_changes_nothing():
    mine, other = (
        SimulatedEngine().run(Looked(text), CLUSTER, workers=2).results for text in (GROUPS[0], "synchronous")
    )
    assert torch.equal(mine[0]["settled"], other[0]["settled"]) and torch.equal(other[0]["before"], other[0]["settled"])
    assert not torch.equal(mine[0]["before"], mine[0]["settled"])
    assert torch.equal(mine[0]["current"], other[0]["current"])
    assert not torch.equal(mine[0]["behind"], mine[0]["current"])
    assert equal(mine[0]["weights"], other[0]["weights"]) and equal(mine[0]["weights"], mine[1]["weights"])
    assert mine[0]["gradients"] == [0] * 4  # what would be in them is nobody's sum
    assert mine[0]["state"] == {}


def test_a_tuned_loop_has_its_tuner_in_the_state_and_goes_on_from_it():
    def main(ctx):
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        states = []
        for resumed in (False, True):
            with geartrain.attach(parse("dear:threshold=1MB,tune=true"), model, optimizer, ctx) as stepper:
                running = geartrain.attached(stepper)
                if resumed:
                    running.load_state_dict(states[0])
                for step in range(12):
                    inputs, targets = data(ctx.rank, step)
                    stepper.zero_grad()
                    nn.functional.mse_loss(model(inputs), targets).backward()
                    stepper.step()
                states.append(running.state_dict())
        return [len(state["tuner"]["tried"]) for state in states]

    # The first step of a block has no step before it to be measured from.
    assert SimulatedEngine().run(main, CLUSTER, workers=2).results == [[1, 3], [1, 3]]


@pytest.mark.multi
def test_a_loop_on_real_processes():
    train = Train("dear:neighbours=1", detour=uneven)
    mine = real_engine().run(train, CLUSTER, workers=2).results
    assert equal(mine[0]["weights"], results(train)[0]["weights"])
