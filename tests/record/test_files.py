import gzip
import json
import os

import pytest

from geartrain.errors import TaskError
from geartrain.record import files
from geartrain.record.chrome import chrome_trace
from geartrain.record.files import RunFolder, check_file, plain, write_together, write_trace
from geartrain.record.log import Blocked, Span
from geartrain.record.split import split
from tests.record.logs import late_rank, op, rank, record


def written(folder, run, **values):
    values = {"config": {"seed": 3}, "summary": {"step_time": 10.0}, **values}
    RunFolder(folder).write(run, split(run), **values)
    return json.loads((folder / "run.json").read_text())


def test_all_three_files_and_nothing_else(tmp_path):
    run = written(tmp_path / "a" / "b", late_rank())
    assert sorted(os.listdir(tmp_path / "a" / "b")) == ["run.json", "steps.jsonl", "trace.json.gz"]
    assert (run["seed"], run["config"], run["summary"]) == (3, {"seed": 3}, {"step_time": 10.0})
    assert run["waits"] == [[0, 1, 3.0]]
    assert {"geartrain", "python", "torch"} <= set(run["versions"])
    assert [row["compute"] for row in run["ranks"]] == [4.0, 7.0]


def test_a_line_per_rank_and_step(tmp_path):
    written(tmp_path, late_rank())
    rows = [json.loads(line) for line in (tmp_path / "steps.jsonl").read_text().splitlines()]
    assert rows[0] == {
        "rank": 0,
        "step": 0,
        "loss": 1.0,
        "begin": 0.0,
        "end": 10.0,
        "time": 10.0,
        "compute": 4.0,
        "wire": 3.0,
        "wait": 3.0,
        "exposed_communication": 3.0,
        "hidden_communication": 0.0,
        "bytes": 100,
        "messages": 2,
    }
    assert len(rows) == 2


def test_what_is_not_finite_is_null(tmp_path):
    run = late_rank()
    run.logs[0].steps[0].values["loss"] = float("nan")
    assert written(tmp_path, run, summary={"final_loss": float("inf")})["summary"] == {"final_loss": None}
    assert json.loads((tmp_path / "steps.jsonl").read_text().splitlines()[0])["loss"] is None
    assert plain({1: (1.5, {"a"}, object)}) == {"1": [1.5, ["a"], "<class 'object'>"]}


def test_a_file_in_the_way_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match=r"cannot write .*file.*\n  give --out a folder"):
        RunFolder(tmp_path / "file")
    with pytest.raises(TaskError, match="cannot write"):
        RunFolder(tmp_path / "file" / "below")


def test_a_folder_where_a_file_is_wanted_is_refused(tmp_path):
    with pytest.raises(TaskError, match="it is a folder"):
        check_file(tmp_path)
    check_file(tmp_path / "trace.json")
    assert os.listdir(tmp_path) == []


def test_an_error_half_way_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "one").write_text("old")

    def broken(*_args, **_kwargs):
        raise OSError("no space left")

    monkeypatch.setattr(files.os, "fdopen", broken)
    with pytest.raises(OSError, match="no space"):
        write_together({tmp_path / "one": b"new"})
    assert os.listdir(tmp_path) == ["one"]
    assert (tmp_path / "one").read_text() == "old"


def test_written_files_can_be_read_by_others(tmp_path):
    write_together({tmp_path / "one": b"new"})
    (tmp_path / "plain").write_text("")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_same_run_same_bytes(tmp_path):
    for name in ("a.gz", "b.gz"):
        write_trace(tmp_path / name, late_rank(), split(late_rank()))
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()
    write_trace(tmp_path / "c.json", late_rank(), split(late_rank()))
    assert json.loads((tmp_path / "c.json").read_text()) == json.loads(
        gzip.decompress((tmp_path / "a.gz").read_bytes())
    )


def threads(trace, pid):
    return {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name" and e["pid"] == pid}


def slices(trace, pid):
    names = threads(trace, pid)
    return [
        (names[e["tid"]], e["name"], e["ts"], e["dur"])
        for e in trace["traceEvents"]
        if e["ph"] == "X" and e["pid"] == pid
    ]


def test_trace_has_a_thread_per_kind_of_time():
    run = late_rank()
    assert slices(chrome_trace(run, split(run)), 0) == [
        ("steps", "step 0", 0.0, 1e7),
        ("compute", "compute", 0.0, 2e6),
        ("compute", "compute", 8e6, 2e6),
        ("wait", "all_reduce for rank 1", 2e6, 3e6),
        ("exposed communication", "all_reduce with rank 1", 5e6, 3e6),
        ("communication", "all_reduce", 5e6, 3e6),
    ]


def test_trace_shows_what_an_engine_tells_of_compute():
    run = record(
        rank(0, spans=[Span(0.0, 1.0, "mm", "", "compute"), Span(0.0, 4.0, "epoch", ""), Span(1.0, 2.0, "x", "side")])
    )
    assert slices(chrome_trace(run, split(run)), 0) == [
        ("compute", "mm", 0.0, 1e6),
        ("steps", "epoch", 0.0, 4e6),
        ("lane side", "x", 1e6, 1e6),
    ]


def test_transfers_that_overlap_get_rows_of_their_own():
    ops = [op(("g", n), float(n), n + 1.5, peers=(0,)) for n in range(4)]
    trace = chrome_trace(record(rank(0, ops=ops)), split(record(rank(0, ops=ops))))
    rows = [row for row, name, *_ in slices(trace, 0) if name == "all_reduce"]
    assert sorted(rows) == ["communication", "communication", "communication 2", "communication 2"]


def test_lane_that_stands_still_is_seen():
    run = record(
        rank(0, ops=[op(("g", 0), 0.0, 2.0, lane="side", peers=(0,))], blocked=[Blocked(0.0, 2.0, ("g", 0), "side")])
    )
    assert ("lane side", "stands in all_reduce", 0.0, 2e6) in slices(chrome_trace(run, split(run)), 0)


def test_trace_keeps_the_first_steps_only():
    run = record(rank(0, steps=[(float(n), n + 1.0) for n in range(30)], end=30.0))
    trace = chrome_trace(run, split(run))
    assert (trace["otherData"]["begin"], trace["otherData"]["end"]) == (0.0, 10.0)
    assert max(e["ts"] + e["dur"] for e in trace["traceEvents"] if e["ph"] == "X") == 1e7


def test_trace_keeps_less_when_there_is_too_much(monkeypatch):
    monkeypatch.setattr("geartrain.record.chrome.MOST_EVENTS", 5)
    ops = [op(("g", n), n / 2, n / 2 + 0.25, peers=(0,)) for n in range(40)]
    stepped = record(rank(0, ops=ops, steps=[(float(n), n + 1.0) for n in range(20)], end=20.0))
    script = record(rank(0, ops=ops, end=20.0))
    assert chrome_trace(stepped, split(stepped))["otherData"]["end"] == 2.0
    assert chrome_trace(script, split(script))["otherData"]["end"] == 2.5
