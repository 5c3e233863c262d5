"""`geartrain.init()`: the world of a script, whoever started it; and the example that uses it, on every engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import geartrain
from geartrain.cluster.load import load_cluster
from geartrain.engines.own_script import script_context
from geartrain.engines.real import RealEngine, launch_script
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError
from geartrain.sim.script import simulate_script

CLUSTER = load_cluster("ethernet-1g")
EXAMPLE = Path(__file__).parents[2] / "examples" / "attach.py"

SCRIPT = """
import torch, torch.distributed as dist
import geartrain

if BEFORE:
    dist.init_process_group("gloo")
ctx = geartrain.init()
assert geartrain.init() is ctx and dist.is_initialized() and ctx.workers is dist.group.WORLD
total = torch.tensor([ctx.rank + 1.0])
dist.all_reduce(total, group=ctx.workers)
dist.all_reduce(total, group=ctx.everyone)
pair = ctx.group([1, 2])
if pair is not None:
    dist.all_reduce(total, group=pair)
queue = ctx.queue()
ctx.spawn(lambda: queue.put(geartrain.init() is ctx), "lane").join()
ctx.mark_step(0, "begin")
ctx.mark_step(0, "end")
print(ctx.rank, ctx.world_size, ctx.num_workers, ctx.role, ctx.device, ctx.nodes, total.item(), queue.get())
dist.destroy_process_group()
"""


def script(tmp_path, before):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("BEFORE", str(before)))
    return path


def lines(text):
    return sorted(line for line in text.splitlines() if line.startswith("["))


@pytest.mark.parametrize("before", [False, True])
def test_under_simulate(tmp_path, capsys, before):
    record = simulate_script(str(script(tmp_path, before)), [], CLUSTER, 3)
    assert lines(capsys.readouterr().out) == [
        "[0] 0 3 3 worker cpu (0, 1, 2) 18.0 True",
        "[1] 1 3 3 worker cpu (0, 1, 2) 36.0 True",
        "[2] 2 3 3 worker cpu (0, 1, 2) 36.0 True",
    ]
    kinds = [[op.kind for op in log.ops] for log in record.logs]
    assert kinds == [["all_reduce"] * 2, ["all_reduce"] * 3, ["all_reduce"] * 3]
    assert all(len(log.steps) == 1 for log in record.logs)


@pytest.mark.multi
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("before", [False, True])
def test_under_run(tmp_path, capfd, before):
    record = launch_script(script(tmp_path, before), ranks=3)
    found = lines(capfd.readouterr().out)
    assert found == [f"[{rank}] {rank} 3 3 worker cpu (0, 0, 0) {[18.0, 36.0, 36.0][rank]} True" for rank in range(3)]
    kinds = [[op.kind for op in log.ops] for log in record.logs]
    assert kinds == [["all_reduce"] * 2, ["all_reduce"] * 3, ["all_reduce"] * 3]  # what setting up sent is not there
    assert all(len(log.steps) == 1 for log in record.logs)


def same_context(ctx):
    return geartrain.init() is ctx


@pytest.mark.multi
@pytest.mark.xdist_group("processes")
def test_inside_a_function_of_an_engine():
    assert SimulatedEngine().run(same_context, CLUSTER, workers=2).results == [True, True]
    assert RealEngine().run(same_context, CLUSTER, workers=2).results == [True, True]


def test_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    ctx = geartrain.init()
    try:
        assert (ctx.rank, ctx.world_size, ctx.num_workers, ctx.role, ctx.nodes) == (0, 1, 1, "worker", (0,))
        assert geartrain.init() is ctx and script_context() is ctx
        assert ctx.group([0]) is not None
        with pytest.raises(ConfigurationError, match="ascending"):
            ctx.group([0, 0, -1])
        total = torch.ones(2)
        dist.all_reduce(total, group=ctx.everyone)
        assert total.tolist() == [1.0, 1.0]
        ctx.mark_step(0, "begin")
        with ctx.trace.span("work"):
            ctx.mark_step(0, "end")
        assert ctx.recorder.log.ops == ctx.recorder.log.steps == ctx.recorder.log.spans == []  # a run without an end
    finally:
        dist.destroy_process_group()
    again = geartrain.init()
    dist.destroy_process_group()
    assert again is not ctx


# --- the example ------------------------------------------------------------------------------------------------------


def assert_expected(found):
    """The words are the same, the numbers near: other processors round otherwise."""
    expected = EXAMPLE.with_suffix(".out").read_text().splitlines()
    number = re.compile(r"\d+\.\d+")
    assert [number.sub("#", line) for line in found] == [number.sub("#", line) for line in expected]
    for left, right in zip(found, expected, strict=True):
        for a, b in zip(number.findall(left), number.findall(right), strict=True):
            assert float(a) == pytest.approx(float(b), rel=1e-2, abs=1e-3)


@pytest.mark.multi
@pytest.mark.xdist_group("processes")
def test_the_example_prints_the_same_on_every_engine(capfd):
    simulate_script(str(EXAMPLE), [], CLUSTER, 2)
    simulated = lines(capfd.readouterr().out)
    assert_expected(simulated)
    launch_script(EXAMPLE, ranks=2)
    assert lines(capfd.readouterr().out) == simulated
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    # Both processes write to one pipe, so a line may end in the middle of another's end.
    assert all(line.partition(" ")[2] in done.stdout for line in simulated), done.stdout


@pytest.mark.parametrize(
    "options", [["--clip", "0.5", "--accumulate", "2"], ["--autocast", "--strategy", "synchronous:exchange=ring"]]
)
def test_options_of_the_example(options, capsys):
    simulate_script(str(EXAMPLE), [*options, "--steps", "5"], CLUSTER, 2)
    first, second = lines(capsys.readouterr().out)
    assert first.partition("sum")[2] == second.partition("sum")[2] != ""
