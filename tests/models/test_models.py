"""ResNet-50: parameters, arithmetic, and that it runs."""

import pytest
import torch

from geartrain.errors import UnknownName
from geartrain.models import WORKLOAD_SOURCES, WORKLOADS, get_workload
from geartrain.models.resnet import resnet50


def test_every_workload_has_a_source():
    assert set(WORKLOADS) == set(WORKLOAD_SOURCES)
    with pytest.raises(UnknownName, match="did you mean 'resnet50'"):
        get_workload("resnet")


def test_resnet50_by_the_literature():
    workload = get_workload("resnet50")
    assert workload.num_parameters == 25_557_032
    assert len(workload.parameters) == 161
    arithmetic = [layer for layer in workload.layers if "conv" in layer.name or "shortcut.0" in layer.name]
    products = sum(layer.forward_flop for layer in (*arithmetic, workload.layers[-2]))
    assert products == 2 * 4_089_184_256  # multiply-adds of the 53 convolutions and the last layer
    assert sum(layer.forward_flop for layer in workload.layers) == pytest.approx(8.2e9, rel=0.01)
    assert sum(layer.backward_flop for layer in workload.layers) == pytest.approx(2 * 8.2e9, rel=0.03)
    assert get_workload("resnet50") is workload


def test_resnet50_strides_in_the_3x3():
    with torch.device("meta"):
        model = resnet50()
        block = model.layer2[0]
        assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))
        assert model(torch.empty(2, 3, 64, 64)).shape == (2, 1000)
