"""`geartrain validate`: sections by name, one tiny cell all the way through, and what is refused."""

import json
from pathlib import Path

import pytest

from geartrain.cli import main
from geartrain.cli.validate import chosen
from geartrain.errors import ConfigurationError
from geartrain.record.files import RUN, STEPS, TRACE

GRID = """
[trust]
factor = 0.001
host_busy = 2.0

[bars]
median = 2.0
worst = 2.0

[[task]]
task = "digits"
samples = 2
flops = "100 MFLOP/s"
memory_rate = "1 GB/s"

[[grid]]
name = "tiny"
tasks = ["digits"]
strategies = ["synchronous"]
workers = [2]
rates = ["100 Mbit/s"]
steps = 3
quick = true
"""


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "emulated-grid.toml").write_text(GRID)
    return folder


def validate(*args):
    with pytest.raises(SystemExit) as left:
        main(["validate", *map(str, args)])
    return left.value.code


def test_names_choose_sections_and_papers():
    assert chosen(None) == (("network", "published", "emulated", "real"), ())
    assert chosen("emulated, network") == (("network", "emulated"), ())
    assert chosen("hw-scaling,universal-perf") == (("published",), ("hw-scaling", "universal-perf"))
    assert chosen("hw-scaling,published") == (("published",), ("hw-scaling",))
    with pytest.raises(ConfigurationError, match="empty name"):
        chosen("network,,")


def test_the_network_alone(capsys, tmp_path):
    assert validate("--quick", "--only", "network", "--out", tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed["sections"]) == ["network"] and printed["missed"] == 0
    assert json.loads((tmp_path / "validation.json").read_text()) == printed


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--only", "netwrk"], "did you mean 'network'"),
        (["--only", "published,netwrk"], "did you mean 'network'"),
        (["--only", "emulated", "--files", "nowhere"], "cannot read the grids"),
        (["--only", "published", "--files", "nowhere"], "no folder 'nowhere'"),
        (["--resume", "nowhere"], "there is no validation to go on with"),
        (["--out", "a", "--resume", "b"], "two folders"),
    ],
)
def test_what_cannot_be_is_refused(args, says, capsys, workdir):
    assert validate(*args) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert list(Path().iterdir()) == []


def test_nothing_checked_is_no_success(monkeypatch, capsys, tmp_path, files):
    monkeypatch.setattr("geartrain.validation.runs.check_possible", lambda engine: "no rights")
    assert validate("--quick", "--only", "emulated", "--files", files) == 2
    assert "nothing was checked" in capsys.readouterr().err
    assert validate("--quick", "--only", "emulated,network", "--files", files) == 0


def test_only_a_validation_can_be_gone_on_with(capsys, tmp_path):
    assert validate("--quick", "--only", "network", "--resume", tmp_path) == 2
    assert "there is no validation to go on with" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.emu
@pytest.mark.xdist_group("processes")
def test_a_tiny_cell_all_the_way_through(capsys, tmp_path, files):
    out = tmp_path / "out"
    assert validate("--quick", "--only", "emulated", "--files", files, "--out", out, "--json") == 0
    captured = capsys.readouterr()
    printed = json.loads(captured.out)
    (cell,) = printed["sections"]["emulated"]["details"]["cells"]
    assert cell["trustworthy"] and cell["failed"] is None and cell["ranks"] == 2
    assert cell["simulated"]["bytes_sent"] == cell["measured"]["bytes_sent"] == 4 * 38_282
    parts = ("compute", "exposed_communication", "wait")
    for kind in ("simulated", "measured"):
        assert 0 < sum(cell[kind][part] for part in parts) <= cell[kind]["step_time"] * (1 + 1e-9)
        assert {path.name for path in (out / cell["folders"][kind]).iterdir()} == {RUN, STEPS, TRACE}
    # A ring of two sends half the gradients, twice, over each wire.
    assert cell["bandwidth_term"] == pytest.approx(4 * 38_282 / (100e6 / 8 * 1448 / 1538), rel=1e-6)
    assert 0 < cell["small_collective"] < 1 and 0 < cell["host_busy"] <= 1
    assert [bar["met"] for bar in printed["sections"]["emulated"]["details"]["bars"]] == [True] * 5
    assert "1/1 tiny: synchronous" in captured.err and "left" in captured.err

    assert validate("--quick", "--only", "emulated", "--files", files, "--resume", out) == 0
    again = capsys.readouterr()
    assert "(read)" in again.err and "Simulated against emulated" in again.out
    assert json.loads((out / "validation.json").read_text())["sections"] == printed["sections"]


@pytest.mark.slow
@pytest.mark.emu
@pytest.mark.xdist_group("processes")
def test_a_missed_bar_is_an_exit_code(capsys, files):
    strict = GRID.replace("factor = 0.001", "factor = 1e9")
    (files / "emulated-grid.toml").write_text(strict)
    assert validate("--quick", "--only", "emulated", "--files", files) == 1
    captured = capsys.readouterr()
    assert "tiny: share of trustworthy cells, at least 0.5: 0   MISSED" in captured.out
    assert "host-bound: bytes take" in captured.out
    assert captured.err.rstrip().endswith("missed: 4")
