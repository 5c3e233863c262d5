import json
from importlib import resources

import pytest

from geartrain import __version__
from geartrain.cli import comparing, main
from geartrain.compare.cell import KEYS
from geartrain.errors import DeadlockError, RankFailed
from geartrain.record.log import Blocked
from tests.compare.fakes import FakeEngine, grid
from tests.record.logs import late_rank, rank, record

BASE = ["compare", "--task", "digits"]


def called(capsys, *args):
    with pytest.raises(SystemExit) as left:
        main(args)
    out, err = capsys.readouterr()
    return left.value.code or 0, out, err


def test_version(capsys):
    assert called(capsys, "--version")[:2] == (0, f"geartrain {__version__}\n")


@pytest.mark.parametrize("name", ["strategies", "clusters", "tasks", "workloads"])
def test_lists_give_a_line_and_a_source_each(name, capsys):
    code, out, _ = called(capsys, name, "--json")
    rows = json.loads(out)
    assert code == 0 and rows == sorted(rows, key=lambda row: row["name"])
    assert all(set(row) == {"name", "summary", "source"} and all(row.values()) for row in rows)
    lines = called(capsys, name)[1].splitlines()
    assert len(lines) == 2 * len(rows)
    assert all(line.strip().startswith("source: ") for line in lines[1::2])


def test_workload_tells_its_size(capsys):
    assert "25,557,032 parameters" in called(capsys, "workloads")[1]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["compare"], "one of --task and --workload"),
        ([*BASE, "--workload", "resnet50"], "one of --task and --workload"),
        (["compare", "--task", "digitz"], "did you mean 'digits'?"),
        (["compare", "--task", "resnet50"], "give --workload resnet50"),
        (["compare", "--workload", "digits"], "no workload is called 'digits'"),
        ([*BASE, "--strategies", "ring"], "no strategy is called 'ring'"),
        ([*BASE, "--strategies", "peer_to_peer:sort=sharded"], "'sort'"),
        ([*BASE, "--strategies", "synchronous:bucket_size=25"], "unit"),
        ([*BASE, "--cluster", "ethernet-9g"], "did you mean"),
        ([*BASE, "--cluster", "none.toml"], "cannot read cluster file"),
        ([*BASE, "--ranks", "2,four"], "write it like --ranks 2,4,8"),
        ([*BASE, "--ranks", "0"], "at least 1 worker"),
        ([*BASE, "--engine", "reel"], "did you mean 'real'?"),
        ([*BASE, "--engine", "real", "--cluster", "ethernet-1g"], "--engine real runs on this machine"),
        ([*BASE, "--engine", "real", "--compute", "roofline"], "leave it out"),
        (["compare", "--workload", "resnet50", "--engine", "real"], "shapes and no numbers"),
        ([*BASE, "--batch", "3", "--ranks", "4"], "each needs at least one sample"),
        ([*BASE, "--steps", "0"], "0 steps train nothing"),
        ([*BASE, "--out", __file__], "cannot write to the output folder"),
        ([*BASE, "--cluster", "ethernet-1g", "--compute", "guess"], "no compute model is called 'guess'"),
        ([*BASE, "--batch", "5000"], "a global batch of 5000 cannot be dealt"),
        ([*BASE, "--out", "/proc/none"], "cannot write to the output folder"),
        ([*BASE, "--checkpoint-every", "5"], "needs a folder to write to"),
        ([*BASE, "--evaluate-every", "-1"], "every -1 steps"),
        ([*BASE, "--charge-evaluation"], "charges nothing"),
        ([*BASE, "--jobs", "0"], "at least 1 run at a time"),
        ([*BASE, "--engine", "real", "--jobs", "2"], "--jobs is for simulated runs"),
        (["compare", "--workload", "resnet50", "--target-loss", "1"], "nothing to save or to reach"),
        (["compare", "--resume", "none"], "there is no grid to go on with in 'none'"),
        (["simulate", "none.py"], "there is no script 'none.py'"),
        (["run", "none.py"], "there is no script 'none.py'"),
        (["run", "--ranks", "0", __file__], "at least 1 rank"),
        (["simulate", "--trace", "/", __file__], "it is a folder"),
    ],
)
def test_what_the_user_got_wrong_is_one_message(args, words, capsys):
    code, out, err = called(capsys, *args)
    assert code == 2
    assert words in " ".join(err.split())
    assert "Traceback" not in err and out == ""


def test_fewer_devices_than_workers_are_refused(capsys, workdir):
    preset = resources.files("geartrain.cluster") / "presets" / "ethernet-1g.toml"
    (workdir / "two.toml").write_text(preset.read_text().replace('count = "any"', "count = 2"))
    code, out, err = called(capsys, *BASE, "--cluster", "two.toml", "--ranks", "2,3", "--strategies", "synchronous")
    assert code == 2 and "3 workers need 3 devices" in err and out == ""


@pytest.mark.parametrize(("args", "code"), [(["--nonsense"], 2), (["compare", "--nonsense"], 2), (["nonsense"], 2)])
def test_unknown_words_are_refused(args, code, capsys):
    left, _, err = called(capsys, *args)
    assert left == code and "No such" in err


@pytest.fixture
def faked(monkeypatch):
    """The fake grid instead of what the flags ask for; the test may give its engine trouble."""
    engine = FakeEngine()
    monkeypatch.setattr(comparing, "build", lambda asked: grid(engine=engine, out=asked.out))
    return engine


def test_compare_prints_a_table_and_a_verdict(faked, capsys):
    code, out, _ = called(capsys, *BASE)
    assert code == 0
    assert out.startswith("nothing on ethernet-1g, simulated")
    assert out.rstrip().endswith("(its busiest rank sends 1 kB a step instead of 4 kB).")


def test_compare_json_is_a_list_of_cells(faked, capsys):
    code, out, _ = called(capsys, *BASE, "--json")
    rows = json.loads(out)
    assert code == 0 and [list(row) for row in rows] == [list(KEYS)] * 2


def test_a_failed_cell_makes_the_exit_code(faked, capsys):
    def trouble(main, workers, run):
        if main.strategy.time == 2.0:
            raise DeadlockError("no rank can continue")

    faked.trouble = trouble
    code, out, err = called(capsys, *BASE, "--json")
    assert code == 1
    assert [row["step_time"] for row in json.loads(out)] == [1.0, None]
    assert "no rank can continue" in err


def test_ctrl_c_writes_what_was_measured(faked, capsys, tmp_path):
    def trouble(main, workers, run):
        if main.strategy.time == 2.0:
            raise KeyboardInterrupt

    faked.trouble = trouble
    code, out, _ = called(capsys, *BASE, "--out", str(tmp_path), "--json")
    assert code == 130
    assert len(json.loads(out)) == len(json.loads((tmp_path / "compare.json").read_text())) == 1


@pytest.fixture
def script(tmp_path, monkeypatch):
    """A script's path, and a launcher that prints, then hands back or raises what the test puts into `given`."""
    path = tmp_path / "script.py"
    path.write_text("")
    given = {}

    def launch(name, args, *, ranks):
        given.update(args=list(args), ranks=ranks)
        print("the script's output")
        if "error" in given:
            raise given["error"]
        return given.get("record") or late_rank()

    monkeypatch.setattr("geartrain.engines.real.launch_script", launch)
    return str(path), given


def test_run_ends_with_a_summary(script, capsys):
    path, given = script
    code, out, _ = called(capsys, "run", "--ranks", "2", path)
    lines = [line.rstrip() for line in out.splitlines()]
    assert code == 0 and given["ranks"] == 2
    assert lines[0] == "the script's output"
    assert lines[1] == "simulated: 10 s of virtual time on 2 rank(s)"
    assert lines[-1].startswith("Slowest is rank 1: 10 s, 70% of it computing")


def test_what_follows_the_script_is_its_own(script, capsys):
    path, given = script
    rest = ["--ranks", "7", "--json", "--", "-x", "--trace=a", "b c"]
    assert called(capsys, "run", "--ranks", "3", path, *rest)[0] == 0
    assert given == {"args": rest, "ranks": 3}


def test_json_stands_alone_on_standard_output(script, capfd):
    path, _ = script
    code, out, err = called(capfd, "run", "--json", path)
    summary = json.loads(out)
    assert code == 0 and summary["time"] == 10.0 and len(summary["ranks"]) == 2
    assert "the script's output" in err


def test_trace_is_written_where_asked(script, capsys, tmp_path):
    path, _ = script
    assert called(capsys, "run", "--trace", str(tmp_path / "t.json"), path)[0] == 0
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_an_interrupted_script_ends_with_what_there_is(script, capsys, tmp_path):
    path, given = script
    given["record"] = record(rank(0, blocked=[Blocked(0.0, 1.0, None, "", "sleep")]))
    given["record"].interrupted = "SIGINT"
    code, out, err = called(capsys, "run", "--trace", str(tmp_path / "t.json"), path)
    assert code == 130 and "Slowest is rank 0" in out and "SIGINT" in err
    assert (tmp_path / "t.json").exists()


def test_a_failed_rank_is_one_message(script, capsys):
    path, given = script
    given["error"] = RankFailed("rank 1 raised ValueError: [red]no[/red]", rank=1)
    code, _, err = called(capsys, "run", path)
    assert code == 1
    assert err.strip() == "RankFailed: rank 1 raised ValueError: [red]no[/red]"


def test_a_failed_run_leaves_its_trace(script, capsys, tmp_path):
    path, given = script
    given["error"] = RankFailed("rank 1 was killed", rank=1)
    given["error"].record = late_rank()
    code, out, err = called(capsys, "run", "--trace", str(tmp_path / "t.json"), path)
    assert code == 1 and out == "the script's output\n" and "rank 1 was killed" in err
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]
