"""Ways of computing convolutions: operations and workspaces by hand, and what must hold of the best choice."""

import dataclasses

import pytest

from geartrain.cluster.spec import Device
from geartrain.cost.compute import ROOFLINE
from geartrain.planner.convolutions import Convolution, conv_choices, convolutions
from geartrain.planner.knapsack import choose
from geartrain.workload.spec import Kernel, Layer, Workload

DEVICE = Device(name="made up", memory=2**34, memory_rate=1e30, flops={"fp32": 1e12}, source="made for tests")
MIDDLE = Convolution(16, 64, 56, 56, 64, 3, 3, 56, 56)

# Channels in, filters, side of VGG-16's convolutions, all 3 x 3 with padding.
VGG16 = [
    *((3, 64, 224), (64, 64, 224), (64, 128, 112), (128, 128, 112), (128, 256, 56), (256, 256, 56), (256, 256, 56)),
    *((256, 512, 28), (512, 512, 28), (512, 512, 28), (512, 512, 14), (512, 512, 14), (512, 512, 14)),
]


def choices(one):
    return {choice.name: choice for choice in conv_choices(one, DEVICE, ROOFLINE)}


def vgg16(samples):
    return [Convolution(samples, c, side, side, k, 3, 3, side, side) for c, k, side in VGG16]


def test_operations_and_workspaces_by_hand():
    found = choices(MIDDLE)
    outputs = 16 * 64 * 56 * 56
    assert found["gemm"].seconds == pytest.approx(2 * outputs * 64 * 9 / 1e12)
    assert found["gemm"].memory == 0
    # 14 x 14 tiles of 4 x 4 in each picture: a quarter of the products.
    assert found["winograd"].seconds == pytest.approx(found["gemm"].seconds / 4)
    assert found["winograd"].memory == 36 * (3136 * (64 + 64) + 64 * 64) * 4
    spectra = 16 * 64 + 16 * 64 + 64 * 64
    assert found["fft"].memory == 8 * spectra * 58 * 30
    assert found["fft"].seconds == pytest.approx(
        (8 * 58 * 30 * 16 * 64 * 64 + spectra * 2.5 * 58 * 58 * 11.7159) / 1e12, rel=1e-4
    )


def test_algorithms_that_do_not_fit_a_convolution_are_left_out():
    assert set(choices(dataclasses.replace(MIDDLE, filter_height=1, filter_width=1))) == {"gemm"}
    assert set(choices(dataclasses.replace(MIDDLE, out_height=28, out_width=28))) == {"gemm"}
    assert set(choices(dataclasses.replace(MIDDLE, filter_height=5, filter_width=5))) == {"gemm", "fft"}


def test_workspaces_of_early_layers_exceed_their_feature_maps():
    early = vgg16(16)[1]
    feature_maps = 2 * 16 * 64 * 224 * 224 * 4
    assert choices(early)["fft"].memory > feature_maps


def test_from_large_workspaces_to_none_as_the_batch_grows():
    """8 GiB of a device: what 1 sample leaves, 256 do not."""
    names = []
    for samples in (1, 16, 64, 256):
        layers = [conv_choices(one, DEVICE, ROOFLINE) for one in vgg16(samples)]
        held = 4 * sum(samples * c * side * side for c, _, side in VGG16)
        chosen = choose(layers, max(0, 2**33 - held))
        names.append([choice.name for choice in chosen.choices])
    workspaces = [sum(name != "gemm" for name in layer) for layer in names]
    assert workspaces == sorted(workspaces, reverse=True)
    assert workspaces[0] == 13 and workspaces[-1] < 7


def test_of_a_workload_by_its_kernels():
    kernel = Kernel(
        op="aten.convolution.default",
        shapes=(
            ((0, 1), (64, 0), (56, 0), (56, 0)),
            ((64, 0), (64, 0), (3, 0), (3, 0)),
            ((0, 1), (64, 0), (56, 0), (56, 0)),
        ),
        dtypes=("float32",) * 3,
        flop=(0.0, 1.0),
        nbytes=(0.0, 1.0),
        count=2,
    )
    grouped = dataclasses.replace(
        kernel, shapes=(kernel.shapes[0], ((64, 0), (1, 0), (3, 0), (3, 0)), kernel.shapes[2])
    )
    other = dataclasses.replace(kernel, op="aten.relu.default")
    workload = Workload(name="w", source="", layers=(Layer(name="a", forward_kernels=(kernel, grouped, other)),))
    assert list(convolutions(workload, 16)) == [MIDDLE, MIDDLE]
