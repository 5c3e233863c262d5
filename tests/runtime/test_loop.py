"""The training loop: what it refuses, what it hands back, and that it pickles."""

import pickle

import pytest

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import TaskError
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from geartrain.tasks.digits import Digits

CLUSTER = load_cluster("ethernet-10g")


def training(text="synchronous", **changes):
    return Training(**{"strategy": parse(text), "task": Digits(), "steps": 3, "batch": 7, **changes})


def test_results_and_step_marks():
    record = SimulatedEngine().run(training(), CLUSTER, workers=2)
    first, second = record.results
    assert first["samples"] == 3 * 4 and second["samples"] == 3 * 3
    assert len(first["losses"]) == 3 and first["final_loss"] == first["losses"][-1]
    assert "accuracy" in first["metric"] and second["metric"] == {}
    assert [mark.values["loss"] for mark in record.logs[1].steps] == second["losses"]
    assert [mark.step for mark in record.logs[0].steps] == [0, 1, 2]


def test_services_return_nothing_and_end():
    main = training("parameter_server:servers=2")
    record = SimulatedEngine().run(main, CLUSTER, workers=2, services=main.strategy.roles(2).services)
    assert record.results[2:] == [{}, {}]


def test_without_evaluation_there_is_no_metric():
    record = SimulatedEngine().run(training("single", evaluate=False), CLUSTER, workers=1)
    assert record.results[0]["metric"] == {}


def test_shapes_have_no_losses():
    record = SimulatedEngine().run(training(), CLUSTER, workers=2, meta=True)
    assert record.results[0]["losses"] == [None] * 3 and record.results[0]["metric"] == {}


def test_a_batch_smaller_than_the_workers_is_refused():
    with pytest.raises(TaskError, match="batch of 7 cannot be dealt to 8 workers"):
        training().check(8)
    with pytest.raises(TaskError, match="0 steps"):
        training(steps=0).check(1)


def test_it_pickles():
    main = pickle.loads(pickle.dumps(training("parameter_server:servers=2")))
    assert main.strategy == parse("parameter_server:servers=2") and isinstance(main.task, Digits)
