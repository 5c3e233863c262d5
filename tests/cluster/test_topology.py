"""Links and routes of every topology, and what overrides change."""

import math

import pytest

from geartrain.cluster import SWITCH, Cluster, Overrides, build
from geartrain.errors import ClusterError

DEVICE = {"name": "d", "flops": {"fp32": 1e12}, "memory": 2**30, "memory_rate": 1e11, "source": "chosen"}
WIRE = {"rate": "8 Gbit/s", "latency": "50 us"}
INNER = {"rate": "100 GB/s", "latency": "4 us"}


def make(topology, count=6, per_node=1, overrides=None):
    nodes = [{"count": count, "device": DEVICE, "devices_per_node": per_node}]
    return Cluster.model_validate(
        {"name": "c", "source": "chosen", "nodes": nodes, "topology": topology, "overrides": overrides or Overrides()}
    )


def names(topology, *ends):
    return [topology.links[link].name for link in topology.route(*ends).links]


def test_star():
    topology = build(make({"kind": "star", "wire": WIRE}), 3)
    assert [link.name for link in topology.links] == [f"node-{n}.{way}" for n in range(3) for way in ("up", "down")]
    assert {(link.capacity, link.latency) for link in topology.links} == {(1e9, 25e-6)}
    assert names(topology, 0, 0, 2, 0) == ["node-0.up", "node-2.down"]
    assert topology.route(0, 0, 2, 0).latency == 50e-6
    assert topology.rate(topology.route(0, 0, 2, 0)) == 1e9


def test_same_device():
    topology = build(make({"kind": "star", "wire": WIRE}), 3)
    route = topology.route(1, 0, 1, 0)
    assert (route.links, route.latency, topology.rate(route)) == ((), 0.0, math.inf)


def test_routes_are_kept():
    topology = build(make({"kind": "star", "wire": WIRE}), 3)
    assert topology.route(0, 0, 1, 0) is topology.route(0, 0, 1, 0)


def test_the_switch_is_half_way():
    topology = build(make({"kind": "star", "wire": WIRE}), 3)
    assert names(topology, 1, 0, SWITCH, 0) == ["node-1.up"]
    assert names(topology, SWITCH, 0, 1, 0) == ["node-1.down"]
    assert topology.route(1, 0, SWITCH, 0).latency == 25e-6
    assert topology.route(SWITCH, 0, SWITCH, 0).links == ()


def test_devices_of_a_node():
    topology = build(make({"kind": "star", "wire": WIRE, "inner": INNER}, per_node=2), 2)
    assert names(topology, 1, 0, 1, 1) == ["node-1.0.out", "node-1.1.in"]
    assert topology.route(1, 0, 1, 1).latency == 4e-6
    assert names(topology, 0, 1, 1, 0) == ["node-0.up", "node-1.down"]


def test_a_wire_per_device():
    topology = build(make({"kind": "star", "wire": WIRE, "inner": INNER, "wire_per": "device"}, per_node=2), 2)
    assert names(topology, 0, 1, 1, 0) == ["node-0.1.up", "node-1.0.down"]
    assert len(topology.links) == 2 * 2 * 2 + 2 * 2 * 2


def test_two_level():
    levels = {"kind": "two_level", "wire": WIRE, "nodes_per_switch": 2, "oversubscription": 4, "core_latency": "6 us"}
    topology = build(make(levels), 5)
    assert names(topology, 0, 0, 1, 0) == ["node-0.up", "node-1.down"]
    assert names(topology, 1, 0, 4, 0) == ["node-1.up", "switch/leaf-0.up", "switch/leaf-2.down", "node-4.down"]
    assert topology.route(0, 0, 1, 0).latency == 50e-6
    assert topology.route(1, 0, 4, 0).latency == math.fsum((25e-6, 3e-6, 3e-6, 25e-6))
    assert topology.rate(topology.route(1, 0, 4, 0)) == 2 * 1e9 / 4
    assert names(topology, 3, 0, SWITCH, 0) == ["node-3.up", "switch/leaf-1.up"]
    assert names(topology, SWITCH, 0, 3, 0) == ["switch/leaf-1.down", "node-3.down"]


def test_uplinks_carry_all_wires_of_a_node():
    levels = {"kind": "two_level", "wire": WIRE, "nodes_per_switch": 2, "wire_per": "device", "inner": INNER}
    topology = build(make(levels, per_node=4), 4)
    (uplink,) = (link for link in topology.links if link.name == "switch/leaf-1.up")
    assert uplink.capacity == 2 * 4 * 1e9


def test_two_levels_with_one_leaf_are_a_star():
    star = build(make({"kind": "star", "wire": WIRE}), 4)
    for nodes_per_switch in (None, 4):
        levels = build(make({"kind": "two_level", "wire": WIRE, "nodes_per_switch": nodes_per_switch}), 4)
        assert levels.links == star.links
        assert levels.route(0, 0, 3, 0) == star.route(0, 0, 3, 0)


RATES = [["-", "1 GB/s", "2 GB/s"], ["3 GB/s", "-", "4 GB/s"], ["5 GB/s", "6 GB/s", "-"]]
LATENCIES = [["-", "1 ms", "2 ms"], ["3 ms", "-", "4 ms"], ["5 ms", "6 ms", "-"]]
MATRIX = {"kind": "matrix", "rate": RATES, "latency": LATENCIES, "inner": INNER}


def test_matrix():
    topology = build(make(MATRIX, count=3, per_node=2), 3)
    assert names(topology, 2, 1, 0, 0) == ["node-2>node-0"]
    assert topology.rate(topology.route(2, 1, 0, 0)) == 5e9
    assert topology.route(2, 1, 0, 0).latency == 5e-3
    assert names(topology, 2, 1, 2, 0) == ["node-2.1.out", "node-2.0.in"]


def test_wire_overrides():
    wires = [
        {"node": "all", "latency": "20 us"},
        {"node": "node-1", "rate": "80 Mbit/s", "direction": "up"},
        {"node": 2, "latency": "100 us", "direction": "down"},
        {"node": 5, "rate": "1 bit/s"},
    ]
    topology = build(make({"kind": "star", "wire": WIRE | {"mtu": "1500 B"}}, overrides={"wires": wires}), 3)
    rates = {link.name: link.capacity for link in topology.links}
    efficiency = 1448 / 1538
    assert rates["node-1.up"] == pytest.approx(1e7 * efficiency, rel=1e-15)
    assert rates["node-1.down"] == pytest.approx(1e9 * efficiency, rel=1e-15)
    assert topology.route(0, 0, 1, 0).latency == 20e-6
    assert topology.route(0, 0, 2, 0).latency == math.fsum((10e-6, 50e-6))
    assert topology.route(2, 0, 0, 0).latency == 20e-6


def test_pair_overrides():
    pairs = [
        {"pair": [0, "node-1"], "latency": "9 ms"},
        {"pair": [1, 0], "rate": "7 GB/s", "both_ways": False},
    ]
    topology = build(make(MATRIX, count=3, per_node=2, overrides={"pairs": pairs}), 3)
    there, back = topology.route(0, 0, 1, 0), topology.route(1, 0, 0, 0)
    assert (topology.rate(there), there.latency) == (1e9, 9e-3)
    assert (topology.rate(back), back.latency) == (7e9, 9e-3)


@pytest.mark.parametrize("num_nodes", [0, 7])
def test_nodes_there_are_not(num_nodes):
    with pytest.raises(ClusterError, match=f"cannot use {num_nodes} nodes of cluster 'c', which has 6"):
        build(make({"kind": "star", "wire": WIRE}), num_nodes)


def test_many_nodes_are_cheap():
    wires = [{"node": node, "rate": "1 GB/s"} for node in range(1024)]
    topology = build(make({"kind": "star", "wire": WIRE}, count="any", overrides={"wires": wires}), 1024)
    assert len(topology.links) == 2048
    assert not topology._routes
