"""Workloads of small modules, counted by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from geartrain.errors import TaskError
from geartrain.runtime.tracing import task_workload, trace_workload
from geartrain.tasks.digits import Digits
from geartrain.workload.spec import UNUSED


def trace(module, *shape, **options):
    return trace_workload(module, [torch.empty(1, *shape)], torch.sum, name="test", source="chosen", **options)


def names(workload):
    return {layer.name: [p.name for p in layer.parameters] for layer in workload.layers}


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, x):
        skip = x * 2
        return self.second(torch.relu(self.first(x))) + skip


class Odd(nn.Module):
    """A tied, a frozen and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(7))
        self.frozen = nn.Linear(4, 4, bias=False).requires_grad_(False)
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(self.frozen(x)))


def test_linear_by_hand():
    workload = trace(nn.Linear(4, 2), 4)
    layer, loss = workload.layers
    assert (layer.name, loss.name) == ("", "(loss)")
    assert [(p.name, p.shape, p.index) for p in layer.parameters] == [("weight", (2, 4), 0), ("bias", (2,), 1)]
    assert (layer.forward_flop, layer.forward_bytes, layer.forward_fixed_bytes) == (16, 4 * (4 + 2), 4 * 10)
    assert layer.forward_fixed_flop == 0
    # One product for the weight's gradient and a sum for the bias's; the input wants none.
    assert (layer.backward_flop, layer.num_kernels, layer.num_backward_kernels) == (16 + 2, 1, 2)
    assert layer.activation == 16


def test_residual_and_functional_operations_have_layers():
    workload = trace(nn.Sequential(Residual(), nn.Linear(4, 1)), 4)
    assert [layer.name for layer in workload.layers] == [
        "0.(functional)",  # skip
        "0.first",
        "0.(functional)#2",  # relu
        "0.second",
        "0.(functional)#3",  # the sum
        "1",
        "(loss)",
    ]
    skip, first, relu, second, total, *_ = workload.layers
    assert [layer.forward_flop for layer in (skip, relu, total)] == [4, 4, 4]
    assert (relu.backward_flop, first.backward_flop, second.backward_flop) == (4, 32, 64)
    assert skip.num_backward_kernels == 0  # the input wants no gradient


def test_backward_of_a_skip_belongs_to_the_skip():
    workload = trace(nn.Sequential(nn.Linear(4, 4, bias=False), Residual()), 4)
    skip = workload.layers[1]
    assert (skip.name, skip.forward_flop, skip.backward_flop) == ("1.(functional)", 4, 4 + 4)  # and where paths join


def test_tied_frozen_and_unused_parameters():
    workload = trace(Odd(), 4)
    assert names(workload) == {
        "frozen": [],
        "a": ["a.weight"],
        "b": ["b.bias"],
        "(loss)": [],
        UNUSED: ["unused"],
    }
    assert [(p.name, p.index) for p in workload.parameters] == [("unused", 0), ("a.weight", 1), ("b.bias", 2)]
    layers = {layer.name: layer for layer in workload.layers}
    assert layers["frozen"].num_backward_kernels == 0
    assert layers[UNUSED].num_kernels == 0
    assert (
        layers["b"].backward_fixed_flop + layers["a"].backward_fixed_flop == 16
    )  # the two gradients of the tied one meet


def test_parameters_used_by_no_leaf():
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

        def forward(self, x):
            return F.linear(x * self.scale, self.inner.weight)

    assert names(trace(Scale(), 4)) == {"(functional)": ["scale", "inner.weight"], "(loss)": [], UNUSED: ["inner.bias"]}


def test_a_leaf_called_twice_is_two_layers():
    layer = nn.Linear(4, 4, bias=False)
    assert names(trace(nn.Sequential(layer, nn.ReLU(inplace=True), layer), 4)) == {
        "0": ["0.weight"],
        "1": [],
        "0#2": [],
        "(loss)": [],
    }


def test_the_module_is_left_alone():
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    trace(module, 1, 5, 5)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(p.grad is None and p.device.type == "cpu" for p in module.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_the_update_is_counted():
    def counted(optimizer):
        workload = trace(nn.Linear(4, 2), 4, optimizer=optimizer)
        return workload.optimizer_state, workload.update_traffic, workload.update_flop, workload.update_kernels

    assert counted(lambda p: torch.optim.SGD(p, lr=0.1, foreach=True)) == (0, 3, 1, 1)
    assert counted(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True)) == (1, 8, 3, 3)
    state, traffic, _, _ = counted(lambda p: torch.optim.Adam(p, lr=0.1))
    assert (state, round(traffic)) == (2, 19)


def test_a_loss_that_is_none():
    with pytest.raises(TaskError, match="one number"):
        trace_workload(nn.Linear(4, 2), [torch.empty(1, 4)], lambda out: out, name="test", source="chosen")


def test_digits():
    workload = task_workload(Digits())
    assert workload.num_parameters == 38_282
    convolution = workload.layers[2]
    assert (convolution.name, convolution.forward_flop) == ("body.0", 2 * 64 * 32 * 16 * 9)
    assert (workload.update_traffic, workload.optimizer_state) == (8, 1)
