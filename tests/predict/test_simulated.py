"""The closed form of a step against the same step simulated on shapes, where nothing contends."""

import pytest

from geartrain.cluster import Cluster, Device, NodeGroup, Star, Wire
from geartrain.predict.closed import predict
from geartrain.predict.question import Question
from geartrain.predict.simulated import simulate
from geartrain.strategies import TABLE, parse
from geartrain.workload.spec import Layer, Parameter, Workload

NEEDS = {name: entry.kind.needs for name, entry in TABLE.items()}
ON_SHAPES = [name for name, needs in NEEDS.items() if not (needs.data_dependent or needs.ordered_model)]
BAR = 0.02

# Three dense layers of one size and one narrow one, on devices and wires that take about as long as each other.
SHAPES = ((640, 640), (1280, 640), (2560, 1280), (10, 2560))
DEVICE = Device(name="d", flops={"fp32": 1e12}, memory=2**34, memory_rate=5e11, launch_overhead=2e-6, source="chosen")
CLUSTER = Cluster(
    name="c",
    source="chosen",
    nodes=(NodeGroup(count="any", device=DEVICE),),
    topology=Star(wire=Wire(rate=2e9, latency=5e-6)),
)


def dense(index, out, inside):
    numel = out * inside + out
    parameters = (
        Parameter(f"l{index}.weight", (out, inside), 2 * index),
        Parameter(f"l{index}.bias", (out,), 2 * index + 1),
    )
    return Layer(
        name=f"l{index}",
        parameters=parameters,
        forward_flop=100.0 * numel,
        backward_flop=200.0 * numel,
        forward_bytes=4.0 * (out + inside),
        backward_bytes=8.0 * (out + inside),
        forward_fixed_bytes=4.0 * numel,
        backward_fixed_bytes=8.0 * numel,
        activation=4.0 * inside,
    )


WORKLOAD = Workload(
    name="dense", source="chosen", layers=tuple(dense(index, *shape) for index, shape in enumerate(SHAPES))
)


def asked(name):
    ranks = 1 if name == "single" else 4
    return Question(workload=WORKLOAD, cluster=CLUSTER, strategy=parse(name), ranks=ranks, batch=32 * ranks)


@pytest.mark.parametrize("name", ON_SHAPES)
def test_closed_form_is_the_simulated_step(name):
    closed, simulated = predict(asked(name)), simulate(asked(name))
    assert simulated.how == "simulated"
    assert simulated.step_time == pytest.approx(closed.step_time, rel=BAR)
    parts = ("compute", "exposed_communication", "wait", "bubble", "codec")
    assert sum(getattr(simulated, part) for part in parts) == pytest.approx(simulated.step_time)


def test_most_methods_run_on_shapes():
    assert len(ON_SHAPES) >= 20  # or the test above tests nothing


def test_bytes_are_those_of_the_closed_form():
    for name in ("synchronous", "parameter_server:servers=2", "local_sgd:period=4", "dear"):
        closed, simulated = predict(asked(name)), simulate(asked(name))
        assert simulated.bytes_per_rank == pytest.approx(closed.bytes_per_rank)
        assert simulated.busiest == pytest.approx(closed.busiest)


def test_steps_that_count_are_whole_cycles():
    """Three steps of a method that averages every fourth would have no average among them."""
    assert simulate(asked("local_sgd:period=4"), steps=3).exposed_communication > 0
