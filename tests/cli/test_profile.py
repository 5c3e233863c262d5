"""`geartrain calibrate --profile`: refusals, and a trace that becomes a profile which prices work."""

import json

import pytest

from geartrain.cli import main
from geartrain.cost.compute import Work, parse_compute
from tests.calibration.test_trace_import import BY_HAND, DEVICE


def run(capsys, *args):
    """(exit code, standard output, standard error)."""
    with pytest.raises(SystemExit) as done:
        main(["calibrate", *map(str, args)])
    out, err = capsys.readouterr()
    return done.value.code or 0, out, " ".join(err.split())


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": BY_HAND}))
    return path


def test_a_trace_becomes_a_profile(tmp_path, trace, capsys):
    out = tmp_path / "traced.json"
    code, text, _ = run(capsys, "--profile", out, "--trace", trace, "--device", "h100-sxm5", "--json")
    assert code == 0
    told = json.loads(text)
    assert told["name"] == "traced" and told["queued"]
    model = parse_compute(f"profile:{out}")
    # The one addition of the trace: 3 KiB in 12 us, after 20 us between, 10 before and a launch of 4.
    launch = model.launches(Work("aten.add.Tensor", 256.0, 3072.0, key=("aten.add.Tensor", (), ())), DEVICE)[0]
    assert (launch.host, launch.device) == (pytest.approx(34e-6), pytest.approx(12e-6))
    again = run(capsys, "--profile", out, "--trace", trace, "--device", "h100-sxm5")
    assert again[0] == 2 and "--force" in again[2]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--profile", "here.json", "--ranks", "2", "--out", "x.toml"], "leave out --ranks, --out"),
        (["--profile", "here.toml"], "ends in .json"),
        (["--trace", "trace.json"], "give --profile FILE.json"),
        (["--profile", "here.json", "--trace", "trace.json"], "--trace and --device belong together"),
    ],
)
def test_refusals(args, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, text, told = run(capsys, *args)
    assert code == 2 and text == "" and message in told
