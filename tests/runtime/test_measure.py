"""Measuring on this host: what is in the table, and that a step adds up."""

import pytest

from geartrain.cluster.spec import Device
from geartrain.cost.compute import Measured, Work
from geartrain.cost.table import Table
from geartrain.errors import TaskError
from geartrain.runtime.measure import _entries, measure_table
from geartrain.tasks.digits import Digits


def test_a_measured_table(tmp_path):
    told = []
    table = measure_table(Digits(), [8, 16], repeats=2, progress=told.append)
    assert told == ["measuring digits at 8 samples, 2 steps", "measuring digits at 16 samples, 2 steps"]
    assert table.num_threads == 1
    shapes = {key[1][0] for key in table.entries if key[0] == "aten.convolution.default"}
    assert shapes == {(8, 1, 8, 8), (8, 16, 8, 8), (16, 1, 8, 8), (16, 16, 8, 8)}
    assert all(entry.seconds > 0 for entry in table.entries.values())
    table.save(tmp_path / "times.json")
    assert Table.load(tmp_path / "times.json") == table


def test_prices_of_a_step_add_up_to_the_step():
    works = [Work(name, flop=1.0, nbytes=4.0, key=(name, (), ())) for name in ("a", "b")]
    times = [(works[0], 1.0), (works[1], 3.0), (works[0], 1.0), (works[1], 5.0)]  # two steps
    entries = _entries(times, whole=7.0, repeats=2)
    assert [entry.seconds for entry in entries.values()] == [2.0, 5.0]
    model = Measured(Table("here", "today", 1, "by hand", entries))
    device = Device(name="any", flops={"fp32": 1.0}, memory=1, memory_rate=1.0, source="chosen")
    assert sum(model.seconds(work, device) for work in works) == 7.0


def test_nothing_to_measure():
    with pytest.raises(TaskError, match="at least one batch size"):
        measure_table(Digits(), [])
