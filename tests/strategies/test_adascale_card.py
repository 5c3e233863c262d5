"""AdaScale: one test for each item of the card's "What must hold"."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.runtime.attach import attach, attached
from geartrain.runtime.checkpoint import Checkpoints, latest
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batch, Task
from geartrain.strategies import parse
from geartrain.strategies.adascale import AdaScale, Gain, gain_of
from geartrain.tasks.digits import Digits
from tests.conformance.harness import plain_loop, train
from tests.conformance.tasks import Curve, Exploding, Golden

ENGINE = SimulatedEngine()
CLUSTER = load_cluster("ethernet-10g")

GOLDEN = [  # inputs of two base batches of a linear layer 2 -> 2 with bias, loss the sum of outputs -> gain
    ([(1, 0), (0, 1)], 4 / 3),
    ([(1, 1), (1, 1)], 1.0),
    ([(-1, 1), (1, -1)], 2.0),
    ([(1, 4), (5, 0.5)], 1.46887967),
    ([(-0.2, 3), (5, 0.5)], 1.84728939),
]


@dataclass(frozen=True)
class Outputs(Task):
    """The sum of a linear layer's outputs: its gradient is that of the inputs, whatever the weights."""

    rows: tuple[tuple[float, float], ...]
    name = "outputs"
    source = "made for tests"

    def model(self, seed):
        return nn.Linear(2, 2)

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=0.1)

    def loss(self, model, batch):
        return model(batch.inputs).sum(1).mean()

    def metric(self, model):
        return {}

    def batches(self, rank, num_workers, batch, seed):
        return Rows(self.rows[rank * batch // num_workers : (rank + 1) * batch // num_workers], 1 / num_workers)


@dataclass
class Rows:
    rows: tuple[tuple[float, float], ...]
    weight: float

    def take(self, num_samples=None):
        inputs = torch.tensor(self.rows, dtype=torch.float32)
        return Batch(inputs, inputs, self.weight)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        return


def gains(strategy, task, workers, steps=3, batch=2):
    """The gain of each step."""
    training = Training(strategy=strategy, task=task, steps=steps, batch=batch)
    record = ENGINE.run(training, CLUSTER, workers=workers)
    told = [[step.values["gain"] for step in log.steps] for log in record.logs]
    assert all(one == told[0] for one in told), "all ranks compute the same gain"
    return told[0]


def test_1_scale_one_is_the_plain_loop():
    for task in (Golden(), Curve()):
        result = train(ENGINE, AdaScale(), task, 1)[0]
        assert all(map(torch.equal, result["weights"], plain_loop(task, steps=4, batch=8)))
    training = Training(strategy=AdaScale(), task=Curve(), steps=3, batch=8)
    log = ENGINE.run(training, CLUSTER, workers=1).logs[0]
    assert [step.values["progress"] for step in log.steps] == [1, 2, 3]


def test_2_equal_gradients_gain_nothing_and_opposite_ones_all():
    assert gains(AdaScale(), Outputs(((1.0, 1.0), (1.0, 1.0))), 2)[1:] == pytest.approx([1, 1], abs=1e-6)
    gain = Gain()
    for _ in range(2):  # four gradients that cancel out
        gain.feed(squares=8.0, mean_square=0.0, batches=4, scale=4.0)
    assert gain.value == 4.0


@pytest.mark.parametrize(("rows", "expected"), GOLDEN)
@pytest.mark.parametrize("passes", [1, 2])
def test_3_and_6_golden_gains_by_two_ranks_and_by_two_passes(rows, expected, passes):
    found = gains(AdaScale(accumulate=passes), Outputs(tuple(rows)), workers=2 // passes)
    assert found[0] == 1
    assert found[1:] == pytest.approx([expected, expected], rel=1e-6)


def test_4_the_gain_lies_between_one_and_the_scale():
    found = gains(AdaScale(), Digits(), 8, steps=40, batch=64)
    assert all(1 <= gain <= 8 for gain in found)
    assert max(found) > 1.5, "gradients of eight samples are noisy"


def test_5_estimators_are_unbiased():
    """Gaussian gradients of 50 numbers: sigma^2 = 50 * 0.3^2, mu^2 = 50 * 0.2^2."""
    scale, generator, found = 4, np.random.default_rng(0), []
    for _ in range(2000):
        base = generator.normal(0.2, 0.3, (scale, 50))
        gain = Gain()
        gain.feed(float((base**2).sum()), float((base.mean(0) ** 2).sum()), scale, scale)
        found.append((gain.variance, gain.square))
    assert np.mean(found, axis=0) == pytest.approx([50 * 0.3**2, 50 * 0.2**2], rel=0.02)


def test_6_ranks_and_passes_give_the_same_gain_and_weights():
    ranks, passes = AdaScale(), AdaScale(accumulate=4)
    assert gains(ranks, Curve(), 4, batch=8) == pytest.approx(gains(passes, Curve(), 1, batch=8), rel=1e-5)
    for mine, other in zip(
        train(ENGINE, ranks, Curve(), 4)[0]["weights"], train(ENGINE, passes, Curve(), 1)[0]["weights"], strict=True
    ):
        torch.testing.assert_close(mine, other)


def test_7_as_many_scale_invariant_steps_reach_the_same_accuracy_in_fewer_steps():
    small = Training(strategy=parse("single"), task=Digits(), steps=240, batch=16)
    expected = ENGINE.run(small, CLUSTER, workers=1).results[0]["metric"]["accuracy"]
    large = Training(strategy=AdaScale(), task=Digits(), steps=130, batch=64)
    record = ENGINE.run(large, CLUSTER, workers=4)
    assert record.logs[0].steps[-1].values["progress"] == pytest.approx(240, rel=0.1)
    assert record.results[0]["metric"]["accuracy"] >= expected - 0.01


def test_8_the_gain_jumps_when_the_rate_drops():
    """SGD on |w|^2/2 with noise: near the end the distance, and so mu^2, follows the rate."""
    generator, scale, gain, weights, told = np.random.default_rng(0), 500, Gain(), np.ones(20), []
    for step in range(400):
        base = weights + generator.normal(0, 10, (scale, 20))
        gain.feed(float((base**2).sum()), float((base.mean(0) ** 2).sum()), scale, scale)
        weights = weights - (0.9 if step < 200 else 0.01) * base.mean(0)
        told.append(gain.value)
    assert np.mean(told[350:]) > 1.2 * np.mean(told[150:200])


@pytest.mark.parametrize(("noise", "scale", "expected"), [(1, 8, 1.78), (1, 128, 1.98), (10, 2, 1.83), (10, 32, 8.38)])
def test_gain_by_noise(noise, scale, expected):
    assert gain_of(noise, scale) == pytest.approx(expected, abs=0.005)
    gain = Gain()
    for _ in range(2):  # |gbar|^2 = mu^2 + sigma^2/S
        gain.feed(squares=scale * (noise + 1), mean_square=1 + noise / scale, batches=scale, scale=scale)
    assert gain.value == pytest.approx(gain_of(noise, scale))


def test_the_scale_may_differ_from_the_number_of_batches():
    """sig2 = (S/n) Q/(n - 1) - S/(n - 1) p: with n = 2, S = 6, Q = 8, p = 3 it is 6, and mu2 = 2."""
    gain = Gain()
    for _ in range(2):
        gain.feed(squares=8.0, mean_square=3.0, batches=2, scale=6.0)
    assert gain.value == pytest.approx((6 + 2) / (1 + 2))
    assert gains(AdaScale(scale=6.0), Outputs(((1.0, 0.0), (0.0, 1.0))), 2)[1] == pytest.approx(8 / 3)


@pytest.mark.parametrize("squares", [float("inf"), float("nan")])
def test_a_gradient_that_overflows_leaves_the_averages_alone(squares):
    """A gradient scaler leaves out such a step, and training goes on."""
    gain = Gain()
    for _ in range(2):
        gain.feed(squares=8.0, mean_square=3.0, batches=2, scale=2.0)
    before = (gain.value, gain.variance, gain.square, gain.steps)
    gain.feed(squares=squares, mean_square=3.0, batches=2, scale=2.0)
    assert (gain.value, gain.variance, gain.square, gain.steps) == before and gain.value > 1


def test_workers_may_come_while_it_trains(tmp_path):
    def run(workers, steps, resume=None):
        checkpoints = Checkpoints(folder=tmp_path, every=4, resume=resume)
        training = Training(strategy=AdaScale(), task=Digits(), steps=steps, batch=64, checkpoints=checkpoints)
        return ENGINE.run(training, CLUSTER, workers=workers).logs[0].steps

    before = run(2, 4)[-1].values
    after = [step.values for step in run(8, 8, latest(tmp_path))]
    assert after[0]["progress"] == pytest.approx(before["progress"] + after[0]["gain"]), "tau is kept"
    assert before["gain"] <= 2 < after[0]["gain"] <= 8, "the averages are kept, and the scale is the new one"


@pytest.mark.parametrize("accumulation", ["mean", "sum"])
def test_attached_with_passes(accumulation):
    """A loop of two passes on each of two workers, against four workers."""

    def loop(ctx):
        task = Curve()
        model = task.model(0)
        optimizer = task.optimizer(model.parameters())
        batches = task.batches(2 * ctx.rank, 4, 8, 0), task.batches(2 * ctx.rank + 1, 4, 8, 0)
        strategy = AdaScale(accumulation=accumulation)
        with attach(strategy, model, optimizer, ctx, accumulate=2) as stepper:
            for _ in range(4):
                stepper.zero_grad()
                for part in batches:
                    loss = task.loss(model, part.take())
                    (loss / 2 if accumulation == "mean" else loss).backward()
                stepper.step()
            here = attached(stepper)
            return (
                here.gain,
                here.progress,
                here.state_dict()["steps"],
                [p.detach().clone() for p in model.parameters()],
            )

    gain, progress, steps, weights = ENGINE.run(loop, CLUSTER, workers=2).results[0]
    expected = gains(AdaScale(), Curve(), 4, steps=4, batch=8)
    assert (gain, progress, steps) == (pytest.approx(expected[-1], rel=1e-4), pytest.approx(sum(expected), rel=1e-4), 4)
    assert all(parameter.requires_grad is False for parameter in weights)


def test_awkward_parameters_train_and_a_nan_ends_all():
    result = train(ENGINE, AdaScale(), Golden(awkward=True), 3)
    assert all(map(torch.equal, result[0]["weights"], result[2]["weights"]))
    training = Training(strategy=AdaScale(accumulate=2), task=Exploding(rank=1, step=2), steps=5, batch=6)
    with pytest.raises(Exception, match="worker 1 became inf in step 2"):
        ENGINE.run(training, CLUSTER, workers=3)


@pytest.mark.multi
def test_real_processes():
    from geartrain.engines.real import RealEngine

    strategy = AdaScale(exchange="ring", bucket_size=64)
    real, simulated = (train(engine, strategy, Golden(), 3)[0]["weights"] for engine in (RealEngine(), ENGINE))
    assert all(map(torch.equal, real, simulated))


def test_what_is_refused():
    with pytest.raises(StrategyError, match=r"make no 8 base batches"):
        train(ENGINE, AdaScale(accumulate=8), Golden(), 4)
    with pytest.raises(StrategyError, match="above 0"):
        AdaScale(scale=0.0)
    with pytest.raises(StrategyError, match="several workers or passes"):
        train(ENGINE, AdaScale(scale=6.0), Golden(), 1)
