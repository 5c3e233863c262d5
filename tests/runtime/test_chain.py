"""The parts of a task's model: found on the meta device, and refused where they are no chain."""

import pytest
from torch import nn

from geartrain.errors import TaskError
from geartrain.runtime.tracing import task_workload
from geartrain.tasks import get_task
from tests.conformance.tasks import Chain, Curve, Golden


@pytest.mark.parametrize("name", ["digits", "characters", "packages-text"])
def test_cuts_of_the_tasks_are_chains(name):
    task = get_task(name)
    workload = task_workload(task)
    assert [part.modules for part in workload.parts] == [(cut,) for cut in task.cuts()]
    homes = [[part.holds(parameter.name) for part in workload.parts].count(True) for parameter in workload.parameters]
    assert set(homes) == {1}


def test_what_parts_hand_on():
    parts = task_workload(get_task("digits")).parts
    assert [(part.shape, part.dtype) for part in parts[:2]] == [((16, 8, 8), "float32"), ((32, 4, 4), "float32")]
    assert parts[0].numel == 1024 and parts[0].element_size == 4
    assert task_workload(Golden()).parts == ()


def test_modules_that_share_a_parameter_are_one_part_with_all_between_them():
    parts = task_workload(Chain(awkward=True)).parts
    assert [part.modules for part in parts] == [("0",), ("1", "2", "3", "4"), ("5",)]


class Odd(Curve):
    """A chain with one thing wrong."""

    def __init__(self, cuts, model):
        super().__init__()
        object.__setattr__(self, "made", (cuts, model))

    def cuts(self):
        return self.made[0]

    def model(self, seed):
        return self.made[1]()


class Residual(nn.Module):
    """Adds the input of its first layer to what the second one returns."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.second(self.first(x)) + x)


@pytest.mark.parametrize(
    ("cuts", "model"),
    [
        (("0", "2"), lambda: Curve().model(0)),
        (("1", "0", "2"), lambda: Curve().model(0)),
        (("0", "1"), lambda: Curve().model(0)),
        (("first", "second", "last"), Residual),
    ],
)
def test_cuts_that_leave_something_out_are_refused(cuts, model):
    with pytest.raises(TaskError, match="are no chain"):
        task_workload(Odd(cuts, model))
