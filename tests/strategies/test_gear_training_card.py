"""What must hold of gear training (arXiv 1806.03925), in the definition that this project gives it."""

import copy
from typing import ClassVar

import pytest
import torch

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Constant, Roofline
from geartrain.cost.terms import Traffic
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import NotFinite, StrategyError
from geartrain.record.split import split
from geartrain.runtime.loop import Training
from geartrain.runtime.tracing import task_workload
from geartrain.runtime.worker import Batch
from geartrain.strategies import parse
from geartrain.strategies.gear_cost import two_gears
from geartrain.strategies.gear_speed import Plan, Settings, Times, busy, plan_of
from geartrain.tasks.digits import Digits
from geartrain.validation.quantities import load_table
from geartrain.workload.spec import Part
from tests.conformance.cases import real_engine
from tests.conformance.harness import CLUSTER, Steps, plain_loop, predicted, run, sent_per_step, train
from tests.conformance.tasks import Chain, Curve
from tests.strategies.tower import Tower

ENGINE = SimulatedEngine(Roofline(1e-3))
EXACT = {"rtol": 1e-12, "atol": 1e-13}
BATCH = 8


def weights(text, task, workers=2, *, steps=3, batch=BATCH):
    return train(ENGINE, parse(text), task, workers, steps=steps, batch=batch)[0]["weights"]


def same(left, right):
    return len(left) == len(right) and all(map(torch.equal, left, right))


def close(left, right):
    assert len(left) == len(right)
    for mine, other in zip(left, right, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)


def by_hand(task, ratio, *, steps=3, batch=BATCH, replay=0, slow_top=False, train_bottom=True):
    """Two parts, two optimizers, and the pseudo-code of the card, with autograd's own accumulation."""
    model = task.model(0)
    bottom, top = model.part0, model.part1
    slow, fast = (top, bottom) if slow_top else (bottom, top)
    opt_slow, opt_fast = task.optimizer(slow.parameters()), task.optimizer(fast.parameters())
    batches = task.batches(0, 1, batch, seed=3)
    for _ in range(steps):
        whole, old = batches.take(), copy.deepcopy(bottom)
        rows = list(zip(whole.inputs.chunk(ratio), whole.targets.chunk(ratio), strict=True))
        opt_slow.zero_grad()
        features = []
        for x, y in rows:
            opt_fast.zero_grad()
            # A fast bottom lets all micro-batches through at the parameters that it had when the revolution began.
            h = (old if slow_top else bottom)(x)
            features.append(h.detach())
            loss = task.loss(top, Batch(h, y, 1.0))
            if slow_top:
                old.zero_grad()
                (loss / ratio).backward()
                for p, q in zip(bottom.parameters(), old.parameters(), strict=True):
                    p.grad = ratio * q.grad
                opt_fast.step()
            else:
                loss.backward()
                opt_fast.step()
        if slow_top:
            opt_slow.step()
        elif train_bottom:
            for p in bottom.parameters():
                p.grad /= ratio
            opt_slow.step()
        for _ in range(replay):
            for h, (_, y) in zip(features, rows, strict=True):
                opt_fast.zero_grad()
                task.loss(top, Batch(h, y, 1.0)).backward()
                opt_fast.step()
    return [p.detach() for p in model.parameters()]


# What must hold


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("text", "workers"), [("gear", 1), ("gear", 2), ("gear:gears=3", 3), ("gear:gears=3", 2)])
def test_1_ratio_1_is_plain_sgd_to_the_bit(text, workers, momentum):
    for task in (Tower((2, 1, 1), momentum=momentum), Digits()):
        assert same(weights(text, task, workers), plain_loop(task, steps=3, batch=BATCH))


def test_1_with_adam_each_gear_counts_its_own_steps():
    task = Curve()
    assert same(weights("gear:cuts=2", task), plain_loop(task, steps=3, batch=BATCH))


class Counting(Tower):
    """Notes which inputs the bottom part and which targets the loss has seen."""

    seen: ClassVar = {"inputs": [], "targets": []}

    def model(self, seed):
        model = super().model(seed)
        model.part0.register_forward_pre_hook(lambda _, given: self._note("inputs", given[0]))
        return model

    def loss(self, model, batch):
        self._note("targets", batch.targets)
        return super().loss(model, batch)

    def _note(self, what, tensor):
        if not tensor.is_meta:
            self.seen[what] += tensor[:, 0].tolist()


def test_2_updates_are_r_to_1_and_every_micro_batch_is_used_once():
    task, text = Counting((1, 1)), "gear:speeds=1-4"
    for values in Counting.seen.values():
        values.clear()
    training = Training(strategy=parse(text), task=task, steps=3, batch=BATCH, evaluate=False)
    updates = {}

    def main(ctx):
        worker, batches = parse(text).bind(ctx, task), task.batches(0, 1, BATCH, 0)
        updates[ctx.rank] = [worker.step(batches).updates for _ in range(3)]
        worker.finish()

    record = ENGINE.run(main, CLUSTER, workers=2)
    assert updates == {0: [1, 1, 1], 1: [4, 4, 4]}
    batches = task.batches(0, 1, BATCH, training.seed)
    expected = [batches.take() for _ in range(3)]
    assert Counting.seen["inputs"] == [x for batch in expected for x in batch.inputs[:, 0].tolist()]
    assert Counting.seen["targets"] == [y for batch in expected for y in batch.targets[:, 0].tolist()]
    row = 3 * 8  # width of the tower, eight bytes a number
    for log in record.logs:
        mesh = [op for op in log.ops if "send" in op.kind]
        assert [op.nbytes for op in mesh] == [2 * row] * 12


def test_3_with_a_fixed_top_the_bottom_takes_one_step_on_the_macro_batch():
    task = Tower()
    ours, model = weights("gear:speeds=1-0", task, steps=1), task.model(0)
    task.loss(model, task.batches(0, 1, BATCH, 3).take()).backward()
    task.optimizer(model.part0.parameters()).step()
    assert same(ours, [p.detach() for p in model.parameters()])


def test_3_with_a_top_that_learns_nothing_the_bottom_takes_one_step_on_the_mean_of_r_gradients():
    """A top of rate zero in four turns, in place of one that never turns."""
    task = Tower()
    ours, model = weights("gear:speeds=1-4", RateOfTop(rate=task.rate), steps=1), task.model(0)
    task.loss(model, task.batches(0, 1, BATCH, 3).take()).backward()
    task.optimizer(model.part0.parameters()).step()
    close(ours, [p.detach() for p in model.parameters()])


class RateOfTop(Tower):
    """The last part, which has a tensor more than the others, has a rate of zero."""

    def optimizer(self, params):
        params = list(params)
        return torch.optim.SGD(params, lr=self.rate if len(params) == 2 else 0.0)


def test_3_with_a_fixed_bottom_the_head_trains_on_features_that_could_be_computed_before():
    task = Tower()
    ours = weights("gear:speeds=0-4", task)
    assert same(ours, by_hand(task, 4, train_bottom=False))
    assert same(ours[:2], list(task.model(0).part0.parameters()))


def test_4_the_gradient_of_the_bottom_is_that_of_the_mean_loss_at_the_tops_of_the_way():
    task, ratio = Tower(rate=0.1), 4
    ours, model = weights("gear:speeds=1-4", task, steps=1), task.model(0)
    whole = task.batches(0, 1, BATCH, 3).take()
    rows = list(zip(whole.inputs.chunk(ratio), whole.targets.chunk(ratio), strict=True))
    tops = []
    optimizer = task.optimizer(model.part1.parameters())
    for x, y in rows:
        tops.append(copy.deepcopy(model.part1).requires_grad_(False))
        optimizer.zero_grad()
        task.loss(model.part1, Batch(model.part0(x).detach(), y, 1.0)).backward()
        optimizer.step()

    def mean_loss():
        losses = [task.loss(top, Batch(model.part0(x), y, 1.0)) for top, (x, y) in zip(tops, rows, strict=True)]
        return sum(losses) / ratio

    weight = model.part0[0].weight
    (exact,) = torch.autograd.grad(mean_loss(), weight)
    applied = (weight.detach() - ours[0]) / task.rate
    torch.testing.assert_close(applied, exact, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        step, found = 1e-6, []
        for sign in (1, -1):
            weight[1, 2] += sign * step
            found.append(mean_loss().item())
            weight[1, 2] -= sign * step
    assert applied[1, 2].item() == pytest.approx((found[0] - found[1]) / (2 * step), rel=1e-6)


def test_5_digits_are_learned_as_well_as_by_sgd():
    def accuracy(text, workers):
        training = Training(strategy=parse(text), task=Digits(), steps=100, batch=64)
        return SimulatedEngine().run(training, CLUSTER, workers=workers).results[0]["metric"]["accuracy"]

    plain = accuracy("single", 1)
    for ratio in (2, 8):  # 1 is plain SGD to the bit
        assert accuracy(f"gear:speeds=1-{ratio}", 2) >= plain - 0.02


# Time and bytes

DEEP = Tower((8, 2), width=128, dtype=torch.float32, samples=256)
"""The bottom computes four times as much as the top, as nearly as a last layer of one output lets it."""


SLOW = Roofline(0.002)  # arithmetic takes longer than memory everywhere, so that layers add up


def fast_wires(rate="100 GB/s"):
    return load_table({"base": "ethernet-10g", "topology": {"wire": {"latency": "0 us", "rate": rate}}})


def timed(text, workers, cluster):
    """(seconds of a late step, closed form, record) on shapes alone."""
    strategy, model = parse(text), SLOW
    training = Training(strategy=strategy, task=DEEP, steps=7, batch=256, evaluate=False)
    record = SimulatedEngine(model).run(training, cluster, workers=workers, meta=True)
    ends = [max(log.steps[index].end for log in record.logs) for index in (-2, -1)]
    cost = strategy.cost(task_workload(DEEP), Placement(cluster, workers), 256, model)
    return ends[1] - ends[0], cost.step_time, record


def test_6_with_a_balanced_ratio_and_replay_both_gears_are_busy():
    ratio, _, record = timed("gear:speeds=1-4,replay=3", 2, fast_wires())
    for rank, log in zip(split(record).ranks, record.logs, strict=True):
        span = log.steps[-1].end - log.steps[-4].begin
        assert sum(step.shares.compute for step in rank.steps[-4:]) >= 0.9 * span
    lock_step, _, _ = timed("gear", 2, fast_wires())
    assert ratio < lock_step


def test_6_measured_speeds_choose_that_ratio_and_replay():
    chosen = timed("gear:speeds=measured", 2, fast_wires())[0]
    given = timed("gear:speeds=1-4,replay=3", 2, fast_wires())[0]
    assert chosen == pytest.approx(given, rel=1e-9)


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("gear", 1),
        ("gear", 2),
        ("gear:speeds=1-4", 2),
        ("gear:speeds=4-1", 2),
        ("gear:speeds=4-1,stash=false", 2),
        ("gear:speeds=0-2", 2),
        ("gear:speeds=1-4,replay=3", 2),
        ("gear:speeds=1-4,workers=4-1", 5),
    ],
)
def test_times_of_the_closed_form_are_those_of_the_simulation(text, workers):
    seconds, closed, _ = timed(text, workers, fast_wires())
    assert closed == pytest.approx(seconds, rel=0.01)


def test_streaming_takes_no_longer_than_the_cards_formula():
    seconds, _, _ = timed("gear:speeds=1-4", 2, fast_wires())
    work = task_workload(DEEP)
    layers = [sum(getattr(layer, name) for layer in work.layers[:16]) for name in ("forward_flop", "backward_flop")]
    assert two_gears(forward=1, backward=2, top=0.75, ratio=4) == 1 + 12 + 2
    rate = 64 / (SLOW.efficiency * Placement(fast_wires(), 2).device(0).flops_of("fp32"))
    forward, backward = (flop * rate for flop in layers)
    top = (forward + backward) / 4
    assert seconds <= two_gears(forward=forward, backward=backward, top=top, ratio=4) * 1.01


@pytest.mark.parametrize(("text", "workers"), [("gear:speeds=0-3", 2), ("gear:speeds=1-3,workers=2-3", 5)])
def test_bytes_are_those_of_the_formula(text, workers):
    """Nothing comes down to a bottom that learns nothing; rows are sent to whoever has them, and no others."""
    main = Steps(parse(text), Chain(), steps=3, batch=8)
    record = run(ENGINE, main, workers)
    assert sent_per_step(record, 3) == list(predicted(parse(text), Chain(), workers))
    sent = predicted(parse("gear:speeds=1-4"), Tower(), 2)
    assert sent == (Traffic(nbytes=BATCH * 3 * 8, messages=4),) * 2


# Speeds, replay, stash


@pytest.mark.parametrize("ratio", [2, 4, 8])
@pytest.mark.parametrize("replay", [0, 2])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_slow_bottom_and_replay_do_what_the_pseudo_code_says(ratio, replay, workers):
    task = Tower(momentum=0.5)
    close(weights(f"gear:speeds=1-{ratio},replay={replay}", task, workers), by_hand(task, ratio, replay=replay))


def test_a_fast_bottom_with_stash_uses_the_parameters_of_the_revolutions_begin():
    task = Tower(momentum=0.5)
    close(weights("gear:speeds=4-1", task), by_hand(task, 4, slow_top=True))


def test_without_stash_a_gear_holds_what_comes_until_it_has_updated():
    """Then a bottom at speed 4 does what it does on one worker, where nothing is ever in flight."""
    task = Tower((1, 1, 1), momentum=0.5)
    for speeds in ("4-1-2", "2-4-1", "3-1-3"):
        text = f"gear:gears=3,speeds={speeds},stash=false"
        assert same(weights(text, task, 3), weights(text, task, 1))
    assert not same(weights("gear:gears=3,speeds=4-1-2", task, 3), weights("gear:gears=3,speeds=4-1-2", task, 1))


@pytest.mark.parametrize(("workers", "counts"), [("3-2", (3, 2)), ("1-4", (1, 4)), ("2-2", (2, 2))])
@pytest.mark.parametrize("speeds", ["1-1", "1-3", "2-1"])
def test_workers_of_a_gear_together_do_what_one_does(workers, counts, speeds):
    task = Tower(momentum=0.5)
    ours = weights(f"gear:speeds={speeds},workers={workers}", task, sum(counts))
    close(ours, weights(f"gear:speeds={speeds}", task, 2))


def test_fewer_samples_than_the_ratio_make_a_shorter_revolution():
    task = Tower()
    close(weights("gear:speeds=1-8", task, batch=4), by_hand(task, 4, batch=4))
    for speed, due in ((3, (2, 5, 8)), (10**12, tuple(range(1, 9)))):
        assert Plan(parts=(range(1),), workers=(range(1),), speeds=(speed,), replay=0).due(0, 8) == due


def test_linear_scaling_multiplies_the_rate_of_the_slow_gear():
    for scale in (2, 3):
        slow, scaled = (
            weights("gear:speeds=1-4", Tower(), steps=1),
            weights(f"gear:speeds=1-4,max_scale={scale}", Tower(), steps=1),
        )
        start = list(Tower().model(0).part0.parameters())
        close(
            [scale * (a - b) for a, b in zip(slow, start, strict=False)],
            [a - b for a, b in zip(scaled, start, strict=False)],
        )
        assert same(slow[2:], scaled[2:])


PARTS = [Part(modules=(name,), shape=(4,)) for name in "abcd"]


def plan(times, num_workers, **settings):
    chosen = {"gears": 2, "cuts": "even", "speeds": "1-1", "workers": "even", "replay": 0} | settings
    return plan_of(Settings(**chosen), PARTS, num_workers, lambda: times)


def test_speed_cut_and_workers_are_chosen_by_what_was_measured():
    times = Times(parts=[4, 4, 1, 1], mesh=[0, 0, 0, 0])
    fast = plan(times, 2, speeds="measured")
    assert (fast.speeds, fast.replay) == ((1, 4), 3)
    assert plan(times, 2, cuts="measured").parts == (range(1), range(1, 4))
    assert plan(times, 10, workers="measured").workers == (range(8), range(8, 10))
    assert plan(times, 10, workers="measured", speeds="measured").speeds == (1, 1)
    # A mesh that costs more than the balance gains moves the cut.
    dear = Times(parts=[4, 4, 1, 1], mesh=[5, 0, 0, 0])
    assert plan(dear, 2, cuts="measured").parts == (range(2), range(2, 4))
    assert busy(fast, times) == [8, 2]


def test_measured_settings_run_and_all_workers_agree():
    text = "gear:gears=2,cuts=measured,speeds=measured,workers=measured"
    results = train(ENGINE, parse(text), Tower((3, 1, 1), width=16), 3, steps=3)
    assert all(same(result["weights"], results[0]["weights"]) for result in results)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gear:cuts=a+b", "name the first part of each gear"),
        ("gear:speeds=1-2-3", "a whole number for each of the 2 gears"),
        ("gear:speeds=0-0", "nothing is ever updated"),
        ("gear:speeds=1-0,replay=1", "learns nothing from replay"),
        ("gear:speeds=measured,replay=1", "chooses the replay"),
        ("gear:workers=0-2", "leaves a gear without any"),
        ("gear:gears=3,mode=free", "defined for two gears"),
        ("gear:gears=1", "too small"),
    ],
)
def test_settings_that_do_not_fit_are_refused(text, told):
    with pytest.raises(StrategyError, match=told):
        parse(text)


@pytest.mark.parametrize(
    ("text", "task", "workers", "told"),
    [
        ("gear:cuts=head", Tower(), 2, "must name, in order, parts"),
        ("gear:gears=3", Tower(), 3, "as many parts"),
        ("gear:workers=2-2", Tower(), 3, "divides 4 workers"),
        ("gear:mode=free", Tower(), 3, "one worker for each"),
    ],
)
def test_models_and_workers_that_do_not_fit_are_refused(text, task, workers, told):
    with pytest.raises(StrategyError, match=told):
        parse(text).cost(task_workload(task), Placement(CLUSTER, workers), BATCH)


# Free-running


def test_7_free_with_one_in_flight_is_meshed():
    for task in (Tower(momentum=0.5), Digits()):
        free = weights("gear:mode=free,staleness=0,capacity=1", task)
        assert same(free, plain_loop(task, steps=3, batch=BATCH))


@pytest.mark.parametrize("speeds", ["1-1", "2-3", "3-2", "1-4", "0-3", "1-5", "20-20"])
def test_free_gears_with_one_in_flight_update_with_means_as_meshed_ones_without_stash_do(speeds):
    """Also where speeds do not divide, where micro-batches differ in size, and where there are fewer than updates."""
    task = Tower(momentum=0.5)
    meshed = weights(f"gear:stash=false,speeds={speeds}", task)
    close(weights(f"gear:mode=free,capacity=1,speeds={speeds}", task), meshed)


FREE = "gear:mode=free,speeds=1-4,replay=2"


def test_free_gears_run_the_same_way_again_and_send_what_they_say():
    main = Steps(parse(FREE), Tower(), steps=6, batch=BATCH)
    first, second = run(ENGINE, main, 2), run(ENGINE, main, 2)
    assert first.logs == second.logs
    assert sent_per_step(first, 6) == list(predicted(parse(FREE), Tower(), 2))


def test_free_gears_do_not_wait_for_each_other_as_meshed_ones_do():
    def seconds(text):
        record = run(ENGINE, Steps(parse(text), Tower((4, 4), width=64), steps=8, batch=64), 2)
        return max(log.steps[-1].end for log in record.logs)

    assert seconds("gear:mode=free") < 0.75 * seconds("gear")


def test_free_gears_learn_digits_and_replay_while_they_wait():
    training = Training(strategy=parse("gear:mode=free,speeds=1-2,replay=1"), task=Digits(), steps=70, batch=64)
    record = ENGINE.run(training, CLUSTER, workers=2)
    assert record.results[0]["metric"]["accuracy"] > 0.8
    assert sum(step.values["replays"] for step in record.logs[1].steps) > 0


def test_free_gears_without_stash_go_forward_again_at_the_current_parameters():
    task = Tower(momentum=0.5)
    losses = train(ENGINE, parse("gear:mode=free,speeds=2-4,stash=false"), task, 2, steps=20)[1]["losses"]
    assert losses[-1] < losses[0] / 2
    assert losses != train(ENGINE, parse("gear:mode=free,speeds=2-4"), task, 2, steps=20)[1]["losses"]


def test_free_gears_discard_what_is_too_old_and_keep_the_governors_ratio():
    task = Tower((1, 6), width=32, momentum=0.5)
    strategy = parse("gear:mode=free,speeds=4-4,staleness=0,replay=9,capacity=4")

    def main(ctx):
        worker = strategy.bind(ctx, task)
        batches = task.batches(0, 1, 16, 0)
        results = [worker.step(batches) for _ in range(12)]
        worker.finish()
        return results

    bottom, top = SimulatedEngine(Constant(1e-4)).run(main, CLUSTER, workers=2).results
    assert sum(result.values["lost"] for result in top) > 0
    assert {result.staleness for result in top} == {0}
    turns = [sum(result.updates for result in results) for results in (bottom, top)]
    assert turns[0] / 2 <= turns[1] <= 2 * (turns[0] + 4)  # up to four answers are in flight at the end


def test_a_free_run_that_saved_goes_on_like_one_that_is_resumed():
    task, strategy = Tower(momentum=0.5), parse(FREE)
    states = {}

    def main(ctx, state=None):
        worker, batches = strategy.bind(ctx, task), task.batches(0, 1, BATCH, 0)
        if state:
            worker.load_state_dict(state[ctx.rank][0])
            batches.load_state_dict(state[ctx.rank][1])
        else:
            for _ in range(3):
                worker.step(batches)
            worker.settle()
            worker.pause()
            states[ctx.rank] = copy.deepcopy((worker.state_dict(), batches.state_dict()))
        torch.distributed.barrier(group=ctx.workers)
        losses = [worker.step(batches).loss for _ in range(4)]
        worker.finish()
        return losses, [p.detach().clone() for p in worker.model.parameters()]

    whole = ENGINE.run(main, CLUSTER, workers=2).results
    rest = ENGINE.run(lambda ctx: main(ctx, states), CLUSTER, workers=2).results
    for mine, other in zip(whole, rest, strict=True):
        assert mine[0] == other[0]
        assert same(mine[1], other[1])


@pytest.mark.parametrize("text", ["gear", "gear:speeds=1-2,replay=1", "gear:mode=free", "gear:workers=2-1"])
def test_a_loss_that_is_not_finite_ends_all_gears(text):
    ends, workers = {}, 3 if "workers" in text else 2
    training = Training(strategy=parse(text), task=Tower(explode=20), steps=8, batch=BATCH)

    def main(ctx):
        try:
            ends[ctx.rank] = training(ctx)
        except NotFinite as error:
            ends[ctx.rank] = error

    ENGINE.run(main, CLUSTER, workers=workers)
    top = ends.pop(workers - 1)
    assert isinstance(top, NotFinite)
    for result in ends.values():
        assert result["stopped"] is not None
        assert text == "gear:mode=free" or result["stopped"] == top.step


# Real processes


@pytest.mark.multi
def test_real_gears_give_the_weights_of_simulated_ones_and_the_bytes_of_the_cost():
    """Without time for computing, what a simulated top sends last in a step stands at the begin of the next one."""
    strategy, task = parse("gear:gears=3,speeds=1-2-4"), Chain(awkward=True)
    main = Steps(strategy, task, steps=3, batch=8)
    record, simulated = run(real_engine(), main, 3), run(ENGINE, main, 3)
    for mine, other in zip(record.results, simulated.results, strict=True):
        assert same(mine["weights"], other["weights"])
    assert sent_per_step(record, 3) == list(predicted(strategy, task, 3))


@pytest.mark.multi
def test_real_free_gears_learn():
    training = Training(strategy=parse(FREE), task=Tower(), steps=20, batch=BATCH)
    record = real_engine().run(training, CLUSTER, workers=2)
    losses = record.results[1]["losses"]
    assert losses[-1] < losses[0]
    assert sent_per_step(record, 20) == list(predicted(parse(FREE), Tower(), 2))
