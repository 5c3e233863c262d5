"""Targets: what counts as reached, when, and that all workers stop after the same step."""

import pytest

from geartrain.cluster.load import load_cluster
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError, TaskError
from geartrain.runtime.loop import Training
from geartrain.runtime.targets import SMOOTHED, Targets, Watch, metric_entry, step_entry
from geartrain.strategies import parse
from geartrain.tasks.digits import Digits
from tests.conformance.tasks import Curve

ENGINE, CLUSTER = SimulatedEngine(Roofline()), load_cluster("ethernet-1g")


def told(*losses, samples=(1, 3)):
    """Entries of two workers: step k lasts from k to k + 1 on worker 0, and half a second longer on worker 1."""
    return [
        step_entry(step, loss, count, float(step), step + 1 + rank / 2)
        for step, pair in enumerate(losses)
        for rank, (loss, count) in enumerate(zip(pair, samples, strict=True))
    ]


def test_the_loss_is_that_of_the_global_batch_and_the_slowest_worker_says_when():
    watch = Watch(Targets(loss=2.5), 2)
    watch.feed(told((6.0, 2.0), (3.0, 2.0)))  # global losses 3 and 2.25: means 3 and 2.625
    assert watch.stop is None and watch.time_to_target is None
    watch.feed([step_entry(2, 1.5, 1, 2.0, 3.0), step_entry(2, 2.5, 3, 2.0, 3.5)])  # 2.25; mean 2.5
    assert watch.stop == 3 and watch.time_to_target == 3.5


def test_the_mean_is_over_the_last_steps():
    watch = Watch(Targets(loss=1.0), 1)
    for step in range(SMOOTHED + 1):
        watch.feed([step_entry(step, 100.0 if step == 0 else 1.0, 1, float(step), step + 1.0)])
        assert (watch.stop is None) == (step < SMOOTHED)
    assert watch.time_to_target == SMOOTHED + 1


def test_workers_that_are_steps_apart_stop_after_the_step_that_follows_the_furthest():
    entries = [step_entry(step, 1.0, 1, 0.0, step + 1.0) for step in range(4)] + [step_entry(0, 1.0, 1, 0.0, 9.0)]
    fast, slow = Watch(Targets(loss=1.0), 2), Watch(Targets(loss=1.0), 2)
    fast.feed(entries)
    for entry in entries:  # read one by one or at once: the same
        slow.feed([entry])
    assert fast.stop == slow.stop == 4 and fast.time_to_target == 9.0


def test_of_two_targets_the_later_one_counts():
    watch = Watch(Targets(loss=2.0, metric=0.9), 2)
    watch.feed([*told((1.0, 1.0)), metric_entry(0, False, 1.0), *told((1.0, 1.0), (1.0, 1.0))[2:]])
    assert watch.stop is None
    watch.feed([metric_entry(1, True, 2.25)])
    assert watch.stop == 2 and watch.time_to_target == 2.25


def test_state_goes_on():
    entries = told((6.0, 2.0), (3.0, 2.0), (1.5, 2.5))
    whole, ended, rest = (Watch(Targets(loss=2.5), 2) for _ in range(3))
    whole.feed(entries)
    ended.feed(entries[:4])
    rest.load_state_dict(ended.state_dict())
    rest.feed(entries[4:])
    assert rest.state_dict() == whole.state_dict() and rest.time_to_target == whole.time_to_target


def run(text, targets, *, workers=2, steps=60, task=None, batch=64):
    main = Training(strategy=parse(text), task=task or Digits(), steps=steps, batch=batch, targets=targets)
    return ENGINE.run(main, CLUSTER, workers=workers, services=main.strategy.roles(workers).services)


@pytest.mark.parametrize("text", ["synchronous", "parameter_server:servers=2", "peer_to_peer"])
def test_all_stop_one_step_later_and_the_time_is_that_of_the_logs(text):
    record = run(text, Targets(loss=2.0))
    results = record.results[:2]
    losses = [sum(pair) / 2 for pair in zip(*(result["losses"] for result in results), strict=True)]
    reached = next(k for k in range(60) if sum(losses[max(0, k - 9) : k + 1]) / min(10, k + 1) <= 2.0)
    assert [len(result["losses"]) for result in results] == [reached + 2] * 2
    marks = [log.steps for log in record.logs[:2]]
    expected = max(steps[reached].end for steps in marks) - min(steps[0].begin for steps in marks)
    assert [result["time_to_target"] for result in results] == [expected] * 2


def test_watching_changes_nothing_in_virtual_time():
    plain, watched = run("synchronous", None, steps=4), run("synchronous", Targets(evaluate_every=2), steps=4)
    assert plain.logs == watched.logs
    assert [step for step, _ in watched.results[0]["evaluations"]] == [1, 3]
    assert watched.results[0]["evaluations"][-1][1] == watched.results[0]["metric"]
    assert watched.results[1]["evaluations"] == [] and watched.results[0]["time_to_target"] is None


def test_evaluation_takes_time_where_it_is_charged():
    free, charged = (
        run("synchronous", Targets(metric=0.0, evaluate_every=2, charge_evaluation=charge)) for charge in (False, True)
    )
    times = [record.results[1]["time_to_target"] for record in (free, charged)]
    assert [len(record.results[1]["losses"]) for record in (free, charged)] == [3, 3]
    assert times[0] < times[1]
    assert free.logs[0].steps[2].begin == free.logs[0].steps[1].end
    assert charged.logs[0].steps[2].begin == pytest.approx(times[1] + charged.logs[0].steps[0].begin)


def test_less_is_better_where_the_task_says_so():
    class Lossy(Digits):
        def metric(self, model):
            return {"loss": super().metric(model)["loss"]}

    assert run("synchronous", Targets(metric=100.0), task=Lossy(), steps=12).results[0]["time_to_target"] is not None
    assert run("synchronous", Targets(metric=0.0), task=Lossy(), steps=12).results[0]["time_to_target"] is None


def test_a_task_without_a_metric_has_none_to_reach():
    with pytest.raises(TaskError, match="'curve' has no metric to reach"):
        run("single", Targets(metric=0.5, evaluate_every=1), workers=1, task=Curve(), batch=8)
    with pytest.raises(ConfigurationError, match="every -1 steps"):
        Targets(evaluate_every=-1)
