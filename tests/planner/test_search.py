"""The search on workloads made by hand: against all candidates asked one by one, and what it says of them."""

import dataclasses
import itertools
import pickle
import re

import pytest

from geartrain.cli import planning
from geartrain.errors import CannotFit, ConfigurationError
from geartrain.planner import confirm, lemmas, notes, space, why
from geartrain.planner.ask import Candidate
from geartrain.planner.predictor import Predictor
from geartrain.planner.search import plan
from geartrain.planner.statistics import Statistics
from geartrain.predict.closed import predict
from geartrain.runtime.strategy import Strategy
from geartrain.strategies import TABLE, parse
from tests.planner import made


def all_of(name, ranks):
    """Every combination of the settings that are searched."""
    settings = dict(space.SPACE[name])
    if "servers" in settings:
        settings["servers"] = [str(count) for count in range(1, 2 * ranks + 1)]
    for values in itertools.product(*settings.values()):
        try:
            yield space.with_settings(parse(name), dict(zip(settings, values, strict=True)))
        except ConfigurationError:
            continue


@pytest.mark.parametrize("rate", ["1 Gbit/s", "25 Gbit/s"])
def test_no_combination_of_settings_is_much_better(rate):
    asked = made.ask(cluster=made.cluster(rate), batch=8)
    found = plan(asked)
    times = {}
    for name in ("synchronous", "dear", "mg_wfbp", "peer_to_peer", "parameter_server"):
        for strategy in all_of(name, 4):
            try:
                times[str(strategy)] = predict(asked.question(strategy, 4, 8)).step_time
            except ConfigurationError:
                continue
    assert len(times) > 80
    assert found.best.step_time <= 1.01 * min(times.values())
    assert found.best.ranks == 4
    assert found.best.closed == predict(asked.question(found.best.strategy, 4, 8))


def test_one_of_each_method_in_order():
    found = plan(made.ask(batch=8))
    few = [found.best, *found.runners_up]
    names = [one.strategy.name for one in few]
    assert sorted(names) == ["dear", "mg_wfbp", "parameter_server", "peer_to_peer", "synchronous"]
    assert [one.score for one in few] == sorted(one.score for one in few)
    assert len(found.why) == len(found.runners_up)
    rejected = dict(found.rejected)
    assert "switch that adds" in rejected["switchml"]
    assert {one.strategy.name for one in found.faster} <= set(space.changes_learning())


def test_only_methods_that_declare_it_compete_by_seconds():
    for name in space.SPACE:
        if name != "single":
            limits = parse(name).limits()
            assert any(limit.other.name in ("synchronous", "single") for limit in limits), name
            assert any(type(limit.special) is TABLE[name].kind for limit in limits), name
    everything = {*space.SPACE, *space.NEEDS_MORE, *space.OWN_SAMPLES, *space.changes_learning()}
    assert everything == set(TABLE)
    for name, settings in space.SPACE.items():
        for setting, values in settings.items():
            assert list(space.neighbours(parse(name), setting, ())) == []
            for strategy in space.neighbours(parse(name), setting, values[:1]):
                assert isinstance(strategy, Strategy)


def test_slow_wires_are_left_alone():
    """Minutes of exchange for milliseconds of computing: one worker is faster than four."""
    found = plan(made.ask(cluster=made.cluster("1 Mbit/s", memory="4 GiB"), batch=4))
    assert (found.best.ranks, found.best.strategy.name) == (1, "single")
    assert any(note.startswith("workers: 1 of 4; with all of them") for note in found.notes)


def test_as_many_workers_as_are_efficient():
    workload, cluster = made.blocks(flop=3e8), made.cluster("10 Gbit/s", memory="64 GiB")
    asked = made.ask(cluster=cluster, batch=64, ranks=16, workload=workload)
    most = plan(asked).best
    wanted = (most.closed.efficiency + 1) / 2
    found = plan(dataclasses.replace(asked, efficiency=wanted)).best
    assert most.closed.efficiency < wanted <= found.closed.efficiency
    assert 1 <= found.ranks < 16
    more = predict(asked.question(found.strategy, 2 * found.ranks, 64)) if found.ranks > 1 else None
    assert more is None or more.efficiency < wanted


def _notes(asked, candidate):
    return list(notes.notes(Predictor(asked), candidate, candidate, ()))


def test_efficiency_that_memory_forbids():
    """Four samples keep 1 GiB, so that one worker has no room for the batch, and two are not as efficient."""
    with pytest.raises(ConfigurationError, match="100% does not fit"):
        plan(made.ask(batch=4, efficiency=0.9999))


def test_lemma_2_gives_the_first_number_of_servers():
    asked = made.ask(batch=8)
    alone = predict(asked.question(parse("synchronous"), 4, 8)).compute
    size = 4 * (4 * 2**20 + 1024)
    assert notes.servers(Predictor(asked), 4, 8) == lemmas.servers_for(size, 4, 1.25e9, alone)
    slow = made.ask(batch=8, cluster=made.cluster("1 Gbit/s"))
    first = Candidate(closed=predict(slow.question(parse("synchronous"), 4, 8)))
    assert any("by lemma 2, 42 would" in note and "more than there are" in note for note in _notes(slow, first))


def test_memory_that_is_missing():
    asked = made.ask(cluster=made.cluster(memory="64 MiB"), recompute=True, batch=4)
    with pytest.raises(CannotFit) as caught:
        plan(asked)
    error = caught.value
    # Parameters, gradients and momentum of 16.8 MB each, and 268.4 MB that a sample keeps.
    assert error.need == pytest.approx(3 * 16.78e6 + 268.44e6, rel=1e-3)
    assert (error.have, error.missing) == (64 * made.MIB, error.need - 64 * made.MIB)
    assert "activations 268.4 MB" in str(error)
    assert "checkpointing=blocks, one sample for each and an optimizer that keeps nothing (sgd): 100.7 MB" in str(error)
    assert "the same in numbers of two bytes, dtype=fp16: 50.34 MB" in str(error)
    assert "checkpointing=blocks: 117.5 MB, still too much" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.need, again.have) == (str(error), error.need, error.have)


def test_the_largest_batch_that_fits_is_a_way_out():
    """Two workers with 16 samples each: 4 GiB and more; 3 samples are 768 MiB beside 48 MiB."""
    with pytest.raises(CannotFit, match=r"a batch of 6: 855\.7 MB"):
        plan(made.ask(ranks=2, batch=32))


def test_what_cannot_be_placed_is_no_matter_of_memory():
    with pytest.raises(ConfigurationError, match="no way to train"):
        plan(made.ask(batch=2))


def test_the_best_are_simulated_and_reordered():
    asked = made.ask(batch=8, confirm=2)
    found = plan(asked)
    few = [found.best, *found.runners_up]
    assert [one.confirmed is not None for one in few[:3]] == [True, True, False]
    assert found.best.step_time <= few[1].step_time
    for one in few[:2]:
        assert one.step_time == pytest.approx(one.confirmed.step_time, rel=1e-12)
        assert one.confirmed.how == "simulated"


def test_more_workers_than_are_simulated_are_corrected_by_fewer(monkeypatch):
    monkeypatch.setattr(confirm, "MOST_RANKS", 2)
    asked = made.ask(batch=8, confirm=1)
    predictor = Predictor(asked)
    first = Candidate(closed=predictor(parse("synchronous"), 4, 8))
    (found,) = confirm.confirmed([first], predictor, lambda what: None)
    assert (found.confirmed.question.ranks, found.confirmed.question.batch) == (2, 4)
    form = predict(asked.question(parse("synchronous"), 2, 4))
    assert found.step_time == pytest.approx(first.step_time * found.confirmed.step_time / form.step_time)
    assert any(note.startswith("simulated with 2 of 4 workers: a step of all has ") for note in _notes(asked, found))
    assert planning._side_by_side([found, first]) == [first.closed, first.closed]
    whole = dataclasses.replace(first, confirmed=first.closed)
    assert planning._side_by_side([whole, found]) == [first.closed]


def test_why_tells_parts_that_make_up_the_difference():
    asked = made.ask(batch=8)
    base = predict(asked.question(parse("synchronous"), 4, 8))
    best = Candidate(closed=dataclasses.replace(base, step_time=0.010, compute=0.008, exposed_communication=0.002))
    slow = dataclasses.replace(base, step_time=0.016, compute=0.007, exposed_communication=0.005, wait=0.004)
    told = why.lost(best, Candidate(closed=slow))
    assert told.startswith("synchronous: 60.00% slower, 6 ms more a step: ")
    assert "4 ms more waiting, 3 ms more exposed communication, although 1 ms less computing" in told
    twice = why.lost(best, Candidate(closed=base, steps_factor=2.0, correction=0.010 / base.step_time))
    assert "2 times as slow" in twice and "it needs 2 times the steps" in twice
    assert "the same time" in why.lost(best, best)
    larger = dataclasses.replace(base, question=asked.question(parse("synchronous"), 4, 16), step_time=0.030)
    assert "50.00% slower, 5 ms more for 8 samples" in why.lost(best, Candidate(closed=larger))


def statistics(**factors):
    return Statistics(
        task="digits",
        target="loss of 0.3",
        ranks=2,
        batch=32,
        date="2026-01-01",
        factors=factors,
        unreached={"dasgd": 50},
    )


def test_methods_that_learn_something_else_compete_by_measured_steps():
    asked = made.ask(batch=8, cluster=made.cluster("500 Mbit/s"))
    plain = plan(asked)
    assert plain.best.strategy.name in space.SPACE
    assert "local_sgd" in {one.strategy.name for one in plain.faster}
    few_steps = plan(dataclasses.replace(asked, statistics=statistics(synchronous=1.0, local_sgd=1.1)))
    assert str(few_steps.best.strategy) == "local_sgd"
    assert few_steps.best.steps_factor == 1.1
    assert few_steps.best.score == pytest.approx(1.1 * few_steps.best.closed.step_time / 8)
    assert any(re.search("measured on digits with 2 workers .* is assumed", note) for note in few_steps.notes)
    assert dict(few_steps.rejected)["dasgd"] == "it did not come to the target within 50 steps"
    assert "dasgd" not in {one.strategy.name for one in few_steps.faster}
    many_steps = plan(dataclasses.replace(asked, statistics=statistics(synchronous=1.0, local_sgd=50.0)))
    assert many_steps.best.strategy.name in space.SPACE


def test_methods_that_learn_something_else_are_asked_with_all_workers():
    """On these wires one worker is faster than four that exchange gradients, and not than four that seldom average."""
    asked = made.ask(batch=4, cluster=made.cluster("500 Mbit/s", memory="4 GiB"))
    plain = plan(asked)
    assert plain.best.ranks == 1
    diloco = next(one for one in plain.faster if one.strategy.name == "diloco")
    assert diloco.ranks == 4
    assert diloco.closed.throughput > plain.best.closed.throughput
    found = plan(dataclasses.replace(asked, statistics=statistics(synchronous=1.0, diloco=1.0)))
    assert (found.best.strategy.name, found.best.ranks) == ("diloco", 4)
    assert any("it has 1 worker(s)" in line for line in found.why)
