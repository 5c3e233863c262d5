"""`geartrain plan` from the command line to a run of what it prints."""

import json
import runpy
import shlex
import tomllib

import pytest

from geartrain.cli import main


def run(words, capsys):
    """(exit code, standard output)."""
    try:
        main(words)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    return code, capsys.readouterr()


def test_a_plan_for_digits_runs_as_it_is(tmp_path, capsys):
    given = ["plan", "--task", "digits", "--cluster", "ethernet-100g", "--ranks", "2", "--batch", "1024"]
    code, told = run([*given, "--out", str(tmp_path / "plan"), "--json"], capsys)
    assert code == 0
    found = json.loads(told.out)
    assert found["task"] == "digits"
    assert found["simulated"]["step_time"] == pytest.approx(found["step_time"])
    assert set(path.name for path in (tmp_path / "plan").iterdir()) >= {"plan.py", "plan.toml", "plan.sh", "plan.json"}

    command = (tmp_path / "plan" / "plan.sh").read_text().strip()
    assert command == found["command"]
    code, told = run([*shlex.split(command)[1:], "--steps", "3", "--json"], capsys)
    assert code == 0
    (ran,) = json.loads(told.out)
    assert (ran["strategy"], ran["ranks"], ran["steps"]) == (found["strategy"], found["ranks"], 3)
    assert ran["final_loss"] > 0

    assert tomllib.loads((tmp_path / "plan" / "plan.toml").read_text())["batch"] == 1024
    runpy.run_path(str(tmp_path / "plan" / "plan.py"), run_name="__main__")
    assert "s a step" in capsys.readouterr().out


def test_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, told = run(["plan", "--task", "digits", "--cluster", "ethernet-1g", "--ranks", "2"], capsys)
    assert code == 0
    assert "Plan for digits on ethernet-1g: single with 1 worker(s), 64 sample(s) each" in told.out
    assert "geartrain compare --task digits --cluster ethernet-1g --ranks 1 --batch 64 --strategies single" in told.out
    assert 'name = "single"' in told.out
    assert "strategy = Single()" in told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--task", "digits", "--efficiency", "1.2"], "--efficiency 1.2 is no share"),
        (["--task", "digits", "--ranks", "0"], "needs at least 1 worker"),
        (["--task", "digits", "--ranks", "8", "--batch", "4"], "leaves some of 8 workers without a sample"),
        (["--ranks", "2"], "give one of --workload and --task"),
        (["--task", "digits", "--statistics", "nowhere"], "there is no grid"),
    ],
)
def test_what_cannot_be(words, message, capsys):
    code, told = run(["plan", *words], capsys)
    assert code == 2
    assert message in told.err
