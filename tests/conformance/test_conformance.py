"""One suite for every method of the table, on the simulated engine and, in part, on real processes."""

import math

import pytest
import torch

from geartrain.errors import NotFinite
from geartrain.runtime.loop import Training
from geartrain.runtime.strategy import Limit
from geartrain.strategies import TABLE, parse
from geartrain.tasks.digits import Digits
from tests.conformance.cases import (
    REAL_VARIANTS,
    SIMULATED,
    STEPS,
    VARIANTS,
    cells,
    integers,
    limit_cells,
    real_engine,
    variants,
)
from tests.conformance.harness import (
    CLUSTER,
    Steps,
    plain_loop,
    predicted,
    resume,
    run,
    sent_per_step,
    train,
)
from tests.conformance.tasks import Curve, DigitsAtRate, Exploding, Golden

CHECKS = {
    "several_workers",
    "one_rank",
    "same_history",
    "counted_bytes",
    "resume",
    "one_process",
    "awkward_parameters",
    "hooks_gone",
    "converges",
    "meta",
    "not_finite",
}


def equal(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_every_method_has_variants_and_reasons():
    assert set(VARIANTS) == set(TABLE)
    assert all(set(entry.opt_outs) <= CHECKS and all(entry.opt_outs.values()) for entry in TABLE.values())
    assert all(parse(text).name == name for name, texts in VARIANTS.items() for text in texts)


@pytest.mark.parametrize("text", variants("one_rank"))
@pytest.mark.parametrize("task", [Curve(), Golden()], ids=lambda task: task.name)
def test_one_rank_is_the_plain_loop(text, task):
    result = train(SIMULATED, parse(text), task, 1)[0]
    assert equal(result["weights"], plain_loop(task, steps=4, batch=8))


@pytest.mark.parametrize("text", variants("same_history", 3))
def test_same_seed_same_history(text):
    main = Steps(parse(text), Curve(), steps=3, batch=8)
    first, second = run(SIMULATED, main, 3), run(SIMULATED, main, 3)
    assert [r.get("losses") for r in first.results] == [r.get("losses") for r in second.results]
    assert first.logs == second.logs


def named(value):
    """A limit as a test's name."""
    return f"{value.special} {value.relation} {value.other}" if isinstance(value, Limit) else None


@pytest.mark.parametrize(("limit", "workers"), limit_cells(1, 2, 4), ids=named)
def test_declared_limits(limit, workers):
    special = train(SIMULATED, limit.special, integers(limit.special), workers)
    other = train(SIMULATED, limit.other, integers(limit.other), workers)
    assert equal(special[0]["weights"], other[0]["weights"])
    if workers <= 2:  # a sum of two has one order only
        task = Curve(linear=limit.linear)
        special = train(SIMULATED, limit.special, task, workers, steps=6)
        other = train(SIMULATED, limit.other, task, workers, steps=6)
        if limit.relation == "equals":
            assert equal(special[0]["weights"], other[0]["weights"])
        else:
            tolerance = {"rtol": limit.tolerance, "atol": limit.tolerance}
            torch.testing.assert_close(special[0]["weights"], other[0]["weights"], **tolerance)


@pytest.mark.parametrize(("text", "workers"), cells("counted_bytes", 1, 2, 3, 5))
def test_counted_bytes_and_messages_are_those_of_the_cost(text, workers):
    strategy, task = parse(text), integers(parse(text))
    # What is sent at the end of a step, without waiting, counts in the next one where computing takes no time.
    skip, steps = strategy.cycle, 3 * strategy.cycle
    record = run(SIMULATED, Steps(strategy, task, steps=steps, batch=8), workers)
    assert sent_per_step(record, steps, skip) == list(predicted(strategy, task, workers))


@pytest.mark.parametrize("text", variants("several_workers", 3))
def test_three_ranks_agree_with_one_process(text):
    """31 elements and 8 samples on 3 ranks: nothing divides. Integer data, so that sums are exact in any order."""
    results = [r for r in train(SIMULATED, parse(text), integers(parse(text)), 3) if "weights" in r]
    assert len(results) == 3
    assert all(equal(result["weights"], plain_loop(Golden(), steps=4, batch=8)) for result in results)


@pytest.mark.parametrize("text", variants("several_workers", 16))
def test_more_ranks_than_elements_in_some_tensors(text):
    task = integers(parse(text))
    results = train(SIMULATED, parse(text), task, 16, steps=1, batch=16)
    assert equal(results[0]["weights"], plain_loop(task, steps=1, batch=16))


@pytest.mark.parametrize("text", variants("one_process", 3))
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    # Twenty steps of sums in another order; Adam divides by the root of small second moments, which enlarges it.
    [(torch.float32, 2e-4), (torch.float64, 1e-12)],
    ids=["float32", "float64"],
)
def test_equals_one_process_with_the_whole_batch(text, dtype, tolerance):
    task = Curve(dtype)
    result = train(SIMULATED, parse(text), task, 3, steps=20, batch=12)[0]
    for mine, plain in zip(result["weights"], plain_loop(task, steps=20, batch=12), strict=True):
        torch.testing.assert_close(mine, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("text", variants("resume", 2))
def test_saved_in_mid_run_and_continued(text):
    strategy, task = parse(text), Curve()
    whole = train(SIMULATED, strategy, task, 2, steps=5)
    saved = train(SIMULATED, strategy, task, 2, steps=2)
    rest = resume(SIMULATED, strategy, task, 2, steps=3, saved=saved)
    for before, after, full in zip(saved, rest, whole, strict=True):
        assert before.get("losses", []) + after.get("losses", []) == full.get("losses", [])
        assert equal(after.get("weights", []), full.get("weights", []))


@pytest.mark.parametrize(("text", "workers"), cells("awkward_parameters", 1, 2, 3))
def test_unused_frozen_and_tied_parameters(text, workers):
    task = integers(parse(text), awkward=True)
    result = train(SIMULATED, parse(text), task, workers)[0]
    assert equal(result["weights"], plain_loop(task, steps=4, batch=8))


@pytest.mark.parametrize("text", variants("hooks_gone"))
def test_nothing_is_left_after_close(text):
    workers = 2 if text in variants("hooks_gone", 2) else 1
    for result in train(SIMULATED, parse(text), integers(parse(text), awkward=True), workers):
        assert result.get("hooks", 0) == 0 and result.get("gradients", 0) == 0


@pytest.mark.parametrize("text", variants("meta"))
def test_meta_tensors_take_the_same_time_and_bytes(text):
    workers = 3 if text in variants("meta", 3) else 1
    main = Steps(parse(text), integers(parse(text)), steps=2, batch=8)
    shapes, numbers = run(SIMULATED, main, workers, meta=True), run(SIMULATED, main, workers)
    assert shapes.results[0]["losses"] == [None, None]
    assert [log.ops for log in shapes.logs] == [log.ops for log in numbers.logs]
    assert [log.end for log in shapes.logs] == [log.end for log in numbers.logs]


@pytest.mark.parametrize("text", variants("not_finite", 3))
def test_a_loss_that_is_not_finite_stops_everybody_in_the_same_step(text):
    ends = {}

    def main(ctx):
        try:
            ends[ctx.rank] = training(ctx)
        except NotFinite as error:
            ends[ctx.rank] = error

    training = Training(strategy=parse(text), task=Exploding(rank=1, step=2), steps=5, batch=6)
    services = training.strategy.roles(3).services
    record = SIMULATED.run(main, CLUSTER, workers=3, services=services)
    assert (ends[1].rank, ends[1].step) == (1, 2)
    assert ends[0]["stopped"] == ends[2]["stopped"] == 2
    assert len(ends) == 3 + len(services)  # the services were told, too
    assert math.isinf(record.logs[1].steps[-1].values["loss"])


@pytest.mark.parametrize("name", TABLE)
def test_digits_converges(name):
    strategy = parse(VARIANTS[name][0])
    workers = 2 if VARIANTS[name][0] in variants("converges", 2) else 1
    # A vote moves each weight by the whole rate, so it needs one for signs.
    task = DigitsAtRate(rate=0.001) if name == "sign_sgd" else Digits()
    training = Training(strategy=strategy, task=task, steps=STEPS.get(name, 120), batch=64)
    results = run(SIMULATED, training, workers).results
    assert results[0]["metric"]["accuracy"] > 0.9
    learner = next(result for result in results if result["losses"][0] is not None)  # not all need to see a loss
    assert learner["final_loss"] < learner["losses"][0] / 4


# Real processes


@pytest.mark.multi
@pytest.mark.parametrize("text", REAL_VARIANTS)
def test_real_processes_give_the_weights_and_bytes_of_simulated_ones(text):
    strategy, task = parse(text), integers(parse(text), awkward=True)
    main = Steps(strategy, task, steps=3, batch=8)
    record = run(real_engine(), main, 3)
    simulated = run(SIMULATED, main, 3)
    for rank in range(3):
        assert equal(record.results[rank]["weights"], simulated.results[rank]["weights"])
    if "native" not in str(getattr(strategy, "exchange", "")):  # a backend's own algorithm is its own affair
        assert sent_per_step(record, 3) == sent_per_step(simulated, 3) == list(predicted(strategy, task, 3))


@pytest.mark.multi
def test_a_loss_that_is_not_finite_ends_real_processes():
    training = Training(strategy=parse("parameter_server:servers=2"), task=Exploding(rank=1, step=2), steps=5, batch=6)
    with pytest.raises(NotFinite, match="worker 1 became inf in step 2") as caught:
        run(real_engine(), training, 3)
    assert (caught.value.rank, caught.value.step) == (1, 2)
