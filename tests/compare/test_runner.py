import json
import os
from dataclasses import replace

import pytest

from geartrain.cluster import load_cluster
from geartrain.compare.cell import KEYS
from geartrain.compare.runner import describe, num_runs, run_grid
from geartrain.errors import ConfigurationError, DeadlockError, NotFinite, PlacementError, TaskError
from geartrain.runtime.targets import Targets
from tests.compare.fakes import Fake, FakeEngine, Silent, grid

_ETHERNET = load_cluster("ethernet-1g")
TWO_NODES = _ETHERNET.model_copy(update={"nodes": (_ETHERNET.nodes[0].model_copy(update={"count": 2}),)})


def test_cells_go_cluster_by_cluster_from_few_workers_to_many():
    engine = FakeEngine()
    progress = Silent()
    one = grid(engine=engine, clusters=("ethernet-1g", "ethernet-10g"), ranks=(4, 2))
    comparison = run_grid(one, progress)
    order = [(r.cell.cluster.name, r.cell.ranks, r.cell.strategy.time) for r in comparison.results]
    cells = [(2, 1.0), (2, 2.0), (4, 1.0), (4, 2.0)]
    assert order == [(cluster, *cell) for cluster in ("ethernet-1g", "ethernet-10g") for cell in cells]
    assert len(engine.calls) == num_runs(one) == progress.told.count("done") == 10


def test_object_of_a_cell():
    result = run_grid(grid(), Silent()).results[0]
    assert list(result.as_json()) == list(KEYS)
    assert result.as_json() == {
        "strategy": "fake:time=1,nbytes=1000",
        "engine": "simulated",
        "cluster": "ethernet-1g",
        "ranks": 2,
        "steps": 4,
        "step_time": 1.0,
        "compute": 0.75,
        "exposed_communication": 0.25,
        "wait": 0.0,
        "bytes_sent_per_rank": 1000,
        "messages_per_rank": 2,
        "final_loss": -0.5,
        "metric": 0.5,
        "time_to_target": None,
        "closed_form_step_time": 1.0,
        "out": None,
    }


def test_efficiency_is_compute_on_one_worker_over_what_all_workers_took():
    comparison = run_grid(grid(ranks=(4,)), Silent())
    assert [comparison.efficiency(result) for result in comparison.results] == [0.25, 0.125]
    without = run_grid(grid(single=None), Silent())
    assert without.efficiency(without.results[0]) is None


def test_a_target_is_told_reached_or_not():
    result = run_grid(grid(), Silent()).results[0]
    assert describe("cell", result).endswith("after 4 steps")
    assert describe("cell", result, Targets(evaluate_every=2)).endswith("after 4 steps")
    assert describe("cell", result, Targets(metric=0.9)).endswith("after 4 steps, target not reached")
    reached = replace(result, time_to_target=2.0)
    assert describe("cell", reached, Targets(metric=0.9)).endswith("after 4 steps, target reached in 2 s")


def test_a_cell_that_fails_leaves_the_others():
    def trouble(main, workers, run):
        if main.strategy.time == 1.0 and workers == 2:
            raise DeadlockError("no rank can continue", rank=1, step=2)

    comparison = run_grid(grid(engine=FakeEngine(trouble), ranks=(2, 4)), Silent())
    assert [result.error for result in comparison.results] == ["no rank can continue", None, None, None]
    first = comparison.results[0].as_json()
    assert (first["steps"], first["step_time"], first["closed_form_step_time"]) == (0, None, 1.0)
    assert len(comparison.failed) == 1 and not comparison.interrupted


def test_a_loss_that_is_no_number_ends_with_what_there_is(tmp_path):
    def trouble(main, workers, run):
        if not main.evaluate:
            return
        error = NotFinite("the loss of worker 1 became nan in step 2", rank=1, step=2)
        run.logs[1].steps[2:] = []
        error.record = run
        raise error

    result = run_grid(grid(engine=FakeEngine(trouble), out=tmp_path), Silent()).results[0]
    assert (result.steps, result.mean.step_time, result.error) == (2, 1.0, "the loss of worker 1 became nan in step 2")
    assert json.loads((tmp_path / result.cell.folder / "run.json").read_text())["summary"]["error"] == result.error


def test_interrupted_run_is_written_and_ends_the_grid(tmp_path):
    def trouble(main, workers, run):
        if main.strategy.time == 1.0 and main.evaluate:
            run.interrupted = "interrupted from the keyboard"

    comparison = run_grid(grid(engine=FakeEngine(trouble), out=tmp_path), Silent())
    assert comparison.interrupted and len(comparison.results) == 1 and not comparison.failed
    assert (tmp_path / comparison.results[0].cell.folder / "run.json").exists()


def test_interrupted_between_cells_keeps_the_results(tmp_path):
    def trouble(main, workers, run):
        if main.strategy.time == 2.0:
            raise KeyboardInterrupt

    comparison = run_grid(grid(engine=FakeEngine(trouble), out=tmp_path), Silent())
    assert comparison.interrupted and len(comparison.results) == 1
    assert len(json.loads((tmp_path / "compare.json").read_text())) == 1


def test_every_cell_has_a_folder(tmp_path):
    comparison = run_grid(grid(out=tmp_path / "new"), Silent())
    names = {"run.json", "steps.jsonl", "trace.json.gz"}
    for result in comparison.results:
        assert set(os.listdir(result.out)) == names
    run = json.loads((tmp_path / "new" / "fake-time-1-nbytes-1000--ethernet-1g--2" / "run.json").read_text())
    assert run["config"]["strategy_fields"] == {"time": 1.0, "comm": 0.25, "nbytes": 1000, "server": False}
    assert run["config"]["cluster"]["topology"]["wire"]["rate"] == "1 Gbit/s"
    assert (run["config"]["batch"], run["seed"], run["closed_form"]["compute"]) == (64, 0, 1.0)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"batch": 3, "ranks": (2, 4)}, TaskError, "batch of 3 cannot be dealt to 4 workers"),
        ({"steps": 0}, TaskError, "0 steps train nothing"),
        ({"ranks": ()}, ConfigurationError, "nothing to compare"),
        ({"ranks": (2, 2)}, ConfigurationError, "twice"),
        ({"clusters": (TWO_NODES,), "ranks": (4,)}, PlacementError, "4 workers need 4 devices"),
        ({"clusters": (TWO_NODES,), "strategies": (Fake(server=True),)}, PlacementError, "nodes of their own"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(values, error, words, tmp_path):
    engine = FakeEngine()
    with pytest.raises(error, match=words):
        run_grid(grid(engine=engine, out=tmp_path / "out", **values), Silent())
    assert engine.calls == [] and not (tmp_path / "out").exists()


def test_an_output_folder_that_cannot_be_is_refused_before_anything_runs(tmp_path):
    engine = FakeEngine()
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="cannot write"):
        run_grid(grid(engine=engine, out=tmp_path / "file"), Silent())
    assert engine.calls == []


def test_services_are_run_but_not_counted_in_means():
    comparison = run_grid(grid(strategies=(Fake(server=True),)), Silent())
    assert comparison.results[0].mean.bytes_sent == 1000
    assert comparison.grid.config(comparison.results[0].cell)["services"] == ["server"]


def test_closed_form_takes_the_compute_of_the_run_where_that_is_not_a_roofline():
    assert run_grid(grid(), Silent()).results[0].as_json()["closed_form_step_time"] == 1.0
    own = grid(roofline=lambda cluster: False, strategies=(Fake(comm=0.25),))
    assert run_grid(own, Silent()).results[0].as_json()["closed_form_step_time"] == 0.75


def test_a_closed_form_that_cannot_be_fails_its_cell_only():
    class Opaque(Fake):
        def cost(self, workload, place, batch):
            raise ConfigurationError("no closed form for this")

    comparison = run_grid(grid(strategies=(Opaque(), Fake(time=2.0))), Silent())
    assert [result.error for result in comparison.results] == ["no closed form for this", None]
