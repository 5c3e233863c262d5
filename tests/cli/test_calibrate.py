"""`geartrain calibrate` and `geartrain clusters NAME`: what is written and told, and what is refused beforehand."""

import json
import re

import pytest

from geartrain.calibration.site import EngineSite, Interrupted
from geartrain.cluster import load_cluster, origin_of
from tests.cli.test_commands import called

OFFICE = ["calibrate", "--engine", "simulated", "--cluster", "examples/clusters/slow-office.toml"]


def test_a_cluster_file_is_written_and_shown(tmp_path, capsys):
    out = tmp_path / "found.toml"
    code, text, told = called(capsys, *OFFICE, "--ranks", "4", "--sizes", "1 KiB", "--out", str(out))
    assert code == 0 and str(out) in told
    assert "all_to_all" in text and "off by 0% in the median" in text
    found, given = load_cluster(out), load_cluster("examples/clusters/slow-office.toml")
    assert found.topology.wire.rate == pytest.approx(given.topology.wire.goodput, rel=1e-6)
    assert [override.node for override in found.overrides.wires] == [3]
    code, text, _ = called(capsys, "clusters", str(out), "--json")
    shown = json.loads(text)
    origins = {row["key"]: row["origin"] for row in shown["constants"]}
    assert code == 0 and all(origins.values()) and shown["measured"]["ranks"] == 4
    assert origins["topology.wire.rate"] == origin_of("topology.wire.rate", found.origins)
    _, text, _ = called(capsys, "clusters", str(out))
    assert "topology.wire.latency" in text and "measured: under a virtual clock" in text


def test_json_and_no_file(tmp_path, capsys):
    code, text, told = called(capsys, *OFFICE, "--ranks", "2", "--sizes", "64 B,1 KiB", "--json")
    found = json.loads(text)
    assert code == 0 and "no file was written" in told
    assert {row["size"] for row in found["collectives"]} == {4, 64, 1024}
    row = next(row for row in found["collectives"] if row["kind"] == "all_gather")
    assert row["bus_bandwidth"] == pytest.approx(row["size"] / row["time"] / 2)
    assert abs(row["error"]) < 1e-6


def test_one_rank_is_told(capsys):
    code, text, told = called(capsys, *OFFICE, "--ranks", "1")
    assert code == 0 and "one rank: nothing to measure between" in told and "all_reduce" not in text


def test_a_preset_is_shown_without_origins(capsys):
    code, text, _ = called(capsys, "clusters", "ethernet-10g")
    assert code == 0 and "topology.wire.rate" in text and "source: " in text and "origin" not in text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--engine", "simulatd"], "did you mean 'simulated'"),
        (["--engine", "simulated"], "needs the cluster to build"),
        (["--cluster", "local"], "the real engine measures this machine"),
        (["--ranks", "0"], "give at least 1"),
        (["--sizes", "4"], "bare number"),
        (["--sizes", "0 B"], "no bandwidth"),
        (["--out", "found.txt"], r"ends in \.toml"),
        ([*OFFICE[1:], "--ranks", "7"], "use at most 6 workers"),
        (["--engine", "emulated", "--cluster", "absent"], "no cluster preset is called"),
    ],
)
def test_what_cannot_be_is_refused(args, message, capsys):
    code, text, told = called(capsys, "calibrate", *args)
    assert code == 2 and text == "" and re.search(message, told)


@pytest.mark.parametrize("there", ["found.toml", "found.compute.json"])
def test_files_are_not_overwritten_unasked(there, tmp_path, capsys):
    (tmp_path / there).write_text("mine", encoding="utf-8")
    more = ["--ranks", "2", "--sizes", "64 B", "--out", str(tmp_path / "found.toml")]
    code, _, told = called(capsys, *OFFICE, *more)
    assert code == 2 and "--force" in told and (tmp_path / there).read_text(encoding="utf-8") == "mine"
    assert called(capsys, *OFFICE, *more, "--force")[0] == 0
    assert load_cluster(tmp_path / "found.toml").name == "found"


def test_ranks_of_a_launcher_are_not_chosen(monkeypatch, capsys):
    monkeypatch.setattr("geartrain.engines.own_script.started_by_launcher", lambda: True)
    monkeypatch.setattr("geartrain.engines.own_script.script_context", lambda: type("Ctx", (), {"num_workers": 2})())
    code, _, told = called(capsys, "calibrate", "--ranks", "3")
    assert code == 2 and "the launcher started 2" in told
    code, _, told = called(capsys, *OFFICE)
    assert code == 2 and "call it once, without torchrun" in told


@pytest.mark.parametrize("what", [Interrupted, KeyboardInterrupt])
def test_ctrl_c_writes_nothing(what, tmp_path, monkeypatch, capsys):
    def interrupted(self, program):
        raise what("Ctrl-C")

    monkeypatch.setattr(EngineSite, "run", interrupted)
    out = tmp_path / "found.toml"
    code, text, told = called(capsys, *OFFICE, "--out", str(out))
    assert code == 130 and text == "" and "nothing was written" in told and not out.exists()
