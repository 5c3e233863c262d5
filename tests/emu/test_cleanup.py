"""Whatever ends a run, nothing of it is left; runs that go on are not touched."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from pickle import dumps

import pytest

from geartrain.cluster import Placement, Star, Wire
from geartrain.emu.cleanup import Process, folder, marked, remove_stale
from geartrain.emu.client import Station
from geartrain.emu.messages import Child
from geartrain.emu.plan import make_plan
from geartrain.errors import ConfigurationError
from tests.emu import programs
from tests.emu.possible import cluster, stand

pytestmark = [pytest.mark.emu, pytest.mark.xdist_group("processes")]
ROOT = Path(__file__).parents[2]
PLAN = make_plan(Placement(cluster(Star(wire=Wire(rate="100 Mbit/s", latency="1 ms"))), 3))


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def child(host, function, *args):
    return Child(host, {}, dumps(partial(function, *args)))


def test_a_closed_station_leaves_everything_as_it_was(tmp_path):
    before = stand()
    station = Station()
    network = station.network(PLAN)
    ended, _ = station.run_children(
        network, [child(0, programs.leave_somebody_behind, str(tmp_path / "pid"))], [1, 2], 5
    )
    assert ended.failed == {}
    assert Process.of(int((tmp_path / "pid").read_text())) is None, "what a rank left behind ends with the run"
    assert stand()[:2] != before[:2] or stand()[2] > before[2]
    station.close()
    assert until(lambda: stand() == before)
    assert not (folder() / f"{station.run}.json").exists()
    with pytest.raises((ConfigurationError, OSError)):
        station.network(PLAN)


def test_when_one_fails_the_others_are_ended(tmp_path):
    station = Station()
    ready = str(tmp_path / "ready")
    failer = child(1, programs.exit_with, 3, 0.2)
    children = [child(0, programs.sleep, 60.0, ready), failer, child(2, programs.sleep, 60.0, ready)]
    begun = time.monotonic()
    ended, _ = station.run_children(station.network(PLAN), children, [1, 2], 5)
    assert ended.failed == {1: 3}
    assert time.monotonic() - begun < 5
    station.close()


def start_run(tmp_path, *extra):
    """A program of its own that emulates; (process, id of its run, pid of its station) once its ranks are there."""
    command = [sys.executable, "-m", "tests.emu.long_run", str(tmp_path), *extra]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    told = json.loads(program.stdout.readline())
    awaited = ["ready", *(["pid"] if "orphan" in extra else [])]
    assert until(lambda: all((tmp_path / name).exists() for name in awaited))
    return program, told["run"], told["station"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_takes_all_with_it(tmp_path, number):
    before = stand()
    program, run, _ = start_run(tmp_path)
    with program:
        program.send_signal(number)
    assert until(lambda: not list(marked(run)) and stand() == before)
    assert not (folder() / f"{run}.json").exists()


def test_what_outlives_parent_and_station_is_found_and_removed(tmp_path):
    before = stand()
    program, run, station = start_run(tmp_path, "orphan")
    with program:
        os.kill(station, signal.SIGSTOP)  # so that it cannot end what the run left
        program.kill()
        program.wait()
        os.kill(station, signal.SIGKILL)
    assert until(lambda: len(list(marked(run))) == 1), "only what a rank had started by itself"
    command = [sys.executable, "-m", "geartrain", "emulate", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert f"removed run {run}: 1 process(es) ended" in done.stderr
    assert until(lambda: stand() == before)
    assert not (folder() / f"{run}.json").exists()


def test_a_run_that_goes_on_is_not_touched(tmp_path):
    program, run, _ = start_run(tmp_path)
    with program:
        assert run not in [one.run for one in remove_stale()]
        assert len(list(marked(run))) >= 2
        program.send_signal(signal.SIGTERM)
