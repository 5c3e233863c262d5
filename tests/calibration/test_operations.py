"""Single operations: what a step does is noted as it is, and each can be run by itself."""

import pytest
import torch

from geartrain.calibration import operations
from geartrain.calibration.operations import fault_seconds, measure_operations, page_faults, time_call
from geartrain.calibration.overheads import SmallOperations, measure_overheads
from geartrain.calibration.recording import Call, Recorded, Shape, record_step
from geartrain.cost.compute import Work
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from geartrain.tasks import get_task


def recorded(task, batch=4, strategy="single", workers=1, numbers=False):
    training = Training(strategy=parse(strategy), task=task, steps=1, batch=batch)
    return record_step(training, workers, numbers=numbers)


def names(calls, phase):
    return [call.work.name.split(".")[1] for call in calls if call.phase == phase]


@pytest.fixture(scope="module")
def small():
    return recorded(SmallOperations(blocks=0))


def test_a_step_in_order(small):
    """One linear map of 16 x 16 on 4 samples, cross entropy, momentum: written down by hand."""
    step = [call for call in small.step if "_to_copy" not in call.work.name]
    assert names(step, "forward") == ["addmm", "_log_softmax", "nll_loss_forward"]
    assert names(step, "backward") == ["nll_loss_backward", "_log_softmax_backward_data", "mm", "sum"]
    assert names(step, "update") == ["mul_", "add_", "add_"] * 2


def test_distances_are_bytes_since_the_tensor_was_touched(small):
    """The momentum of the weight is multiplied, then added to: what lies between is the multiplication, 2 x 1 KiB."""
    update = [call for call in small.step if call.phase == "update"]
    moved = sum(call.work.nbytes for call in small.step)
    assert update[1].args[0].distance == update[0].work.nbytes == 2048
    # From the last step's addition of the momentum's result to its use now lies all but what came before in the update.
    assert update[0].args[0].distance == moved - update[0].work.nbytes - update[1].work.nbytes
    assert {call.args[0].shape for call in update} == {(16, 16), (16,)}


def test_memory_is_noted_as_it_is_taken_and_given_back(small):
    sizes = {call.work.name.split(".")[1]: [nbytes for _, nbytes in call.memory if nbytes] for call in small.step}
    assert sizes["addmm"] == [256] and sizes["mm"] == [1024] and sizes["mul_"] == []
    taken = [number for call in (*small.before, *small.step) for number, nbytes in call.memory if nbytes]
    given = [number for call in (*small.before, *small.step) for number, nbytes in call.memory if not nbytes]
    assert len(set(taken)) == len(taken) and set(given) < set(taken)
    assert page_faults(small)[-1] == 0  # an update in place takes no memory


@pytest.mark.parametrize(("name", "batch"), [("digits", 8), ("packages-text", 8)])
def test_every_operation_of_a_task_runs_by_itself(name, batch):
    found = recorded(get_task(name), batch, numbers=True)
    table = measure_operations([found], repeats=1, seconds=0.0)
    assert set(table.entries) == {call.work.key for call in found.step}
    assert "could not" not in table.what and all(entry.seconds > 0 for entry in table.entries.values())


def test_a_strategy_has_operations_of_its_own():
    alone = {call.work.name for call in recorded(SmallOperations(blocks=0)).step}
    together = {call.work.name for call in recorded(SmallOperations(blocks=0), 8, "synchronous", 2).step}
    assert alone - together == set() and "aten.full_like.default" in together - alone


def test_an_operation_that_cannot_be_run_is_left_out_and_told():
    wrong = Shape((3, 4), (4, 1), torch.float32, 0.0)
    work = Work("aten.mm.default", 1.0, 1.0, key=("aten.mm.default", ((3, 4), (3, 4), (3, 4)), ("float32",) * 3))
    call = Call(torch.ops.aten.mm.default, [wrong, wrong], {}, work, 0.0)
    table = measure_operations([Recorded([], [call])])
    assert table.entries == {} and "could not be run by themselves: aten.mm.default" in table.what


def test_copies_take_turns_until_the_distance_is_reached(monkeypatch):
    """1 KiB at each call: a tensor that was touched 3 KiB ago has four copies, beyond the cache all are alike."""
    monkeypatch.setattr(operations, "last_cache", lambda: 4096)
    assert [operations._number(distance, 1024) for distance in (0, 1023, 3072, 1e9, float("inf"))] == [1, 1, 4, 9, 9]


def test_median_follows_the_clock():
    """A clock that is asked at the begin, around each call and after it, and moves by one each time."""
    ticks = iter(range(1000))
    shape = Shape((2,), (1,), torch.float32, 0.0)
    call = Call(torch.ops.aten.relu.default, [shape], {}, Work("relu", 2.0, 16.0), 0.0)
    assert time_call(call, repeats=5, seconds=1000.0, clock=lambda: float(next(ticks))) == [1.0] * 5


def test_fault_takes_between_a_tenth_and_a_hundred_microseconds():
    assert 1e-8 < fault_seconds() < 1e-4


@pytest.mark.slow
@pytest.mark.multi
def test_overheads():
    over = measure_overheads()
    assert 0 <= over.between < 1e-3 and set(over.inside) == {"step"}
    assert all(0 <= seconds < 1e-2 for seconds in over.before.values())
    assert over.before["aten.convolution_backward.default"] == over.before["aten.mm.default"]
