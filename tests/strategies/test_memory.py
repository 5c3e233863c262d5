"""What each strategy keeps in memory beside a plain step, in copies of the model, by what its page says."""

import pytest

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cost.memory import total, worker_memory
from geartrain.predict.memory import rank_memory
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from geartrain.tasks import get_task

CLUSTER = load_cluster("ethernet-10g")
WORKERS, BATCH = 4, 64
WORKLOAD = task_workload(get_task("digits"))
SIZE = WORKLOAD.gradient_bytes  # and as much momentum


def cost(text):
    strategy = parse(text)
    place = Placement(CLUSTER, WORKERS, strategy.roles(WORKERS).services)
    return strategy.cost(WORKLOAD, place, BATCH), place


def plain(gradients, optimizer=1.0):
    return total(worker_memory(WORKLOAD, BATCH // WORKERS, gradients=gradients, optimizer=optimizer))


@pytest.mark.parametrize(
    ("text", "gradients", "optimizer", "copies"),
    [
        ("synchronous", "kept", 1, 0),
        ("synchronous:overlap=false", "moved", 1, 0),
        ("dear:threshold=none", "kept", 1, 1 / 4),  # a shard
        ("mg_wfbp", "kept", 1, 0),
        ("local_sgd", "fresh", 1, 1),  # what is averaged
        ("local_sgd:switch=3", "fresh", 1, 2),  # and first the gradients
        ("cocod_sgd", "fresh", 1, 2),  # and what was sent
        ("dasgd", "fresh", 1, 1),
        ("dasgd:merge=displacement", "fresh", 1, 2),
        ("diloco", "fresh", 1, 3),  # and the outer model and its momentum
        ("pipe_sgd", "fresh", 1, 2),  # two sums
        ("dpsgd", "moved", 1, 2),  # both neighbours' models
        ("dpsgd:graph=uniform", "moved", 1, 1),
        ("adpsgd", "moved", 1, 3),  # the shared model, one to send, one that comes
        ("peer_to_peer", "moved", 1 / 4, 3 / 4),  # three pieces
        ("peer_to_peer:kind=broadcast", "moved", 1, 3),
        ("parameter_server", "moved", 0, 0),
        ("parameter_server:overlap=true", "kept", 0, 0),
        ("async_sgd", "moved", 0, 0),
        ("adascale", "kept", 1, 0),
    ],
)
def test_copies_of_the_model(text, gradients, optimizer, copies):
    # Shards and pieces may have an element more than their share.
    assert total(cost(text)[0].memory) == pytest.approx(plain(gradients, optimizer) + copies * SIZE, abs=16)


@pytest.mark.parametrize(
    ("text", "optimizer", "residual", "payloads"),
    [
        # 382 values and places, packed once more, and those of four workers.
        ("top_k", SIZE, SIZE, 6 * 382 * 8),
        # The momentum is beside the residual, and the optimizer has it no more.
        ("top_k:feedback=momentum_correction", 0, 2 * SIZE, 6 * 382 * 8),
        ("compressed:codec=fp16", SIZE, 0, SIZE // 2),
    ],
)
def test_of_what_is_encoded(text, optimizer, residual, payloads):
    memory = cost(text)[0].memory
    assert (memory["optimizer"], memory.get("residual", 0), memory["payloads"]) == (optimizer, residual, payloads)


def test_passes_over_parts_of_a_batch_have_less_activations():
    one, two = (cost(f"adascale:accumulate={passes}")[0].memory for passes in (1, 2))
    assert two["added"] == SIZE
    assert two["activations"] < 0.7 * one["activations"]


def test_an_order_says_how_many_micro_batches_a_stage_holds():
    held = []
    for order in ("FBFBFBFB", "F2BFB2FB", "F4B4"):
        strategy = parse(f"spp:plan=4@0,order={order},micro_batches=4")
        held.append(strategy.cost(WORKLOAD, Placement(CLUSTER, 1), BATCH).memory["activations"])
    assert held == pytest.approx([held[0], 2 * held[0], 4 * held[0]], abs=4)


def test_gathered_payloads_grow_with_the_workers():
    """Each worker has its own, packed, and everybody's."""
    workload = task_workload(get_task("packages-text"))
    found = []
    for workers in (2, 8):
        memory = parse("top_k:density=0.5").cost(workload, Placement(CLUSTER, workers), 8 * workers).memory
        found.append(memory["payloads"])
    payload = workload.num_parameters // 2 * 8  # a value and a place of 4 bytes each
    assert found[1] - found[0] == pytest.approx(6 * payload, rel=0.01)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("parameter_server", [{"parameters": 1, "gradients": 4, "optimizer": 1}]),
        ("parameter_server:servers=2", [{"parameters": 1 / 2, "gradients": 2, "optimizer": 1 / 2}] * 2),
        # A quarter each: less than the whole model and its flat copy, with which a server begins.
        ("parameter_server:servers=4", [{"parameters": 2}] * 4),
        ("async_sgd", [{"parameters": 1, "gradients": 5, "optimizer": 1, "replies": 4}]),
        ("apam", [{"parameters": 1, "gradients": 5, "optimizer": 3}]),  # it sends the model itself
    ],
)
def test_services(text, servers):
    found, place = cost(text)
    assert len(found.services) == len(servers)
    for kinds, expected in zip(found.services, servers, strict=True):
        assert kinds == pytest.approx({kind: copies * SIZE for kind, copies in expected.items()}, abs=8)
    told = rank_memory(found, place)
    assert [one.role for one in told] == ["worker"] * WORKERS + ["server"] * len(servers)
    assert all(one.fits for one in told)


def test_a_colocated_server_is_on_its_workers_device():
    colocated, own = (cost(f"parameter_server:placement={where}")[0] for where in ("colocated", "own"))
    assert total(colocated.memory) - total(own.memory) == total(own.services[0])
