"""One constant of a cluster changed, all others as they were."""

import pytest

from geartrain.cluster import Matrix, TwoLevel, Wire, load_cluster
from geartrain.cluster.overrides import NodeOverride
from geartrain.errors import ClusterError
from geartrain.predict.change import KEYS, changed, faster, value_of
from tests.predict.small import cluster

INSIDE = cluster(per_node=2, inner=Wire(rate=1e10, latency=1e-6))
CORED = INSIDE.model_copy(
    update={"topology": TwoLevel(wire=Wire(rate=1e9, latency=0.0), inner=INSIDE.topology.inner, nodes_per_switch=2)}
)


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_its_place_and_no_other(key):
    other = changed(CORED, key, 3.0)
    assert other != CORED
    read = value_of(other, key)
    assert read == (1.0 if key == "device.flops" else 3.0)
    if key == "device.flops":
        assert other.nodes[0].device.flops == {"fp32": 3e12}
    elsewhere = [one for one in KEYS if one != key]
    assert [value_of(other, one) for one in elsewhere] == [value_of(CORED, one) for one in elsewhere]


def test_all_pairs_of_a_matrix():
    matrix = Matrix(rate=((None, 1e9), (2e9, None)), latency=((None, 0.01), (0.02, None)))
    wide = cluster().model_copy(update={"topology": matrix})
    assert changed(wide, "links.rate", 5e8).topology.rate == ((None, 5e8), (5e8, None))
    assert value_of(wide, "links.latency") == 0.01


def test_any_place_of_a_file():
    found = load_cluster("ethernet-10g")
    assert changed(found, "topology.wire.rate", 5.0).topology.wire.rate == 5.0
    assert changed(found, "topology.wire.latency", "2 us").topology.wire.latency == 2e-6
    assert changed(found, "nodes[0].device.memory", 12345).nodes[0].device.memory == 12345
    assert changed(found, "nodes[0].count", 4).num_nodes == 4


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("topology.wire.rat", 1.0, "no place 'topology.wire.rat'; did you mean 'topology.wire.rate'"),
        ("nodes[3].device.memory", 1, "no place"),
        ("links.rate", 0.0, "above zero"),
        ("links.rate", "fast", "is a number"),
        ("inner.rate", 1e9, "have no wires inside"),
        ("core.oversubscription", 2.0, "has no core"),
        ("topology.wire.rate", 0.0, "unreachable"),
        ("nodes", 1.0, "nodes = 1.0"),
    ],
)
def test_what_cannot_be_changed(key, value, text):
    with pytest.raises(ClusterError, match=text.replace("[", r"\[")):
        changed(cluster(), key, value)


def test_a_core_that_never_blocks_is_the_least():
    with pytest.raises(ClusterError, match="below 1"):
        changed(CORED, "core.oversubscription", 0.5)


def test_faster_devices_keep_their_differences():
    overrides = CORED.overrides.model_copy(update={"nodes": (NodeOverride(node=1, speed=0.5),)})
    twice = faster(CORED.model_copy(update={"overrides": overrides}), 2.0)
    assert [(one.node, one.speed) for one in twice.overrides.nodes] == [("all", 2.0), (1, 1.0)]
