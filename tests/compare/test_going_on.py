"""A grid that was ended and goes on: what is read, what runs again, and what is refused."""

import json

import pytest

from geartrain.compare.finished import read_result
from geartrain.compare.folder import differences
from geartrain.compare.runner import run_grid
from geartrain.errors import ConfigurationError, DeadlockError
from tests.compare.fakes import Fake, FakeEngine, Silent, grid


def go_on(out, *, engine=None, **values):
    engine = engine or FakeEngine()
    return run_grid(grid(engine=engine, out=out, resume=True, **values), Silent()), engine


def test_finished_runs_are_read_and_give_the_same_results(tmp_path):
    first = run_grid(grid(out=tmp_path, clusters=("ethernet-1g", "ethernet-10g")), Silent())
    before = (tmp_path / "compare.json").read_bytes()
    second, engine = go_on(tmp_path, clusters=("ethernet-1g", "ethernet-10g"))
    assert engine.calls == []
    assert (tmp_path / "compare.json").read_bytes() == before
    assert [result.mean for result in second.results] == [result.mean for result in first.results]
    assert [result.busiest for result in second.results] == [result.busiest for result in first.results]
    assert [result.closed_form for result in second.results] == [result.closed_form for result in first.results]
    assert second.baselines == first.baselines and all(result.read for result in second.results)


def test_runs_that_failed_or_were_stopped_run_again(tmp_path):
    def trouble(main, workers, run):
        if main.strategy.time == 1.0 and main.evaluate:
            raise DeadlockError("no rank can continue")
        if main.strategy.time == 2.0:
            run.interrupted = "interrupted from the keyboard"

    first = run_grid(grid(engine=FakeEngine(trouble), out=tmp_path), Silent())
    assert first.interrupted and [result.error is None for result in first.results] == [False, False]
    second, engine = go_on(tmp_path)
    assert [call[0] for call in engine.calls] == ["fake:time=1,nbytes=1000", "fake:time=2,nbytes=4000"]
    assert [result.error for result in second.results] == [None, None]


def test_a_run_that_begins_takes_away_the_word_that_it_is_complete(tmp_path):
    def trouble(main, workers, run):
        if main.evaluate:
            raise KeyboardInterrupt

    run_grid(grid(out=tmp_path), Silent())
    run_grid(grid(engine=FakeEngine(trouble), out=tmp_path), Silent())
    one = grid(out=tmp_path)
    assert read_result(one, one.cells[0]) is None and read_result(one, one.cells[1]) is not None


def test_a_run_of_another_configuration_is_not_read(tmp_path):
    run_grid(grid(out=tmp_path), Silent())
    other = grid(out=tmp_path, batch=32)
    assert read_result(other, other.cells[0]) is None
    assert read_result(grid(), other.cells[0]) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"steps": 5}, "steps: there 4, here 5"),
        ({"seed": 1}, "seed: there 0, here 1"),
        ({"ranks": (4,)}, "only here: fake-time-1-nbytes-1000--ethernet-1g--4"),
        ({"strategies": (Fake(comm=0.5),)}, r"strategy_fields.comm: there 0.25, here 0.5"),
        ({"options": {"compute": "roofline"}}, 'compute: there null, here "roofline"'),
    ],
)
def test_another_grid_is_refused_with_the_difference_named(values, words, tmp_path):
    run_grid(grid(out=tmp_path), Silent())
    with pytest.raises(ConfigurationError, match=words):
        go_on(tmp_path, **values)


def test_a_cluster_that_has_changed_is_another_grid(tmp_path):
    one = grid(out=tmp_path)
    run_grid(one, Silent())
    cluster = one.clusters[0]
    wire = cluster.topology.wire.model_copy(update={"rate": 2 * cluster.topology.wire.rate})
    changed = cluster.model_copy(update={"topology": cluster.topology.model_copy(update={"wire": wire})})
    with pytest.raises(ConfigurationError, match=r'topology\.wire\.rate: there "1 Gbit/s", here "2 Gbit/s"'):
        go_on(tmp_path, clusters=(changed,))


def test_nothing_to_go_on_with(tmp_path):
    with pytest.raises(ConfigurationError, match=r"has no grid\.json"):
        go_on(tmp_path)


def test_differences_name_the_path():
    assert differences({"a": {"b": 1, "c": [2]}, "d": 0}, {"a": {"b": 1, "c": [3]}}) == [
        "a.c: there [2], here [3]",
        "d: there 0, here null",
    ]


def test_targets_and_checkpoints_stand_in_the_configuration(tmp_path):
    run_grid(grid(out=tmp_path, checkpoint_every=2), Silent())
    kept = json.loads((tmp_path / "grid.json").read_text())
    assert all(cell["checkpoint_every"] == 2 and cell["targets"] is None for cell in kept["cells"].values())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"checkpoint_every": 5}, "--checkpoint-every needs a folder"),
        ({"checkpoint_every": -1}, "give 1 step or more"),
        ({"meta": True, "checkpoint_every": 5}, "nothing to save"),
        ({"jobs": 0}, "at least 1 run"),
        ({"jobs": 2, "engine_name": "real"}, "--jobs is for simulated runs"),
    ],
)
def test_what_cannot_be_saved_or_done_at_once_is_refused(values, words):
    with pytest.raises(ConfigurationError, match=words):
        run_grid(grid(**values), Silent())
