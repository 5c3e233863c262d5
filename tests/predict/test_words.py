"""What bounds a step, what would help, and where things break even: against values worked out by hand."""

from dataclasses import replace

import pytest

from geartrain.cluster import Wire
from geartrain.predict.closed import predict
from geartrain.predict.words import break_even, explain
from tests.predict.small import FLOPS, MEBI, RATE, cluster, question, workload

SIZE = 16 * MEBI
COMPUTE = 8 * 4 * 3e9 / FLOPS
WIRE = 1.5 * SIZE / RATE


def gains(explanation):
    return {one.change: one.gain for one in explanation.helps}


def test_the_wire():
    slow = question(cluster=cluster(rate=RATE / 100))
    told = explain(predict(slow))
    step = COMPUTE + 100 * WIRE
    assert told.bound == "wire"
    assert told.share == pytest.approx(100 * WIRE / step)
    assert gains(told)["wires of twice the rate"] == pytest.approx(50 * WIRE / step)
    assert gains(told)["devices of twice the speed"] == pytest.approx(COMPUTE / 2 / step)
    assert gains(told)["twice the batch"] == pytest.approx(50 * WIRE / step)
    assert [one.gain for one in told.helps] == sorted((one.gain for one in told.helps), reverse=True)
    assert told.sentence.startswith(f"the wire: {100 * WIRE / step:.0%} of the step exposed; as fast as one node at")


def test_the_rate_at_which_four_nodes_are_as_fast_as_one():
    """4 b / (C + 1.5 S / r) = b / C  <=>  r = 1.5 S / (3 C)."""
    asked = question(cluster=cluster(rate=RATE / 100))
    alone = predict(question("single", ranks=1, batch=8)).throughput
    found = break_even(asked, "links.rate", lambda one: one.throughput - alone, 1e3, 1e12)
    assert found == pytest.approx(1.5 * SIZE / (3 * COMPUTE), rel=2e-4)
    assert "as fast as one node at 699.1 Mbit/s" in explain(predict(asked)).sentence


def test_no_break_even_between_two_rates():
    assert break_even(question(), "links.rate", lambda one: 1.0, 1e3, 1e12) is None


def test_latency():
    told = explain(predict(question(cluster=cluster(rate=1e13, latency=0.1))))
    assert told.bound == "latency"
    assert gains(told)["wires of half the latency"] == pytest.approx(0.3 / (COMPUTE + 0.6), rel=1e-2)


def test_wires_inside_nodes():
    told = explain(predict(question(cluster=cluster(per_node=4, inner=Wire(rate=RATE / 100, latency=0.0)))))
    assert told.bound == "wire"
    assert "wires of twice the rate inside nodes" in gains(told)
    assert "wires of twice the rate" not in gains(told)
    assert "one node" not in told.sentence


@pytest.mark.parametrize(
    ("bound", "device"),
    [
        ("compute", {}),
        ("memory traffic", {"memory_rate": 1e6}),
        ("launches", {"launch_overhead": 1.0}),
    ],
)
def test_what_bounds_computing(bound, device):
    moving = tuple(replace(layer, forward_bytes=1e6) for layer in workload().layers)
    asked = question("single", ranks=1, workload=replace(workload(), layers=moving), cluster=cluster(**device))
    told = explain(predict(asked))
    assert told.bound == bound
    assert told.share == pytest.approx(1.0)


def test_memory_that_lacks():
    told = explain(predict(question(cluster=cluster(memory=SIZE))))
    assert told.bound == "memory"
    needed = 3 * SIZE + 8 * 4 * 1000  # parameters, gradients, momentum; activations of 8 samples
    assert told.share >= needed / SIZE
    assert "worker 0 needs" in told.sentence and "more than its device has" in told.sentence
    assert "twice the batch" not in gains(told)
    assert told.sentence.endswith("fewer samples do not make it fit")


def test_how_many_samples_would_fit():
    """Beside what does not grow, 1 GB for each sample of a worker."""
    asked = question("single", ranks=1, batch=8, workload=workload(activation=2.5e8))
    fixed = predict(asked).memory[0].total - 8 * 10**9
    tight = replace(asked, cluster=cluster(memory=fixed + 5 * 10**9 + 1))
    assert explain(predict(tight)).sentence.endswith("; 5 sample(s) for each worker would fit")


def test_another_strategy():
    slow = question(cluster=cluster(rate=RATE / 10))
    other = predict(question("local_sgd:period=8", cluster=slow.cluster))
    told = explain(predict(slow), [other])
    exposed = other.exposed_communication / other.step_time
    assert f"; with local_sgd:period=8 {exposed:.0%}" in told.sentence
    assert gains(told)["local_sgd:period=8"] == pytest.approx(1 - other.step_time / predict(slow).step_time)
