"""The file of grids: what it holds, and what it may not."""

import pytest

from geartrain.errors import ConfigurationError, GeartrainError
from geartrain.tasks import get_task
from geartrain.validation.grid import FOLDER, GRID_FILE, cases, load_grids

TEXT = """
[[task]]
task = "digits:hidden=1536"
samples = 4
flops = "1 GFLOP/s"
memory_rate = "1 GB/s"

[[grid]]
name = "small"
tasks = ["digits:hidden=1536"]
strategies = ["synchronous", "parameter_server:servers=2"]
workers = [2, 3]
rates = ["50 Mbit/s", "100 Mbit/s"]
steps = 3
overrides = { wires = [{ node = 1, rate = "5 Mbit/s" }] }

[[grid]]
name = "here"
engine = "real"
quick = true
tasks = ["digits:hidden=1536"]
strategies = ["synchronous"]
workers = [2]
samples = 7
steps = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / GRID_FILE

    def write(text):
        path.write_text(text)
        return path

    return write


def test_a_grid_is_the_product_of_what_it_names(file):
    found = cases(load_grids(file(TEXT)), "emulated", quick=False)
    assert len(found) == 8 == len({case.name for case in found})
    first = found[0]
    assert (first.batch, first.steps, first.seed, first.compute) == (8, 3, 0, "roofline")
    assert str(first) == "small: synchronous, digits:hidden=1536, 2 workers, 50-Mbit-per-s"
    assert first.cluster.topology.wire.rate == 50e6 / 8
    assert first.cluster.overrides.wires[0].rate == 5e6 / 8
    assert first.cluster.nodes[0].device.flops == {"fp32": 1e9}
    assert len({case.group for case in found}) == 4


def test_a_real_grid_runs_on_this_machine(file):
    (only,) = cases(load_grids(file(TEXT)), "real", quick=True)
    assert (only.cluster.name, only.batch, only.compute) == ("local", 14, "measured")
    assert cases(load_grids(file(TEXT)), "real", quick=False) == []


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("steps = 3\noverrides", "step = 3\noverrides", r"grid\.0\.step"),
        ('"50 Mbit/s"', '"50"', r"grid\.0\.rates\.0"),
        ("workers = [2, 3]", "workers = [1]", r"grid\.0\.workers\.0"),
        ('engine = "real"', 'engine = "virtual"', r"grid\.1\.engine"),
        ("[[task]]", "[[task", "cannot read the grids"),
        ('tasks = ["digits:hidden=1536"]', 'tasks = ["digits"]', r"asks for task 'digits', which has no \[\[task\]\]"),
        ('rates = ["50 Mbit/s", "100 Mbit/s"]', "", "give the rates"),
        ('engine = "real"', 'engine = "real"\nrates = ["1 Gbit/s"]', "leave out its rates"),
        ('"parameter_server:servers=2"', '"parameter_serve"', "did you mean 'parameter_server'"),
        ('"parameter_server:servers=2"', '"synchronous"', "twice"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(file, old, new, says):
    with pytest.raises(GeartrainError, match=says):
        loaded = load_grids(file(TEXT.replace(old, new, 1)))
        cases(loaded, "emulated", quick=False)
        cases(loaded, "real", quick=True)


def test_a_folder_without_grids_is_told(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot read the grids"):
        load_grids(tmp_path / GRID_FILE)


def test_the_projects_grid_is_the_one_that_was_fixed():
    """Both kinds of unequal clusters, all strategies and sizes, and gradients of at least 3 MB."""
    loaded = load_grids(FOLDER / GRID_FILE)
    emulated = cases(loaded, "emulated", quick=False)
    alike = [case for case in emulated if case.grid == "alike"]
    assert {case.workers for case in alike} == {4, 8}
    rates = {case.cluster.topology.wire.rate for case in alike}
    assert min(rates) == 50e6 / 8 and max(rates) == 1e9 / 8
    kinds = {
        "synchronous:overlap=false",
        "synchronous:bucket_size=1MiB",
        "parameter_server",
        "parameter_server:servers=4",
        "peer_to_peer",
        "peer_to_peer:kind=broadcast",
    }
    for grid in ("alike", "slow-link", "slow-device"):
        here = [case for case in emulated if case.grid == grid]
        assert {str(case.strategy) for case in here} == kinds and all(case.judged for case in here)
    for task in {case.task for case in emulated}:
        assert sum(4 * p.numel() for p in get_task(task).model(0).parameters()) >= 3e6
    slow_link = next(case for case in emulated if case.grid == "slow-link").cluster
    assert slow_link.overrides.wires[0].rate == slow_link.topology.wire.rate / 10
    slow_device = next(case for case in emulated if case.grid == "slow-device").cluster
    assert slow_device.overrides.nodes[0].speed == 0.5
    bars = loaded.bars
    assert (bars.trustworthy, bars.median, bars.worst) == (0.5, 0.05, 0.12)
    assert (loaded.trust.factor, loaded.trust.host_busy) == (5.0, 0.8)
    assert cases(loaded, "emulated", quick=True)
