"""What the card of APAM says must hold, item by item."""

import math
import statistics

import pytest
import torch
from scipy import stats

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.runtime.loop import Training
from geartrain.strategies import parse, serving
from geartrain.strategies.apam import APAM, AdaptiveUpdate
from geartrain.strategies.apam_speedup import speedup, sync_epoch_time
from geartrain.tasks.digits import Digits
from tests.conformance import harness
from tests.conformance.tasks import Curve

CLUSTER = load_cluster("ethernet-1g")


def run(text, task, workers, steps, *, batch=12):
    strategy = parse(text)
    main = Training(strategy=strategy, task=task, steps=steps, batch=batch)
    return SimulatedEngine().run(main, CLUSTER, workers=workers, services=strategy.roles(workers).services)


def serial(strategy, task, steps, batch):
    """The weights after a loop that knows nothing of servers: the rule, tensor by tensor."""
    model = task.model(0)
    parameters = list(model.parameters())
    m, v, vhat = ([torch.zeros_like(p) for p in parameters] for _ in range(3))
    batches = task.batches(0, 1, batch, seed=3)
    for k in range(1, steps + 1):
        model.zero_grad()
        task.loss(model, batches.take()).backward()
        alpha = strategy.rate / (math.sqrt(k) if strategy.step == "inverse_root" else 1)
        if strategy.bias_correction:
            alpha = alpha * math.sqrt(1 - strategy.beta2**k) / (1 - strategy.beta1**k)
        for i, p in enumerate(parameters):
            with torch.no_grad():
                g = p.grad.add(p, alpha=strategy.weight_decay) if strategy.weight_decay else p.grad
                m[i].lerp_(g, 1 - strategy.beta1)
                v[i].mul_(strategy.beta2).addcmul_(g, g, value=1 - strategy.beta2)
                vhat[i] = torch.maximum(vhat[i], v[i])
                p.addcdiv_(m[i], vhat[i].sqrt() + strategy.eps, value=-alpha)
    return [p.detach() for p in parameters]


# 1. and 5. One worker


@pytest.mark.parametrize(
    "text",
    [
        "apam",
        "apam:bias_correction=false,eps=1e-30",
        "apam:step=inverse_root,weight_decay=0.1,beta1=0.8,beta2=0.99,rate=0.01",
    ],
)
def test_one_worker_is_serial_amsgrad_bit_for_bit(text):
    mine = harness.train(SimulatedEngine(), parse(text), Curve(), 1, steps=8)[0]["weights"]
    assert all(map(torch.equal, mine, serial(parse(text), Curve(), 8, 8)))


def test_without_a_maximum_it_is_adam():
    """torch's Adam puts eps elsewhere, so that a tiny one is needed for them to be the same rule."""
    mine = harness.train(SimulatedEngine(), parse("apam:rule=adam,rate=0.01,eps=1e-30"), Curve(), 1, steps=8)
    for a, b in zip(mine[0]["weights"], harness.plain_loop(Curve(rate=0.01), steps=8, batch=8), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_artificial_delay_of_one_model_is_serial():
    """D = 1 model to draw from is max_delay = 0; and with more, the first gradient is at the only model there is."""
    assert APAM(max_delay=0) == APAM()
    one = harness.train(SimulatedEngine(), parse("apam:max_delay=5"), Curve(), 1, steps=1)[0]["weights"]
    assert all(map(torch.equal, one, serial(APAM(), Curve(), 1, 8)))


# 2. and 3. The state lives at the master


def replay(strategy, x, log):
    """x, m, v, vhat after these gradients, written as in the paper; in double precision."""
    m, v, vhat = (torch.zeros_like(x) for _ in range(3))
    for k, gradient in enumerate(log, start=1):
        g = gradient.double() + strategy.weight_decay * x
        alpha = strategy.rate / (math.sqrt(k) if strategy.step == "inverse_root" else 1)
        m = strategy.beta1 * m + (1 - strategy.beta1) * g
        v = strategy.beta2 * v + (1 - strategy.beta2) * g * g
        vhat = torch.maximum(vhat, v)
        first, second = 1 - strategy.beta1**k, math.sqrt(1 - strategy.beta2**k)
        correction = {"sgd": 1.0, "momentum": 1 / first}.get(strategy.rule, second / first)
        alpha *= correction if strategy.bias_correction else 1
        step = {
            "sgd": g,
            "momentum": m,
            "adam": m / (v.sqrt() + strategy.eps),
            "amsgrad": m / (vhat.sqrt() + strategy.eps),
        }
        x = x - alpha * step[strategy.rule]
    return x, m, v, vhat


@pytest.mark.parametrize(
    "text",
    [
        "apam:rate=0.01",
        "apam:rule=adam,step=inverse_root,weight_decay=0.1,rate=0.01",
        "apam:rule=momentum,beta1=0.5",
        "apam:rule=sgd,rate=0.1",
    ],
)
def test_replaying_the_log_of_gradients_reproduces_the_state(text, monkeypatch):
    """What the master of five workers was sent, in the order in which it took it, gives its model and its moments."""
    log, update_with, masters = [], serving.Server._update_with, []

    def logged(server, group):
        if not masters:
            masters.append((server, server._flat.double()))
        log.append(server._pushed[group[0]].clone())
        before = server._update.vhat.clone()
        update_with(server, group)
        assert (server._update.vhat >= before).all()
        assert parse(text).rule != "amsgrad" or (server._update.vhat >= server._update.v).all()

    monkeypatch.setattr(serving.Server, "_update_with", logged)
    run(text, Curve(), 5, 6, batch=17)
    server, start = masters[0]
    assert len(log) == 30
    x, m, v, vhat = replay(parse(text), start, log)
    torch.testing.assert_close(server._flat.double(), x, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(x, start, atol=1e-3)
    kept = {"sgd": {}, "momentum": {"m": m}, "adam": {"m": m, "v": v}}.get(
        parse(text).rule, {"m": m, "v": v, "vhat": vhat}
    )
    for name, expected in kept.items():
        torch.testing.assert_close(getattr(server._update, name).double(), expected, rtol=1e-5, atol=1e-8)


def test_the_state_follows_from_the_log_bit_for_bit():
    """Saved after each gradient and loaded into another master, it gives the same bits as one that was never saved."""
    log = torch.randn(20, 7, generator=torch.Generator().manual_seed(1))
    x, y = torch.zeros(7), torch.zeros(7)
    update = AdaptiveUpdate(APAM(), x)
    for g in log:
        other = AdaptiveUpdate(APAM(), y)
        other.load_state_dict(update.state_dict())
        for one in (update, other):
            one.gradient.copy_(g)
            one.apply()
        assert torch.equal(x, y)


def test_workers_hold_no_moments():
    results = harness.train(SimulatedEngine(), parse("apam"), Curve(), 2)
    assert set(results[0]["state"][0]) == {"model", "past"}
    assert set(results[2]["state"]["update"]) == {"k", "m", "v", "vhat"}


# 4. Updates and delays


def test_all_gradients_are_applied_and_the_mean_delay_is_one_less_than_the_workers():
    record = run("apam", Curve(), 4, 25)
    ages = [age for mark in record.logs[-1].steps for age in mark.values["staleness"]]
    assert len(ages) == 100
    assert ages[:4] == [0, 1, 2, 3]
    assert statistics.fmean(ages[4:-4]) == pytest.approx(3, abs=0.05)


def test_artificial_delays_are_uniform():
    record = run("apam:max_delay=4,rate=0.0001", Curve(), 1, 400)
    delays = [mark.values["staleness"] for mark in record.logs[0].steps]
    assert delays[0] == 0 and delays[1] <= 1
    counts = [delays[5:].count(delay) for delay in range(5)]
    assert sum(counts) == 395
    assert stats.chisquare(counts).pvalue > 0.01


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(StrategyError, match="draws the delays of one worker, and 2 have"):
        parse("apam:max_delay=3").roles(2)
    for text, words in [("rate=0", "does not learn"), ("beta1=1", "no average"), ("eps=0", "divides by 0")]:
        with pytest.raises(StrategyError, match=words):
            parse(f"apam:{text}")


# 6. and 7. Speed-up


def test_speed_up_bends_where_the_master_is_busy():
    """One epoch's time from the row of one worker, the master's service from that of 20; the rows between follow."""
    curve = {workers: speedup(workers=workers) for workers in (1, 2, 5, 10, 20)}
    assert curve[1] == pytest.approx(1)
    assert 1.9 <= curve[2] <= 2.1 and 4.4 <= curve[5] <= 5.0 and 7 <= curve[10] <= 10 and 11 <= curve[20] <= 18


def test_synchronous_epochs_with_a_fixed_batch_have_a_best_number_of_workers():
    times = [sync_epoch_time(workers=workers) for workers in range(1, 41)]
    best = times.index(min(times)) + 1
    assert 3 <= best <= 12 and times[19] > min(times)


# 8. Quality


@pytest.mark.slow
def test_quality_does_not_depend_on_the_number_of_workers():
    """As many gradients of as many samples for all: 400 of 32. Within 5 percent of each other, and SGD far below."""
    accuracy = {
        workers: run("apam", Digits(), workers, 400 // workers, batch=32 * workers).results[0]["metric"]["accuracy"]
        for workers in (1, 4, 8)
    }
    assert max(accuracy.values()) - min(accuracy.values()) < 0.05 and min(accuracy.values()) > 0.9
    plain = run("apam:rule=sgd,rate=0.05", Digits(), 8, 50, batch=256).results[0]["metric"]["accuracy"]
    assert plain < accuracy[8]
