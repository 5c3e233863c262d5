"""Memory of workers and services at their fullest moment, by hand."""

from dataclasses import replace

import pytest

from geartrain.cost.memory import highest, server_memory, total, worker_memory
from geartrain.workload.spec import Layer, MemoryShape, Parameter, Workload

# 1,000 bytes of parameters, 2,000 of state; forward has two moments.
SHAPE = MemoryShape(
    buffers=10,
    forward=((500.0, 10.0), (0.0, 100.0)),
    backward_fresh=((900.0, 80.0),),
    backward_kept=((0.0, 80.0),),
    update=400,
)
WORKLOAD = Workload(
    name="made",
    source="by hand",
    layers=(Layer(name="one", parameters=(Parameter("weight", (250,), 0),), activation=70.0),),
    optimizer_state=2.0,
    memory=SHAPE,
)
ALWAYS = 1000 + 2000 + 10


def test_the_highest_of_lines():
    assert highest(SHAPE.forward, 1) == 510
    assert highest(SHAPE.forward, 100) == 10_000
    assert highest((), 5) == 0


@pytest.mark.parametrize(
    ("samples", "gradients", "kinds"),
    [
        # One sample. Fresh: forward 510, backward 980, end 1,000 + 400. Kept: 1,000 more in all but the end.
        (1, "fresh", {"gradients": 1000, "activations": 0, "temporaries": 400}),
        (1, "kept", {"gradients": 1000, "activations": 510}),
        (1, "moved", {"gradients": 1000, "activations": 980}),
        # Six: forward 600, backward 1,380 or 480.
        (6, "fresh", {"gradients": 1000, "activations": 0, "temporaries": 400}),
        (6, "kept", {"gradients": 1000, "activations": 600}),
        (6, "moved", {"gradients": 1000, "activations": 1380}),
        # Ten: forward 1,000, backward 1,700 or 800.
        (10, "fresh", {"gradients": 0, "activations": 1700}),
        # A hundred: forward 10,000, backward 8,900.
        (100, "moved", {"gradients": 1000, "activations": 10_000}),
    ],
)
def test_the_fullest_moment(samples, gradients, kinds):
    found = worker_memory(WORKLOAD, samples, gradients=gradients)
    assert found == {"parameters": 1000, "optimizer": 2000, "buffers": 10, **kinds}
    assert total(found) == ALWAYS + sum(kinds.values())


def test_temporaries_beside_backward_and_at_its_end():
    assert worker_memory(WORKLOAD, 10, beside=300)["temporaries"] == 300  # 1,100 in backward, 1,000 in forward
    assert "temporaries" not in worker_memory(WORKLOAD, 10, beside=100)  # forward is fuller
    late = worker_memory(WORKLOAD, 1, afterwards=5000)
    assert (late["temporaries"], late["activations"]) == (5000, 0)


def test_parts_of_the_state_and_of_the_update():
    found = worker_memory(WORKLOAD, 1, gradients="fresh", optimizer=0.25, update=0.5, received=7, nothing=0)
    # The end: 1,000 of gradients and 400/8 of temporaries; backward: 980.
    assert found == {
        "parameters": 1000, "optimizer": 500, "buffers": 10, "gradients": 1000, "activations": 0, "temporaries": 50,
        "received": 7,
    }  # fmt: skip
    assert "temporaries" not in worker_memory(WORKLOAD, 1, gradients="fresh", optimizer=0.0)


def test_a_workload_that_nobody_watched_has_its_saved_activations():
    found = worker_memory(replace(WORKLOAD, memory=None), 3, residual=1000)
    assert found == {
        "parameters": 1000, "gradients": 1000, "optimizer": 2000, "activations": 210, "residual": 1000,
    }  # fmt: skip


def test_a_server():
    """It serves with its part, the gradients of two workers, its state and its share of the update's temporaries."""
    found = server_memory(WORKLOAD, 1000, gradients=2000, state=2000)
    assert found == {"parameters": 1000, "gradients": 2000, "optimizer": 2000, "temporaries": 400}
    # With a tenth it holds 600 bytes, and it began with the model and a flat copy.
    assert server_memory(WORKLOAD, 100, gradients=200, state=200) == {"parameters": 2000}
