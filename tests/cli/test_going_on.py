"""`compare --resume` and `--jobs`, nothing faked: killed, stopped, and gone on."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from geartrain.cli import main
from geartrain.compare.cell import CHECKPOINTS
from geartrain.runtime.checkpoint import latest

GRID = ["compare", "--task", "digits", "--cluster", "ethernet-1g", "--ranks", "2", "--batch", "64", "--steps", "50"]
GRID += ["--strategies", "synchronous,parameter_server:servers=2,peer_to_peer"]
GRID += ["--checkpoint-every", "5", "--target-loss", "2.25", "--json"]


def rows(capsys, *args, code=0):
    with pytest.raises(SystemExit) as left:
        main(args)
    assert (left.value.code or 0) == code
    found = json.loads(capsys.readouterr().out)
    for row in found:
        row.pop("out")
    return found


def begun(out, *args):
    """The grid in a process of its own, with both of its jobs at work."""
    process = subprocess.Popen(
        [sys.executable, "-m", "geartrain", *GRID, "--jobs", "2", "--out", str(out), *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 90
    while len({path.parent for path in out.glob(f"*/{CHECKPOINTS}/step-*")}) < 2:
        assert process.poll() is None and time.monotonic() < until, process.communicate()[1]
        time.sleep(0.02)
    return process


def wait_until_gone(session):
    """Until no process of a session is left: children see that their parent is gone."""
    until = time.monotonic() + 20
    while subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True).stdout.split():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.multi
def test_killed_in_the_middle_and_gone_on_it_is_the_whole_grid(capsys, tmp_path):
    process = begun(tmp_path / "killed")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_until_gone(process.pid)
    unfinished = [
        path for path in (tmp_path / "killed").iterdir() if path.is_dir() and not (path / "run.json").exists()
    ]
    assert any(latest(path / CHECKPOINTS) for path in unfinished)
    resumed = rows(capsys, "compare", "--resume", str(tmp_path / "killed"), "--json")
    whole = rows(capsys, *GRID, "--out", str(tmp_path / "whole"))
    assert resumed == whole
    assert all(row["time_to_target"] and row["steps"] < 50 for row in whole)
    for name in (row.name for row in (tmp_path / "whole").iterdir() if row.is_dir()):
        mine, other = (tmp_path / folder / name / "steps.jsonl" for folder in ("killed", "whole"))
        assert mine.read_text() == other.read_text()


@pytest.mark.multi
def test_ctrl_c_stops_all_jobs_and_keeps_what_there_is(capsys, tmp_path):
    process = begun(tmp_path, "--steps", "400", "--target-loss", "0")
    os.kill(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert [row["steps"] > 0 for row in json.loads(out)] == [True, True] and "Traceback" not in err
    assert "1 of 3 cells did not run" in err and "stopped after" in err
    wait_until_gone(process.pid)
    assert len(json.loads((tmp_path / "compare.json").read_text())) == 2


@pytest.mark.slow
def test_jobs_change_nothing_but_the_time(capsys, tmp_path):
    few = ["--strategies", "synchronous,peer_to_peer", "--steps", "3", "--checkpoint-every", "0"]
    one = rows(capsys, *GRID, *few)
    two = rows(capsys, *GRID, *few, "--jobs", "2")
    assert one == two and len(one) == 2


def test_other_options_are_refused(capsys, tmp_path):
    few = ["--strategies", "synchronous", "--steps", "2", "--out", str(tmp_path)]
    rows(capsys, *GRID, *few)
    again = ["compare", "--resume", str(tmp_path)]
    assert rows(capsys, *again, "--json", "--ranks", "2") == rows(capsys, *again, "--json", "--out", str(tmp_path))
    with pytest.raises(SystemExit) as left:
        main([*again, "--ranks", "3", "--steps", "5"])
    err = " ".join(capsys.readouterr().err.split())
    assert left.value.code == 2 and "--ranks 3, there 2" in err and "--steps 5, there 2" in err


def test_measured_times_are_those_that_the_grid_began_with(capsys, tmp_path):
    local = ["compare", "--task", "digits", "--ranks", "2", "--steps", "2", "--strategies", "single,synchronous"]
    flags = [*local, "--ranks", "1", "--out", str(tmp_path), "--json"]
    whole = rows(capsys, *flags)
    for path in tmp_path.glob("synchronous*/run.json"):
        path.unlink()
    assert rows(capsys, "compare", "--resume", str(tmp_path), "--json") == whole


OWN = """
from geartrain.tasks.digits import Digits

class Mine(Digits):
    name = "mine"

class Blind(Digits):
    def metric(self, model):
        return {}
"""


@pytest.mark.multi
def test_a_task_of_ones_own_runs_for_real(capsys, workdir):
    (workdir / "own.py").write_text(OWN)
    flags = [
        "compare",
        "--task",
        "own.py:Mine",
        "--ranks",
        "2",
        "--strategies",
        "synchronous",
        "--steps",
        "12",
        "--json",
    ]
    real = rows(capsys, *flags, "--engine", "real", "--target-metric", "0.05", "--evaluate-every", "3")[0]
    assert real["steps"] == 4 and real["time_to_target"] > 0 and real["metric"] > 0.05


def test_a_metric_target_needs_a_metric(capsys, workdir):
    (workdir / "own.py").write_text(OWN)
    with pytest.raises(SystemExit) as left:
        main(["compare", "--task", "own.py:Blind", "--target-metric", "0.5"])
    assert left.value.code == 2 and "no metric to reach" in capsys.readouterr().err
