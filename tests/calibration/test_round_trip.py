"""The measuring itself: under a virtual clock, calibrating a cluster gives its constants back."""

from contextlib import nullcontext

import pytest

from geartrain.calibration.calibrate import calibrate
from geartrain.calibration.effort import EXACT
from geartrain.calibration.site import EngineSite
from geartrain.cli.one_cluster import constants
from geartrain.cluster import (
    Cluster,
    Collectives,
    Device,
    Matrix,
    NodeGroup,
    NodeOverride,
    Overrides,
    PairOverride,
    Placement,
    Star,
    TwoLevel,
    Wire,
    WireOverride,
    dump_cluster,
    origin_of,
    parse_cluster,
)
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine

DEVICE = Device(
    name="device",
    flops={"fp32": 1.5e12, "fp16": 9e12},
    memory=1 << 33,
    memory_rate=2e11,
    launch_overhead=5e-6,
    source="chosen",
)
WIRE = Wire(rate="1 Gbit/s", latency="40 us", mtu="1500 B")
RATES = ((None, 1e9, 2e9), (3e8, None, 4e8), (5e7, 6e7, None))
LATENCIES = ((None, 1e-3, 2e-3), (1e-3, None, 5e-5), (2e-3, 5e-5, None))


def cluster(topology, count=4, per_node=1, device=DEVICE, **more):
    nodes = (NodeGroup(count=count, device=device, devices_per_node=per_node),)
    return Cluster(name="given", source="chosen", nodes=nodes, topology=topology, **more)


def calibrated(given, ranks, sizes=(1 << 12, 1 << 20)):
    site = EngineSite(SimulatedEngine(Roofline()), given, ranks)
    return calibrate(site, sizes=sizes, effort=EXACT, name="found", given=given, stage=lambda what: nullcontext())


def wires(*overrides):
    return Overrides(wires=tuple(WireOverride(**override) for override in overrides))


CLUSTERS = {
    "star": (cluster(Star(wire=WIRE)), 4, "star"),
    "two of a star": (cluster(Star(wire=WIRE)), 2, "star"),
    "slow wire": (cluster(Star(wire=WIRE), overrides=wires({"node": 2, "rate": 1e7})), 4, "star"),
    "slow one way": (
        cluster(Star(wire=WIRE), overrides=wires({"node": 1, "direction": "up", "rate": 1e7})),
        4,
        "star",
    ),
    "far away": (cluster(Star(wire=WIRE), overrides=wires({"node": 3, "latency": 9e-3})), 4, "star"),
    "slow and far": (
        cluster(
            Star(wire=WIRE),
            overrides=wires({"node": 0, "direction": "down", "rate": 2e7}, {"node": 0, "latency": 1e-3}),
        ),
        4,
        "star",
    ),
    "shared wire": (cluster(Star(wire=WIRE, inner=Wire(rate=1e10, latency=3e-6)), 2, 2), 4, "star"),
    "wire each": (
        cluster(Star(wire=WIRE, wire_per="device", inner=Wire(rate=1e10, latency=3e-6)), 2, 2),
        4,
        "star",
    ),
    "two levels": (
        cluster(TwoLevel(wire=WIRE, nodes_per_switch=2, oversubscription=4, core_latency=7e-6)),
        4,
        "matrix",
    ),
    "matrix": (cluster(Matrix(rate=RATES, latency=LATENCIES), 3), 3, "matrix"),
    "one pair": (
        cluster(
            Matrix(rate=RATES, latency=LATENCIES),
            3,
            overrides=Overrides(pairs=(PairOverride(pair=(0, 1), both_ways=False, rate=7e6),)),
        ),
        3,
        "matrix",
    ),
}


@pytest.mark.parametrize("name", CLUSTERS)
def test_constants_come_back(name):
    given, ranks, kind = CLUSTERS[name]
    found = calibrated(given, ranks).cluster
    assert found.topology.kind == kind
    before, after = Placement(given, ranks), Placement(found, ranks)
    for a in range(ranks):
        assert after.device(a).flops == pytest.approx(dict(DEVICE.flops), rel=1e-6)
        assert after.device(a).memory_rate == pytest.approx(DEVICE.memory_rate, rel=1e-6)
        assert after.device(a).launch_overhead == pytest.approx(DEVICE.launch_overhead, rel=1e-6)
        for b in range(ranks):
            assert after.rate(a, b) == pytest.approx(before.rate(a, b), rel=1e-6)
            assert after.route(a, b).latency == pytest.approx(before.route(a, b).latency, rel=1e-6)
    assert found.measured.reduction_rate == pytest.approx(
        1 / (3 / DEVICE.memory_rate), rel=0.02
    )  # two reads and a write; and a launch, 0.5 %


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_constant_has_an_origin_and_the_file_loads_back(name):
    given, ranks, _ = CLUSTERS[name]
    found = calibrated(given, ranks, sizes=(1 << 12,)).cluster
    assert [key for key, _ in constants(found) if origin_of(key, found.origins) is None] == []
    assert parse_cluster(dump_cluster(found)) == found


@pytest.mark.parametrize("name", [name for name in CLUSTERS if name != "two levels"])
def test_predictions_are_exact_where_the_topology_is(name):
    given, ranks, _ = CLUSTERS[name]
    predictions = calibrated(given, ranks).predictions
    assert len({one.measured.kind for one in predictions}) == 6 and len(predictions) == 13
    assert max(abs(one.error) for one in predictions) < 1e-6


def test_what_pairs_cannot_show_collectives_do():
    """Two machines share an uplink of half a wire: an all-to-all takes 2 S / g on it, g being the goodput of a wire.

    On the matrix of what single messages got, each pair has S / 4 on a wire of its own of g / 2: a quarter of the time.
    """
    given, ranks, _ = CLUSTERS["two levels"]
    found = calibrated(given, ranks)
    errors = {one.measured.kind: one.error for one in found.predictions if one.measured.size == 1 << 20}
    assert errors["all_to_all"] == pytest.approx(-3 / 4, abs=0.01)  # latencies are a part of both
    assert any("share behind their wires" in note for note in found.notes)


def test_latencies_of_both_ways_are_not_told_apart():
    given = cluster(Matrix(rate=((None, 1e9), (1e9, None)), latency=((None, 1e-3), (3e-3, None))), 2)
    found = calibrated(given, 2).cluster
    assert Placement(found, 2).route(0, 1).latency == pytest.approx(2e-3, rel=1e-6)
    assert Placement(found, 2).route(1, 0).latency == pytest.approx(2e-3, rel=1e-6)
    assert "both ways alike" in found.origins["topology.wire.latency"]


def test_pairs_of_many_ranks_are_sampled_and_said_so():
    found = calibrated(cluster(Star(wire=WIRE), 12), 12, sizes=(48,)).cluster
    assert found.topology.kind == "star" and len(found.measured.pairs) == 36
    assert "36 of 132 ordered pairs" in found.origins["topology.wire.rate"]


def test_all_pairs_are_measured_where_samples_are_no_star():
    given = cluster(TwoLevel(wire=WIRE, nodes_per_switch=5, core_latency=1e-3), 10)
    found = calibrated(given, 10, sizes=(40,)).cluster
    assert found.topology.kind == "matrix" and len(found.measured.pairs) == 90


def test_machines_alike_may_be_any_number():
    assert calibrated(cluster(Star(wire=WIRE)), 4, sizes=(64,)).cluster.num_nodes is None
    assert calibrated(CLUSTERS["slow wire"][0], 4, sizes=(64,)).cluster.num_nodes == 4
    assert calibrated(CLUSTERS["matrix"][0], 3, sizes=(64,)).cluster.num_nodes == 3


def test_other_devices_make_groups_of_their_own():
    slow = Overrides(nodes=(NodeOverride(node=2, speed=0.5),))
    found = calibrated(cluster(Star(wire=WIRE), overrides=slow), 4, sizes=(64,)).cluster
    assert [group.count for group in found.nodes] == [2, 1, 1]
    assert [group.device.flops["fp32"] for group in found.nodes] == pytest.approx([1.5e12, 0.75e12, 1.5e12], rel=1e-6)


def test_a_slow_device_is_no_slow_wire():
    slow = Overrides(nodes=(NodeOverride(node=1, speed=0.01),))
    found = calibrated(cluster(Star(wire=WIRE), overrides=slow), 4, sizes=(64,)).cluster
    assert found.overrides == Overrides() and isinstance(found.topology, Star)
    assert len({pair.rate for pair in found.measured.pairs}) == 1


def test_algorithms_of_the_given_cluster_are_kept():
    given = cluster(Star(wire=WIRE), collectives=Collectives(all_reduce="tree"))
    found = calibrated(given, 4)
    assert found.cluster.collectives == given.collectives
    assert found.cluster.origins["collectives.all_reduce"] == "given: by cluster given"
    assert max(abs(one.error) for one in found.predictions) < 1e-6


def test_rates_that_cannot_be_measured_are_the_given_ones():
    device = DEVICE.model_copy(update={"flops": {"fp32": 1e12, "int8": 5e13}})
    found = calibrated(cluster(Star(wire=WIRE), device=device), 2, sizes=(64,)).cluster
    assert found.nodes[0].device.flops["int8"] == 5e13
    assert found.origins["nodes[0].device.flops.int8"].startswith("given")
    assert found.origins["nodes[0].device.flops.fp32"].startswith("measured")


def test_one_rank_has_nothing_between():
    found = calibrated(cluster(Star(wire=WIRE)), 1)
    assert found.predictions == () and found.cluster.measured.tiny_all_reduce is None
    assert found.cluster.origins["topology.wire.rate"].startswith("default")
    assert "one rank: nothing to measure between" in found.notes[0]
