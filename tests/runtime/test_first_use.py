"""Groups of neighbouring modules, and who says in forward that a group is needed."""

import torch
from torch import nn

from geartrain.runtime.first_use import FirstUse, group_neighbours, owned_parameters


def test_a_group_takes_neighbours_below_the_threshold_and_a_large_one_is_alone():
    sizes = [4, 4, 4, 20, 4, 4]
    assert group_neighbours(sizes, "aaaaaa", threshold=10) == [[0, 1], [2], [3], [4, 5]]
    assert group_neighbours(sizes, "aaaaaa", threshold=8) == [[0], [1], [2], [3], [4], [5]]  # below, not up to
    assert group_neighbours(sizes, "aaaaaa") == [[0, 1, 2, 3, 4, 5]]
    assert group_neighbours(sizes, "aaaaaa", count=4) == [[0, 1, 2, 3], [4, 5]]
    assert group_neighbours(sizes, "aabbaa") == [[0, 1], [2, 3], [4, 5]]
    assert group_neighbours([], "") == []


class Mixed(nn.Module):
    """Two types in one module, a frozen and a shared parameter, a list that does not run."""

    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.ones(2))
        self.wide = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.layer = nn.Linear(2, 2)
        self.layer.bias.requires_grad = False
        self.inner = nn.Sequential(nn.ParameterList([nn.Parameter(torch.ones(2))]), nn.Linear(2, 2, bias=False))
        self.tied = nn.Linear(2, 2, bias=False)
        self.tied.weight = self.layer.weight

    def forward(self, inputs):
        hidden = self.tied(inputs * self.own * self.wide.sum().float())
        return self.inner[1](hidden + self.inner[0][0])


def test_parameters_by_module_shared_ones_once_and_types_apart():
    model = Mixed()
    owned = owned_parameters(model)
    expected = [(model.own,), (model.wide,), (model.layer.weight,), (model.inner[0][0],), (model.inner[1].weight,)]
    assert len(owned) == len(expected)
    assert all(a is b for left, right in zip(owned, expected, strict=True) for a, b in zip(left, right, strict=True))


def test_each_forward_says_what_is_needed_before_it_is_used():
    model, asked = Mixed(), []
    first_use = FirstUse(model, asked.append)
    owned = owned_parameters(model)
    first_use.assign({parameter: group for group, parameters in enumerate(owned) for parameter in parameters})
    model(torch.ones(1, 2))
    first_use.end_step([parameter for parameters in owned for parameter in parameters])
    asked.clear()
    model(torch.ones(1, 2))
    # The root stands for its own (0, 1) and, since `inner` does not run by itself either, for the list in it (3).
    assert asked == [3, 2, 4]
    assert first_use.announced(model.inner[0][0]) and first_use.announced(model.layer.weight)
    asked.clear()
    model.eval()
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert asked == []
    first_use.close()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_what_no_module_stands_for_is_needed_at_once():
    model = Mixed()
    first_use = FirstUse(model, lambda group: None)
    first_use.assign({model.own: 0, model.layer.weight: 1})
    model.layer(torch.ones(1, 2))
    first_use.end_step([model.own, model.layer.weight])
    assert first_use.at_once == 0
    assert first_use.announced(model.own) and not first_use.announced(model.layer.weight)
    first_use.close()
