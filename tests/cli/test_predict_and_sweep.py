"""`geartrain predict` and `geartrain sweep` as a user sees them: exit codes, JSON, what is refused."""

import json

import pytest

from geartrain.cli import main

DIGITS = ("--task", "digits", "--cluster", "ethernet-10g")
SMALL = """
name = "small"
source = "chosen"
topology = { kind = "star", wire = { rate = "1 Gbit/s", latency = "1 us" } }

[[nodes]]
count = "any"

[nodes.device]
name = "d"
flops = { fp32 = "1 TFLOP/s" }
memory = "100 kB"
memory_rate = "1 GB/s"
source = "chosen"
"""


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as caught:
            main(words)
        return caught.value.code, *capsys.readouterr()

    return call


def test_predict_json(run):
    code, out, _ = run("predict", *DIGITS, "--ranks", "1,2", "--json")
    told = json.loads(out)
    assert (code, told["format"], told["failed"]) == (0, 1, [])
    assert [(one["strategy"], one["ranks"], one["batch"]) for one in told["predictions"]] == [
        ("single", 1, 32),
        ("synchronous", 2, 64),
    ]
    for one in told["predictions"]:
        parts = ("compute", "exposed_communication", "wait", "bubble", "codec")
        assert sum(one[part] for part in parts) == pytest.approx(one["step_time"])
        assert set(one["explanation"]) == {"bound", "share", "sentence", "helps"}
        assert one["memory"][0]["count"] == one["ranks"]


def test_predict_text(run):
    code, out, _ = run("predict", *DIGITS, "--ranks", "2", "--strategies", "synchronous,dear", "--batch", "10")
    assert code == 0
    assert "digits on ethernet-10g, closed form, computing priced by roofline" in out
    assert "synchronous on ethernet-10g with 2 worker(s): the wire: " in out


def test_predict_tells_simulated_from_closed_form(run):
    _, closed, _ = run("predict", *DIGITS, "--ranks", "2", "--json")
    _, simulated, _ = run("predict", *DIGITS, "--ranks", "2", "--simulate", "--json")
    one, other = (json.loads(text)["predictions"][0] for text in (closed, simulated))
    assert (one["how"], other["how"]) == ("closed form", "simulated")
    assert other["step_time"] == pytest.approx(one["step_time"], rel=0.02)


def test_a_cell_that_cannot_be_is_told_and_the_others_go_on(run):
    code, out, _ = run("predict", *DIGITS, "--ranks", "1,2", "--strategies", "single", "--json")
    told = json.loads(out)
    assert (code, len(told["predictions"]), len(told["failed"])) == (1, 1, 1)
    assert told["failed"][0]["ranks"] == 2 and "trains in one process" in told["failed"][0]["error"]


def test_a_run_that_does_not_fit_is_code_1(run, tmp_path):
    small = tmp_path / "small.toml"
    small.write_text(SMALL)
    code, out, _ = run("predict", "--task", "digits", "--cluster", str(small), "--ranks", "1")
    assert code == 1
    assert "memory: worker 0 needs " in out and "more than its device has" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give one of --workload and --task"),
        (("--workload", "resnet5O"), "did you mean 'resnet50'"),
        (("--task", "resnet50"), "--workload resnet50"),
        ((*DIGITS, "--batch", "8", "--batch-per-rank", "4"), "give one of them"),
        ((*DIGITS, "--batch", "0"), "at least 1 sample"),
        ((*DIGITS, "--ranks", "2,x"), "no list of whole numbers"),
        ((*DIGITS, "--ranks", "0"), "at least 1 worker"),
        ((*DIGITS, "--compute", "magic"), "compute model"),
        ((*DIGITS, "--strategies", "sync"), "strategy"),
        (("--task", "digits", "--cluster", "ethernet-10"), "ethernet-10g"),
    ],
)
def test_what_predict_refuses(run, words, message):
    code, _, err = run("predict", *words)
    assert (code, message in err) == (2, True), err


def test_sweep_writes_its_files_and_says_who_wins(run, tmp_path):
    names = "synchronous,parameter_server:servers=2,dear"
    words = ("sweep", *DIGITS, "--strategies", names, "--vary", "links.rate=1Mbit/s..100Gbit/s:6", "--ranks", "4")
    code, out, err = run(*words, "--out", str(tmp_path / "out"))
    assert code == 0
    assert "index.html" in err
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert files == ["curves.svg", "index.html", "sweep.csv", "sweep.json"]
    assert "digits on ethernet-10g, closed form" in out
    assert any(line.startswith("Fastest") for line in out.splitlines())


def test_sweep_json_and_a_strategy_that_cannot(run):
    code, out, _ = run("sweep", *DIGITS, "--strategies", "single,synchronous", "--vary", "ranks=1..4", "--json")
    told = json.loads(out)
    assert code == 0  # some strategy could be predicted at every point
    assert [point["winner"] for point in told["points"]] == ["single", "synchronous", "synchronous"]
    code, _, _ = run("sweep", *DIGITS, "--strategies", "single", "--vary", "ranks=1..4", "--json")
    assert code == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--vary", "ranks=2..4", "--vary", "ranks=8"), "each time another thing"),
        (("--vary", "ranks=2..4", "--vary", "batch=8", "--vary", "links.rate=1Gbit/s,2Gbit/s"), "once or twice"),
        (("--vary", "batch=8..64", "--batch", "8"), "the batch is varied"),
        (("--vary", "batch=8..64", "--vary", "batch_per_rank=1..2"), "vary one of them"),
        (("--vary", "strategy.periods=1..4"), "has a setting 'periods'"),
        (("--vary", "inner.rate=1Gbit/s,2Gbit/s"), "no wires inside"),
        (("--vary", "links.rate=1..2"), "takes a rate with its unit"),
        (("--vary", "ranks=2..4", "--cluster", "ethernet-1g,ethernet-10g"), "one cluster"),
    ],
)
def test_what_sweep_refuses(run, words, message):
    code, _, err = run("sweep", *DIGITS, *words)
    assert (code, message in err) == (2, True), err
