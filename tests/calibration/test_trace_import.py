"""Profiles from traces: one of an accelerator written by hand, and one of this host's CPU."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from geartrain.calibration.trace_import import filtered_mean, profile_from_trace
from geartrain.cluster import local_cluster
from geartrain.errors import ConfigurationError

DEVICE = local_cluster().nodes[0].device


def op(name, ts, dur, dims=(), types=(), tid=1):
    args = {"Input Dims": list(dims), "Input type": list(types)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def launch(ts, number, name="cudaLaunchKernel"):
    args = {"correlation": number}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": ts, "dur": 10, "pid": 1, "tid": 1, "args": args}


def kernel(ts, dur, number):
    return {"ph": "X", "cat": "kernel", "name": "k", "ts": ts, "dur": dur, "args": {"correlation": number}}


FLOATS = ([[256], [256]], ["float", "float"])
"""Two tensors of 1 KiB; with what comes out 3 KiB."""

BY_HAND = [
    op("aten::linear", 0, 60, [[8, 4], [4, 4]], ["float", "float"]),
    op("aten::t", 1, 2, [[4, 4]], ["float"]),
    op("aten::addmm", 10, 45, [[4], [8, 4], [4, 4]], ["float"] * 3),
    op("aten::expand", 12, 2, [[4]], ["float"]),
    launch(20, 1),
    kernel(100, 30, 1),
    op("aten::add", 75, 40, *FLOATS),
    launch(85, 2),
    launch(100, 3),
    kernel(131, 5, 2),
    kernel(137, 7, 3),
    {"ph": "M", "name": "process_name", "args": {}},
]


def read(tmp_path, events):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return profile_from_trace(path, device=DEVICE, name="traced")


def test_an_accelerator_by_hand(tmp_path):
    """addmm: 10 to 55 with a launch at 20 to 30 and an event inside before; add: 75 to 115, launches at 85 and 100.

    Microseconds. Of addmm before is 20 - 10 less 2 for `expand`. A launch of 10 is 4 without the profiler's 2 + 4.
    """
    found = read(tmp_path, BY_HAND)
    over = found.overheads
    assert found.queued
    assert over.launch == pytest.approx(4e-6)
    assert over.between == pytest.approx(20e-6)
    assert over.before["aten.addmm.default"] == pytest.approx(8e-6)
    assert over.before["aten.add.Tensor"] == pytest.approx(10e-6) and over.before["default"] == pytest.approx(9e-6)
    assert over.after["aten.addmm.default"] == pytest.approx(25e-6)
    assert over.after["aten.add.Tensor"] == pytest.approx(5e-6)
    assert over.inside == {
        "default": pytest.approx(5e-6),
        **{k: pytest.approx(5e-6) for k in over.inside if "add" in k},
    }
    assert found.curves["elementwise"].points == (pytest.approx((3072, 12e-6)),)
    assert found.curves["product"].points[0][1] == pytest.approx(30e-6)


def test_wide_outliers_are_left_out():
    assert filtered_mean([1, 2, 3, 4, 1000]) == 2.5
    assert filtered_mean([-5, 5]) == 2.5 and filtered_mean([]) == 0.0


def test_a_cpu(tmp_path):
    """Of a CPU's trace operations are the kernels, and host and device add up."""
    sizes = (16, 32, 64, 128, 256, 512)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as taken, torch.no_grad():
        for size in sizes:
            torch.nn.functional.linear(torch.ones(size, size), torch.ones(size, size), torch.ones(size)).relu()
    path = tmp_path / "cpu.json"
    taken.export_chrome_trace(str(path))
    found = profile_from_trace(path, device=DEVICE, name="cpu")
    assert not found.queued and found.overheads.before == {} and found.overheads.launch == 0
    assert 1e-7 < found.overheads.between < 2e-4
    assert set(found.fits) == {"product/fp32"} and found.fits["product/fp32"].rate > 1e8
    points = found.curves["elementwise"].points
    assert [round(nbytes) for nbytes, _ in points][-1] <= 2 * 512 * 512 * 4
    assert all(1e-8 < seconds < 0.1 for _, seconds in points)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", r"is no trace of torch\.profiler"),
        ('{"events": []}', r"is no trace of torch\.profiler"),
        ('{"traceEvents": []}', "record_shapes=True"),
    ],
)
def test_other_files(tmp_path, text, message):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        profile_from_trace(path, device=DEVICE, name="x")
    with pytest.raises(ConfigurationError, match="no trace can be read"):
        profile_from_trace(tmp_path / "absent.json", device=DEVICE, name="x")
