import json

import pytest

from geartrain.errors import TaskError
from geartrain.report.reading import Point, read_run, read_runs, read_trace
from tests.report.folders import record_of, write_grid, write_run


def test_a_run_is_read_back(tmp_path):
    run = read_run(write_run(tmp_path, record_of(2, late=0.001, server=True), closed_form=0.01))
    assert (run.strategy, run.engine, run.cluster, run.workers) == ("synchronous", "simulated", "ethernet-1g", 1)
    assert run.subject == "digits"
    assert run.step_time == pytest.approx(0.007)
    assert run.wait == pytest.approx(0.001)
    assert run.throughput == pytest.approx(8 / 0.007)
    assert run.deviation == pytest.approx(-0.3)
    assert run.busiest == 2000  # the server sends twice what the worker does
    assert run.waits == [(0, 1, pytest.approx(0.004))]
    assert run.metric_name == "accuracy"
    assert read_trace(run)["traceEvents"]


def test_loss_is_weighted_by_samples_and_time_counts_from_the_first_step(tmp_path):
    folder = write_run(tmp_path, record_of(2, steps=1))
    rows = [
        {"rank": 0, "step": 0, "loss": 1.0, "samples": 1, "begin": 5.0, "end": 7.0},
        {"rank": 1, "step": 0, "loss": 4.0, "samples": 2, "begin": 5.5, "end": 8.0},
        {"rank": 0, "step": 1, "loss": None, "samples": 1, "begin": 8.0, "end": 9.0},
    ]
    lines = [json.dumps(row) for row in rows]
    (folder / "steps.jsonl").write_text("\n".join([*lines, '{"rank": 0, "st']))
    assert read_run(folder).curve == [Point(0, 3.0, 3.0)]


def test_services_do_not_train(tmp_path):
    folder = write_run(tmp_path, record_of(3, steps=2, server=True))
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    lines = [json.dumps({**row, "loss": 99.0} if row["rank"] == 2 else row) for row in rows]
    (folder / "steps.jsonl").write_text("\n".join(lines))
    assert [point.loss for point in read_run(folder).curve] == [2.0, 1.0]


def test_a_grid_keeps_its_order_and_names_what_failed(tmp_path):
    write_grid(tmp_path, strategies=("synchronous", "peer_to_peer"), ranks=(2, 4), failed=("ring",))
    runs = read_runs([tmp_path])
    names = [(run.strategy, run.workers) for run in runs]
    assert names[:4] == [("synchronous", 2), ("peer_to_peer", 2), ("synchronous", 4), ("peer_to_peer", 4)]
    assert names[4:] == [("ring", 2), ("ring", 4)]
    assert all("left no files" in run.error for run in runs[4:])


def test_merged_folders_count_each_run_once(tmp_path):
    grid = write_grid(tmp_path / "grid", ranks=(2,))
    other = write_run(tmp_path / "other", record_of(2), strategy="ad_psgd")
    assert len(read_runs([grid, other, grid / "synchronous--2"])) == 3


def test_what_is_missing_is_none_and_no_error(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"summary": {"strategy": "x", "step_time": None}}))
    (tmp_path / "trace.json.gz").write_bytes(b"no gzip")
    run = read_run(tmp_path)
    assert (run.strategy, run.step_time, run.throughput, run.deviation, run.curve) == ("x", None, None, None, [])
    assert read_trace(run) is None


@pytest.mark.parametrize(
    ("content", "words"), [("{", "cannot be read as JSON"), ("[1]", "expected an object, found list")]
)
def test_a_spoiled_run_is_refused_with_its_name(tmp_path, content, words):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(TaskError, match=words) as caught:
        read_runs([tmp_path])
    assert "run.json" in str(caught.value)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(TaskError, match="there is no run in"):
        read_runs([tmp_path])
