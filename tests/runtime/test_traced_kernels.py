"""Kernels out of tracing: the sums of a layer, and the very operations that run at another batch size."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from geartrain.cost.compute import backward_work, forward_work, update_work
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.runtime.tracing import trace_workload
from geartrain.torch_private import DispatchMode
from geartrain.workload.spec import Lookup


class Small(nn.Module):
    """A look-up, convolutions, a norm, a repeated block, a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.wide = nn.Conv1d(5, 4, 3, padding=1)
        self.norm = nn.LayerNorm(6)

    def forward(self, places: Tensor) -> Tensor:
        x = self.words(places)
        for block in self.blocks:
            x = x + torch.relu(block(x))
        return self.norm(self.wide(x))


class _Keys(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.keys: list[object] = []
        self._costs = OpCosts()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        work = self._costs(func, args, kwargs, out)
        if work is not FREE:
            self.keys.append(work.key)
        return out


@pytest.fixture(scope="module")
def workload():
    example = torch.empty(1, 5, dtype=torch.long)
    return trace_workload(Small(), [example], lambda out: out.square().sum(), name="small", source="chosen")


def test_they_are_what_runs_at_another_batch(workload):
    model, places = Small(), torch.zeros(7, 5, dtype=torch.long)
    with _Keys() as seen:
        model(places).square().sum().backward()
    foretold = Counter(
        part.key
        for layer in workload.layers
        for work in (forward_work(workload, layer, 7), backward_work(workload, layer, 7))
        for part in work.parts
    )
    assert foretold == Counter(seen.keys)


@pytest.mark.parametrize("samples", [1, 4, 9])
def test_they_add_up_to_their_layer(workload, samples):
    for layer in workload.layers:
        for work in (forward_work(workload, layer, samples), backward_work(workload, layer, samples)):
            assert len(work.parts) == work.num_kernels
            assert sum(part.flop for part in work.parts) == pytest.approx(work.flop)
            assert sum(part.nbytes for part in work.parts) == pytest.approx(work.nbytes)


def test_equal_blocks_share_their_kernels(workload):
    blocks = [layer for layer in workload.layers if layer.name.startswith("blocks.")]
    assert len(blocks) == 3
    assert all(block.forward_kernels is blocks[0].forward_kernels for block in blocks)


def test_a_look_up_says_of_what(workload):
    (layer,) = (layer for layer in workload.layers if layer.name == "words")
    assert layer.forward_kernels[0].lookup == Lookup(rows=11, width=6, per_sample=5.0)


def test_the_update_is_what_the_optimizer_runs(workload):
    model = Small()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    update.step()
    with _Keys() as seen:
        update.step()
    example = torch.empty(1, 5, dtype=torch.long)
    found = trace_workload(
        Small(),
        [example],
        lambda out: out.square().sum(),
        name="small",
        source="chosen",
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, foreach=False),
    )
    whole = update_work(found)
    assert Counter(part.key for part in whole.parts) == Counter(seen.keys)
    assert sum(part.nbytes for part in whole.parts) == pytest.approx(whole.nbytes)
    assert update_work(found, 5).parts == ()
    assert update_work(workload).parts == ()


def test_a_layer_whose_operations_change_with_the_batch_has_none():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight if len(x) == 2 else x + self.weight).sum()

    found = trace_workload(Odd(), [torch.empty(1, 3)], lambda out: out, name="odd", source="chosen")
    assert found.layers[0].forward_kernels == ()
    assert found.layers[0].num_kernels == 2
