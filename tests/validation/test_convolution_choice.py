"""Convolutions under a memory budget: the budget by hand, and what larger batches do to the choice."""

import pytest

from geartrain.errors import ConfigurationError
from geartrain.models import get_workload
from geartrain.validation.convolution_choice import DEVICE, budget, chosen, fast_layers, fft_workspace_ratio


def test_the_budget_falls_linearly():
    shape = get_workload("alexnet")
    kept = sum(layer.activation for layer in shape.layers)
    budgets = [budget(workload="alexnet", samples=n) for n in (0, 10, 20)]
    assert budgets[0] == DEVICE.memory - 3 * 4 * 61_100_840
    assert budgets[0] - budgets[1] == pytest.approx(10 * kept, abs=1) == budgets[1] - budgets[2]


def test_choices_fit_and_a_full_memory_leaves_none_of_the_fast_ones():
    for samples in (8, 64):
        assert chosen("alexnet", samples).memory <= budget(workload="alexnet", samples=samples)
    # The largest batch leaves less than any fast algorithm needs.
    per_sample = budget(workload="alexnet", samples=0) - budget(workload="alexnet", samples=1)
    most = budget(workload="alexnet", samples=0) // per_sample
    assert fast_layers(workload="alexnet", samples=64) > fast_layers(workload="alexnet", samples=most) == 0
    with pytest.raises(ConfigurationError, match="bytes more"):
        chosen("alexnet", most + 2)


def test_a_workspace_by_hand():
    # AlexNet's second: 64 channels of 27 x 27, 192 filters of 5 x 5; spectra of 31 x 16 complex numbers.
    pairs = 2 * 64 + 2 * 192 + 64 * 192
    expected = 8 * pairs * 31 * 16 / (4 * 2 * 192 * 27 * 27)
    assert fft_workspace_ratio(workload="alexnet", samples=2, layer=1) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ConfigurationError, match="stride"):
        fft_workspace_ratio(workload="alexnet", samples=2, layer=0)
