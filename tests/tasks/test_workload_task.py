"""The stand-in: same parameters, every layer charged once each way, gradients when they are due."""

import pytest
import torch
from torch import nn

from geartrain.cluster.spec import Device
from geartrain.cost.compute import Roofline, step_times
from geartrain.errors import TaskError
from geartrain.models import get_workload
from geartrain.runtime import charging
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.runtime.tracing import trace_workload
from geartrain.tasks.workload_task import WorkloadTask
from geartrain.torch_private import DispatchMode
from geartrain.workload.spec import UNUSED, Layer, Parameter, Workload

WORKLOAD = Workload(
    name="three layers",
    source="chosen",
    layers=(
        Layer(name="scale", forward_flop=1.0, backward_flop=10.0),
        Layer(name="b.fc", parameters=(Parameter("b.fc.weight", (3, 2), 2), Parameter("b.fc.bias", (3,), 3))),
        Layer(name="relu", forward_flop=2.0, backward_flop=20.0),
        Layer(name="a", parameters=(Parameter("a.weight", (4,), 1),), forward_flop=3.0, backward_fixed_flop=30.0),
        Layer(name=UNUSED, parameters=(Parameter("c", (5,), 0),), num_kernels=0, num_backward_kernels=0),
    ),
)


class Seen(DispatchMode):
    def __init__(self):
        super().__init__()
        self.costs, self.works = OpCosts(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if (work := self.costs(func, args, kwargs, out)) is not FREE:
            self.works.append(work)
        return out


class Account:
    """Work as a rank would be charged for it."""

    def __init__(self, events):
        self.charge = events.append
        self.charge_all = lambda works: events.extend(works.items)


def events_of_a_step(task, num_workers=1, batch=8):
    """Charges and gradients of the second step, in order, and the work of operations, of which there should be none."""
    events, model = [], task.model(0)
    optimizer, batches = task.optimizer(model.parameters()), task.batches(0, num_workers, batch, 0)
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: events.append(name))
    charging.listen(Account(events))
    try:
        for _ in range(2):
            events.clear()
            optimizer.zero_grad()
            with Seen() as seen:
                task.loss(model, batches.take()).backward()
                optimizer.step()
    finally:
        charging.listen(None)
    return events, seen.works


def test_parameters_are_those_of_the_workload():
    model = WorkloadTask(WORKLOAD).model(0)
    assert [name for name, _ in model.named_parameters()] == [p.name for p in WORKLOAD.parameters]
    assert [tuple(p.shape) for p in model.parameters()] == [p.shape for p in WORKLOAD.parameters]
    assert all(p.device.type == "meta" for p in model.parameters())


def test_an_order_that_no_module_has_is_refused():
    late = Parameter("late", (1,), 1)
    layers = (Layer(name="a", parameters=(Parameter("a.weight", (1,), 0), late)),)
    with pytest.raises(TaskError, match="'late'"):
        WorkloadTask(Workload(name="no module", source="chosen", layers=layers)).model(0)


def test_charges_and_gradients_come_in_order():
    events, operations = events_of_a_step(WorkloadTask(WORKLOAD))
    assert [event if isinstance(event, str) else event.name for event in events] == [
        *("scale forward", "b.fc forward", "relu forward", "a forward"),
        *("a backward", "a.weight", "relu backward", "b.fc backward", "b.fc.weight", "b.fc.bias", "scale backward"),
        "update",
    ]
    assert operations == []


def test_a_step_costs_what_the_closed_form_says():
    device = Device(name="d", flops={"fp32": 7.0}, memory=1, memory_rate=3.0, launch_overhead=0.25, source="chosen")
    events, _ = events_of_a_step(WorkloadTask(WORKLOAD), num_workers=3, batch=8)
    charged = sum(Roofline().seconds(event, device) for event in events if not isinstance(event, str))
    # The parameter that takes no part has no gradient, so it is not updated.
    idle = 5 * (8 * 4) / 3.0
    assert charged == pytest.approx(step_times(WORKLOAD, device, samples=3).total - idle)


def test_the_update_costs_what_a_real_one_does():
    workload = get_workload("resnet50")
    parameters = [nn.Parameter(torch.empty(p.shape, device="meta")) for p in workload.parameters]
    real = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    for _ in range(2):
        for p in parameters:
            p.grad = torch.empty_like(p)
        with Seen() as seen:
            real.step()
    events, _ = events_of_a_step(WorkloadTask(workload))
    assert events[-1].nbytes == sum(work.nbytes for work in seen.works)
    assert events[-1].flop == sum(work.flop for work in seen.works)
    assert events[-1].num_kernels == sum(work.num_kernels for work in seen.works)


def test_order_of_gradients_is_that_of_the_real_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.last, self.unused = nn.Linear(4, 1), nn.Linear(1, 1)
            self.first, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

        def forward(self, x):
            return self.last(self.norm(torch.relu(self.first(x))) + x)

    model, order = Model(), []
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: order.append(name.split(".")[0]))
    model(torch.zeros(3, 4)).sum().backward()
    workload = trace_workload(model, [torch.zeros(1, 4)], torch.sum, name="test", source="chosen")
    events, _ = events_of_a_step(WorkloadTask(workload))
    assert [event.split(".")[0] for event in events if isinstance(event, str)] == order


def test_gradients_accumulate_and_freeze():
    model = WorkloadTask(WORKLOAD).model(0)
    model.get_parameter("a.weight").requires_grad_(False)
    for _ in range(2):
        model(torch.empty(2, 1, device="meta")).backward()
    assert model.get_parameter("a.weight").grad is None
    assert model.get_parameter("b.fc.weight").grad.shape == (3, 2)


def test_batches_have_sizes():
    task = WorkloadTask(WORKLOAD)
    taken = [task.batches(rank, 3, 8, 0).take() for rank in range(3)]
    assert [(batch.num_samples, batch.weight) for batch in taken] == [(3, 3 / 8), (3, 3 / 8), (2, 2 / 8)]
    assert task.batches(0, 3, 8, 0).take(5).num_samples == 5
    assert task.metric(task.model(0)) == {}
    with pytest.raises(TaskError, match="less than one sample"):
        task.batches(0, 9, 8, 0)
