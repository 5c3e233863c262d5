"""Plans: which namespaces, wires and rates a cluster comes to. No privilege is needed."""

import math

import pytest

from geartrain.cluster import Matrix, Placement, ServicePlace, Star, TwoLevel, Wire, WireOverride
from geartrain.cluster.overrides import Overrides
from geartrain.emu import shaping
from geartrain.emu.plan import USUAL_MTU, make_plan
from geartrain.errors import ConfigurationError
from tests.emu.possible import cluster

FAST = Wire(rate="400 Mbit/s", latency="50 us", mtu="1500 B")


def plan(topology, workers, services=(), **more):
    return make_plan(Placement(cluster(topology, **more), workers, services))


def ways(made):
    return {way.link: way for edge in made.edges for way in (*edge.up, *edge.down) if way.link}


def test_a_star_has_a_namespace_and_a_wire_per_node():
    made = plan(Star(wire=FAST), 3)
    assert [host.name for host in made.hosts] == ["node-0", "node-1", "node-2"]
    assert [host.address for host in made.hosts] == ["10.77.0.1", "10.77.1.1", "10.77.2.1"]
    assert [(edge.end, edge.bridge, edge.mtu) for edge in made.edges] == [
        (f"node-{n}", "switch", 1500) for n in range(3)
    ]
    assert made.places == (0, 1, 2)
    assert made.latencies == ((0, 1, 50e-6),)


def test_a_shaper_gets_the_rate_at_which_goodput_is_the_clusters():
    rate = ways(plan(Star(wire=FAST), 2))["node-0.up"].rate
    # of 1538 bytes on the wire, 1514 pass the shaper and 1448 are payload
    assert rate == pytest.approx(400e6 / 8 * 1514 / 1538)
    assert rate * 1448 / 1514 == pytest.approx(FAST.goodput)
    textbook = ways(plan(Star(wire=Wire(rate="400 Mbit/s", latency="0 s")), 2))["node-0.up"].rate
    assert textbook * (USUAL_MTU - 52) / (USUAL_MTU + 14) == pytest.approx(50e6)


def test_overrides_shape_one_way_of_one_wire():
    slow = Overrides(wires=(WireOverride(node=1, direction="down", rate="40 Mbit/s"),))
    found = ways(plan(Star(wire=FAST), 2, overrides=slow))
    assert found["node-1.down"].rate == pytest.approx(found["node-0.down"].rate / 10)
    assert found["node-1.up"].rate == found["node-0.up"].rate


def test_two_levels_have_a_bridge_per_leaf_and_shaped_wires_to_the_core():
    made = plan(TwoLevel(wire=FAST, nodes_per_switch=2, oversubscription=4), 4)
    assert made.bridges == ("switch", "leaf-0", "leaf-1")
    assert [(edge.end, edge.bridge) for edge in made.edges][-2:] == [("leaf-0", "switch"), ("leaf-1", "switch")]
    found = ways(made)
    assert found["switch/leaf-0.up"].rate == pytest.approx(found["node-0.up"].rate * 2 / 4)


def test_what_comes_to_a_host_is_held_to_the_narrowest_wire_on_its_way():
    slow = Overrides(wires=(WireOverride(node=1, direction="down", rate="40 Mbit/s"),))
    made = plan(Star(wire=FAST), 2, overrides=slow)
    assert made.rate_into("node-1") == ways(made)["node-1.down"].rate
    assert made.rate_into("node-0") == ways(made)["node-0.down"].rate
    levels = plan(TwoLevel(wire=FAST, nodes_per_switch=2, oversubscription=4), 4)
    assert levels.rate_into("node-0") == ways(levels)["switch/leaf-0.down"].rate
    table = Matrix(rate=(("-", "1 Gbit/s"), ("1 Gbit/s", "-")), latency=(("-", "1 us"), ("1 us", "-")))
    assert plan(table, 2, count=2).rate_into("node-0") == math.inf


def test_a_connection_may_have_some_milliseconds_of_the_rate_on_its_way():
    assert shaping.window(50e6, 0.0) == 2 * 50e6 * shaping.WINDOW  # the kernel gives half of a buffer to data
    assert shaping.window(50e6, 20e-3) == 2 * 50e6 * (shaping.WINDOW + 40e-3)
    assert shaping.window(1e3, 0.0) == shaping.LEAST_WINDOW


def test_the_devices_of_a_node_share_its_wire_and_have_one_each_among_themselves():
    made = plan(TwoLevel(wire=FAST, inner=Wire(rate="1 Gbit/s", latency="0 s")), 3, devices=2)
    assert [host.name for host in made.hosts] == ["node-0.0", "node-0.1", "node-1"]
    assert [host.machine for host in made.hosts] == ["node-0", "node-0", "node-1"]
    ends = [(edge.end, edge.bridge, edge.sisters) for edge in made.edges]
    assert ends == [
        ("node-0.0", "node-0/out", ()),
        ("node-0.1", "node-0/out", ()),
        ("node-0/out", "switch", ()),
        ("node-1", "switch", ()),
        ("node-0.0", "node-0/in", ("10.77.0.2",)),
        ("node-0.1", "node-0/in", ("10.77.0.1",)),
    ]
    assert math.isinf(made.edges[0].up[0].rate)
    assert made.edges[4].mtu == USUAL_MTU


def test_a_wire_per_device_goes_straight_to_the_switch():
    made = plan(Star(wire=FAST, wire_per="device", inner=Wire(rate="1 Gbit/s", latency="0 s")), 2, devices=2)
    assert [(edge.end, edge.bridge) for edge in made.edges[:2]] == [("node-0.0", "switch"), ("node-0.1", "switch")]
    assert "node-0.1.up" in ways(made)


def test_a_matrix_tells_ways_apart_by_destination():
    table = Matrix(rate=(("-", "100 Mbit/s"), ("20 Mbit/s", "-")), latency=(("-", "2 ms"), ("4 ms", "-")))
    made = plan(table, 2, count=2)
    up = made.edges[0].up[0]
    assert (up.link, up.nodes, up.latency) == ("node-0>node-1", (1,), 2e-3)
    assert made.latencies == ((0, 1, 3e-3), (1, 0, 3e-3))  # there and back, halved


def test_services_live_where_they_are_placed():
    services = [ServicePlace("server"), ServicePlace("server", "colocated", 0), ServicePlace("server", "switch")]
    made = plan(Star(wire=FAST), 2, services)
    assert [made.hosts[host].name for host in made.places] == ["node-0", "node-1", "node-2", "node-0", "switch"]


@pytest.mark.parametrize(
    ("topology", "says"),
    [
        (Star(wire=Wire(rate="100 Gbit/s", latency="0 s")), r"node-0.up carries 100 Gbit/s .*10 Gbit/s"),
        (Star(wire=Wire(rate="10 kbit/s", latency="0 s")), r"node-0.up carries 10 kbit/s"),
        (Star(wire=Wire(rate="1 Gbit/s", latency="0 s", mtu="70000 B")), r"topology.wire has an mtu of"),
    ],
)
def test_what_cannot_be_built_is_refused(topology, says):
    with pytest.raises(ConfigurationError, match=says):
        plan(topology, 2)


@pytest.mark.parametrize("mtu", [576, 1500, 9000, 65_000])
@pytest.mark.parametrize("rate", [1.25e5, 1.25e7, 1.25e9, math.inf])
def test_a_burst_holds_a_piece_with_all_its_headers(rate, mtu):
    piece = shaping.piece(rate, mtu)
    assert min(2 * mtu, 65_536) <= piece <= 65_536
    assert shaping.burst(rate, mtu) >= piece + -(-piece // (mtu - 52)) * 66
