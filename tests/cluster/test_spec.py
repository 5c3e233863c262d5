"""Cluster values made in Python: text or SI numbers, goodput, nodes by name."""

import pytest
from pydantic import ValidationError

from geartrain.cluster import Cluster, Device, NodeGroup, Star, Wire, load_cluster
from geartrain.errors import ClusterError, UnknownName

DEVICE = Device(name="d", flops={"fp32": 1e12}, memory=2**30, memory_rate=1e11, source="chosen")


def cluster_of(*groups):
    return Cluster(name="c", source="chosen", nodes=groups, topology=Star(wire=Wire(rate=1e9, latency=0.0)))


def test_text_and_numbers_are_the_same():
    assert Wire(rate="25 Gbit/s", latency="50 us") == Wire(rate=3.125e9, latency=50e-6)


def test_goodput_counts_headers():
    textbook = Wire(rate="1 Gbit/s", latency="50 us")
    assert (textbook.efficiency, textbook.goodput) == (1, 125e6)
    ethernet = Wire(rate="1 Gbit/s", latency="50 us", mtu="1500 B")
    assert ethernet.goodput == pytest.approx(125e6 * 1448 / 1538, rel=1e-15)
    jumbo = Wire(rate="1 Gbit/s", latency="50 us", mtu="9000 B", header="40 B")
    assert jumbo.goodput == pytest.approx(125e6 * 8960 / 9038, rel=1e-15)


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), True, None, []])
def test_impossible_rates(rate):
    with pytest.raises(ValidationError, match="rate"):
        Wire(rate=rate, latency=0.0)


def test_values_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        DEVICE.memory = 1


def test_flops_of():
    assert DEVICE.flops_of("fp32") == 1e12
    with pytest.raises(UnknownName, match=r"no compute rate of d is called 'fp16'; did you mean 'fp32'"):
        DEVICE.flops_of("fp16")


def test_nodes_are_numbered_over_all_groups():
    cluster = cluster_of(NodeGroup(name="big", count=2, device=DEVICE), NodeGroup(name="small", count=3, device=DEVICE))
    assert cluster.num_nodes == 5
    assert [cluster.node_name(i) for i in range(5)] == ["big-0", "big-1", "small-0", "small-1", "small-2"]
    assert cluster.find("small") == range(2, 5)
    assert cluster.find("small-1") == cluster.find(3) == range(3, 4)
    assert cluster.find("all") == range(5)
    with pytest.raises(ClusterError, match=r"cluster 'c' has no node 5; it has 5, numbered from 0"):
        cluster.node(5)
    for ref in ("small-3", "small-01", 5, "tall"):
        with pytest.raises(UnknownName, match="no node of cluster 'c' is called"):
            cluster.find(ref)


def test_any_number_of_nodes():
    cluster = load_cluster("ethernet-25g")
    assert cluster.num_nodes is None
    assert cluster.node_name(10**6) == "node-1000000"
    assert cluster.find("node-7") == range(7, 8)
