"""The whole way, nothing faked: flags to runs to numbers and files."""

import gzip
import json

import pytest

from geartrain.cli import main

STRATEGIES = "parameter_server,peer_to_peer:kind=broadcast,synchronous:exchange=ring"


def cells(capsys, *args):
    with pytest.raises(SystemExit) as left:
        main(["compare", "--json", *args])
    out = capsys.readouterr().out
    assert not left.value.code
    return json.loads(out)


def test_simulated_task_meets_its_closed_forms_and_leaves_its_files(capsys, tmp_path):
    flags = ["--task", "digits", "--cluster", "ethernet-10g", "--ranks", "2", "--steps", "3", "--out", str(tmp_path)]
    found = cells(capsys, *flags, "--strategies", STRATEGIES)
    assert len({cell["final_loss"] for cell in found}) == 1  # two workers: the order of summation cannot differ
    for cell in found:
        assert cell["step_time"] == pytest.approx(cell["closed_form_step_time"], rel=0.01)
        parts = cell["compute"] + cell["exposed_communication"] + cell["wait"]
        assert parts == pytest.approx(cell["step_time"], rel=1e-9)
        trace = json.loads(gzip.decompress((tmp_path / cell["out"] / "trace.json.gz").read_bytes()))
        assert {event["pid"] for event in trace["traceEvents"]} >= {0, 1}


def test_workload_has_times_and_no_losses(capsys):
    found = cells(capsys, "--workload", "resnet50", "--ranks", "2", "--strategies", "synchronous", "--steps", "2")
    assert found[0]["final_loss"] is None and found[0]["metric"] is None
    assert found[0]["bytes_sent_per_rank"] == 4 * 25_557_032


@pytest.mark.multi
def test_real_and_simulated_runs_learn_the_same(capsys):
    flags = ["--task", "digits", "--ranks", "2", "--strategies", "synchronous", "--steps", "3"]
    real = cells(capsys, *flags, "--engine", "real")[0]
    simulated = cells(capsys, *flags, "--engine", "simulated", "--compute", "roofline")[0]
    same = ("final_loss", "metric", "bytes_sent_per_rank", "messages_per_rank", "steps")
    assert {key: real[key] for key in same} == {key: simulated[key] for key in same}
