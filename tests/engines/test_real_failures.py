"""However a rank ends, the others end within seconds, and the error names it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.engines.real import RealEngine
from geartrain.errors import NotFinite, RankFailed
from tests.engines import programs

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("processes")]
ROOT = Path(__file__).parents[2]


def run(main, services: int = 1) -> None:
    places = [ServicePlace("server")] * services
    RealEngine().run(main, load_cluster("ethernet-1g"), workers=2, services=places)


@pytest.mark.parametrize("others", ["all_reduce", "sleep"])
@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("raise", r"rank 1 \(worker\) raised ValueError in step 3: a wrong value\n(.*\n)*.*programs.py"),
        ("lane", r"rank 1 \(worker\), lane 'helper', raised KeyError in step 3: 'in a lane'"),
        ("exit", r"rank 1 \(worker\) left early in step 3, with exit status 0"),
        ("os exit", r"rank 1 \(worker\) left early, by os._exit\(0\) in step 3"),
        ("SIGKILL", r"rank 1 \(worker\) was killed by SIGKILL in step 3"),
        ("SIGTERM", r"rank 1 \(worker\) was stopped by SIGTERM in step 3"),
    ],
)
def test_the_failed_rank_is_named(how, says, others):
    begun = time.monotonic()
    with pytest.raises(RankFailed, match=says) as caught:
        run(programs.Fails(how, others))
    assert time.monotonic() - begun < 10
    assert (caught.value.rank, caught.value.step) == (1, 3)


def test_a_service_that_fails_is_named():
    with pytest.raises(RankFailed, match=r"rank 2 \(server\) was killed by SIGKILL in step 3"):
        run(programs.Fails("SIGKILL", rank=2))


def test_errors_of_our_own_come_back_as_they_are():
    with pytest.raises(NotFinite, match="the loss is nan") as caught:
        run(programs.Fails("not finite"))
    assert (caught.value.rank, caught.value.step) == (1, 3)
    assert "programs.py" in caught.value.__notes__[0]


def test_a_result_that_cannot_be_sent_is_named():
    with pytest.raises(RankFailed, match="cannot be pickled"):
        run(programs.unsendable)


def test_signals_and_environment_are_given_back():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    before = dict(os.environ)
    run(programs.streams)
    assert handlers == {number: signal.getsignal(number) for number in handlers}
    changed = {name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name)}
    assert changed <= {"PYTEST_CURRENT_TEST"}


@pytest.mark.parametrize("target", [pytest.param("program", marks=pytest.mark.slow), "terminal"])
def test_ctrl_c_gives_the_record_so_far(target):
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.engines.interrupted_run"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        if target == "program":
            program.send_signal(signal.SIGINT)
        else:
            os.killpg(program.pid, signal.SIGINT)
        begun = time.monotonic()
        out, err = program.communicate(timeout=20)
    assert time.monotonic() - begun < 10
    assert out == "SIGINT True ['worker', 'worker', 'server'] [None, None, None]\n", err
    assert err == ""
    end = time.monotonic() + 5
    while (left := processes_of_session(program.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == []


def processes_of_session(session: int) -> list[str]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(text.split(" (")[0])
    return found
