"""Who runs where, and what is said when there is no room."""

import pytest

from geartrain.cluster import SWITCH, Cluster, Overrides, Pace, Placement, ServicePlace, Straggler, load_cluster
from geartrain.errors import PlacementError

DEVICE = {"name": "d", "flops": {"fp32": 1e12}, "memory": 2**30, "memory_rate": 1e11, "source": "chosen"}
WIRE = {"rate": "8 Gbit/s", "latency": "50 us"}
STAR = {"kind": "star", "wire": WIRE, "inner": {"rate": "100 GB/s", "latency": "4 us"}}


def make(count=3, per_node=2, topology=STAR, overrides=None):
    nodes = [{"count": count, "device": DEVICE, "devices_per_node": per_node}]
    return Cluster.model_validate(
        {"name": "lab", "source": "chosen", "nodes": nodes, "topology": topology, "overrides": overrides or Overrides()}
    )


def test_workers_take_devices_node_by_node():
    place = Placement(make(), 5)
    assert (place.num_workers, place.num_ranks, place.num_nodes) == (5, 5, 3)
    assert [(place.node(rank), place.device_index(rank)) for rank in range(5)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
    ]
    assert place.node_name(4) == "node-2"
    assert place.device(4).name == "d"
    assert place.role(4) == "worker"
    assert [place.links[link].name for link in place.route(0, 1).links] == ["node-0.0.out", "node-0.1.in"]
    assert [place.links[link].name for link in place.route(1, 2).links] == ["node-0.up", "node-1.down"]
    assert place.rate(1, 2) == 1e9


def test_services():
    services = [ServicePlace("server"), ServicePlace("log", "colocated", beside=1), ServicePlace("sum", "switch")]
    place = Placement(make(), 3, services)
    assert [place.node(rank) for rank in range(6)] == [0, 0, 1, 2, 0, SWITCH]
    assert [place.role(rank) for rank in range(3, 6)] == ["server", "log", "sum"]
    assert place.node_name(5) == "switch"
    assert place.route(1, 4).links == ()
    assert [place.links[link].name for link in place.route(2, 3).links] == ["node-1.up", "node-2.down"]
    assert [place.links[link].name for link in place.route(2, 5).links] == ["node-1.up"]
    with pytest.raises(PlacementError, match=r"rank 5 \(sum\) is at the switch, which has no device"):
        place.device(5)


def test_a_cluster_of_any_size_has_room():
    place = Placement(load_cluster("ethernet-25g"), 4, [ServicePlace("a"), ServicePlace("b")])
    assert [place.node(rank) for rank in range(6)] == [0, 1, 2, 3, 4, 5]
    assert place.route(0, 5).latency == 50e-6


def test_too_few_devices():
    with pytest.raises(PlacementError) as caught:
        Placement(make(), 7)
    assert str(caught.value) == (
        "7 workers need 7 devices, but cluster 'lab' has 6.\n  use at most 6 workers, or take a larger cluster"
    )


def test_too_few_nodes_for_services():
    with pytest.raises(PlacementError) as caught:
        Placement(make(), 4, [ServicePlace("a"), ServicePlace("b")])
    assert str(caught.value) == (
        "2 service(s) want nodes of their own, but cluster 'lab' has 3 node(s) and 4 worker(s) use 2 of them: "
        "4 are needed.\n  use fewer workers, place the services beside workers (colocated), or take a larger cluster"
    )


@pytest.mark.parametrize(
    ("service", "words"),
    [
        (ServicePlace("s", "colocated"), "service 's' is 'colocated' and needs a worker `beside` it"),
        (ServicePlace("s", "own", beside=0), "service 's' is 'own' and must not have a worker `beside` it"),
        (ServicePlace("s", "colocated", beside=2), "live beside worker 2, but the workers are 0 to 1"),
    ],
)
def test_services_that_cannot_be_placed(service, words):
    with pytest.raises(PlacementError) as caught:
        Placement(make(), 2, [service])
    assert words in str(caught.value)


def test_a_matrix_has_no_switch():
    table = [["-", "1 GB/s"], ["1 GB/s", "-"]]
    times = [["-", "1 ms"], ["1 ms", "-"]]
    cluster = make(2, 1, {"kind": "matrix", "rate": table, "latency": times})
    with pytest.raises(PlacementError, match=r"is a matrix of wires and has none; place it \"own\" or \"colocated\""):
        Placement(cluster, 2, [ServicePlace("s", "switch")])


def test_no_workers():
    with pytest.raises(PlacementError, match="0 workers cannot train"):
        Placement(make(), 0)


def test_pace():
    nodes = [
        {"node": "all", "jitter": 0.1},
        {"node": "node-1", "speed": 0.5, "straggler": {"probability": 0.01, "factor": 4}},
        {"node": 1, "device": 1, "speed": 0.25},
        {"node": 2, "jitter": 0.0},
    ]
    place = Placement(make(overrides={"nodes": nodes}), 6)
    slow = Straggler(probability=0.01, factor=4)
    assert place.pace(0) == place.pace(1) == Pace(1.0, 0.1)
    assert place.pace(2) == Pace(0.5, 0.1, slow)
    assert place.pace(3) == Pace(0.25, 0.1, slow)
    assert place.pace(4) == Pace()
    assert [place.speed(rank) for rank in range(6)] == [1, 1, 0.5, 0.25, 1, 1]
    assert Placement(make(), 1).pace(0) == Pace()
