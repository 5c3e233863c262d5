"""Rings of links between devices, on graphs whose rings one can count, and what must hold of the five machines."""

from itertools import combinations

import pytest

from geartrain.errors import ConfigurationError, UnknownName
from geartrain.validation import interconnects
from geartrain.validation.interconnects import MACHINES, Machine, bus_bandwidth, efficiency, processes_gain


@pytest.fixture
def made(monkeypatch):
    def make(**given):
        monkeypatch.setattr(interconnects, "MACHINES", {"made": Machine(**given)})

    return make


@pytest.mark.parametrize(
    ("devices", "links", "rings"),
    [
        (3, {(0, 1): 1, (1, 2): 1, (0, 2): 1}, 1),  # a triangle
        (3, {(0, 1): 2, (1, 2): 2, (0, 2): 1}, 1),  # its third side has one link
        (4, dict.fromkeys(combinations(range(4), 2), 1), 1),  # three links each: one ring takes two of them
        (5, dict.fromkeys(combinations(range(5), 2), 1), 2),  # the complete graph of five falls into two rings
        (4, {(0, 1): 3, (2, 3): 3}, 0),  # no way across
    ],
)
def test_rings(made, devices, links, rings):
    made(devices=devices, links=links, host=1e9)
    expected = 2 * rings * 25e9 if rings else 1e9
    assert bus_bandwidth(machine_name="made", ranks=devices) == expected


def test_links_of_a_cube_mesh():
    links = MACHINES["p3"].links
    assert sum(links.values()) == 24
    assert all(sum(n for pair, n in links.items() if device in pair) == 6 for device in range(8))


def test_bandwidth_grows_on_a_mesh_and_is_the_same_everywhere_on_a_switch():
    mesh = [bus_bandwidth(machine_name="p3", ranks=n) for n in (2, 4, 8)]
    assert mesh == [25e9, 100e9, 150e9]
    assert {bus_bandwidth(machine_name="dgx-2", ranks=n) for n in (2, 4, 8, 16)} == {150e9}
    assert {bus_bandwidth(machine_name="ts4", ranks=n) for n in (2, 4, 8)} == {8e9}
    assert [bus_bandwidth(machine_name="ac922", ranks=n) for n in (2, 4)] == [75e9, 64e9]
    assert bus_bandwidth(machine_name="p3", ranks=2, members=(0, 5)) == 8e9  # no link: through the host
    assert bus_bandwidth(machine_name="p3", ranks=16) == 25e9 / 8


def test_machines_rank_by_their_links_where_little_is_computed():
    given = {"workload": "alexnet", "samples": 64}
    switch, mesh, sockets, host = (
        efficiency(machine_name=name, ranks=n, **given)
        for name, n in (("dgx-2", 8), ("p3", 8), ("ac922", 4), ("ts4", 8))
    )
    assert switch >= mesh > sockets > 2 * host


def test_larger_batches_scale_better():
    rates = [efficiency(machine_name="p3", ranks=16, workload="alexnet", samples=n) for n in (16, 64, 256)]
    assert rates == sorted(rates) and rates[0] < rates[2]


def test_one_process_for_all_moves_everything_through_one_device():
    given = {"machine_name": "dgx-2", "workload": "resnet18", "samples": 8}
    step = [interconnects.one_process_step(ranks=n, **given) for n in (2, 3)]
    assert step[1] - step[0] == pytest.approx(8 * 3 * 224 * 224 * 4 / (0.85 * 150e9), rel=1e-6)
    assert processes_gain(ranks=8, **given) > 1


def test_what_cannot_be():
    with pytest.raises(UnknownName, match="dgx-1"):
        bus_bandwidth(machine_name="dgx-1", ranks=8)
    with pytest.raises(ConfigurationError, match="12 devices"):
        bus_bandwidth(machine_name="p3", ranks=12)
    with pytest.raises(ConfigurationError, match="16 devices are not"):
        bus_bandwidth(machine_name="ac922", ranks=16)
    with pytest.raises(ConfigurationError, match="two members"):
        bus_bandwidth(machine_name="p3", ranks=2, members=(0, 1, 2))
