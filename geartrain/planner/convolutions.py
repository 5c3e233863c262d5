"""Ways of computing a convolution, with the time and the workspace that arithmetic and traffic give each.

    gemm          2 N K C R S P Q operations, no workspace (implicit: nothing is unrolled in memory)
    winograd      F(4x4, 3x3), stride 1: 36 products for each tile of 16 outputs, in place of 144;
                  workspace: 36 numbers of each tile and channel, in and out, and of each filter
    fft           on whole pictures, stride 1: 8 operations for each complex product, 5/2 F log2 F for each transform;
                  workspace: half-spectra of pictures, filters and results, complex

What a library's kernels really take has to be measured: this is what they could take on a device that reaches the
roofline, and which of them have room.

Source: Zou and others, 2017, arXiv 1709.06622, step 1 (the programme over algorithms); Lavin and Gray, 2015, arXiv
1509.09308 (Winograd); the counts are derived.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, Work
from geartrain.planner.knapsack import Choice
from geartrain.workload.spec import Kernel, Workload

_CONVOLUTION = "aten.convolution.default"
_TILE, _OUTPUTS, _FILTER = 6, 4, 3
"""Of F(4x4, 3x3): the side of a tile that is read, of what it gives, and of the filter."""


@dataclass(frozen=True)
class Convolution:
    """The forward pass of one: (N, C, H, W) with K filters of R x S gives (N, K, P, Q).

    Attributes:
        samples, channels, height, width: of the input.
        filters, filter_height, filter_width: how many, how large.
        out_height, out_width: of the result.
        element_size: bytes of a number.
        dtype: of the arithmetic.
    """

    samples: int
    channels: int
    height: int
    width: int
    filters: int
    filter_height: int
    filter_width: int
    out_height: int
    out_width: int
    element_size: int = 4
    dtype: str = "fp32"

    @property
    def unit_stride(self) -> bool:
        """Whether neighbouring results come from neighbouring places, to padding."""
        return self.out_height > self.height // 2 and self.out_width > self.width // 2


def convolutions(workload: Workload, samples: int) -> Iterator[Convolution]:
    """The ungrouped two-dimensional ones of a workload's forward pass, where its kernels are known."""
    for layer in workload.layers:
        for kernel in layer.forward_kernels:
            if kernel.op == _CONVOLUTION and len(kernel.shapes[0]) == 4:
                one = _convolution(kernel, samples, workload.element_size)
                if one is not None:
                    yield from [one] * kernel.count


def _convolution(kernel: Kernel, samples: int, element_size: int) -> Convolution | None:
    shapes = [[fixed + samples * each for fixed, each in shape] for shape in kernel.shapes]
    (_, channels, height, width), weights, (*_, out_height, out_width) = shapes[0], shapes[1], shapes[-1]
    if weights[1] != channels:  # in groups
        return None
    return Convolution(
        samples=samples,
        channels=channels,
        height=height,
        width=width,
        filters=weights[0],
        filter_height=weights[2],
        filter_width=weights[3],
        out_height=out_height,
        out_width=out_width,
        element_size=element_size,
        dtype=kernel.dtype,
    )


def conv_choices(one: Convolution, device: Device, model: ComputeModel) -> list[Choice]:
    """The algorithms that fit a convolution; the first needs no workspace."""
    made = [_gemm(one)]
    if one.unit_stride and one.filter_height == one.filter_width == _FILTER:
        made.append(_winograd(one))
    if one.unit_stride and one.filter_height * one.filter_width > 1:
        made.append(_fft(one))
    return [Choice(name, model.seconds(_work(name, one, flop, space), device), space) for name, flop, space in made]


def _work(name: str, one: Convolution, flop: float, workspace: int) -> Work:
    """Operations and traffic: input, filters and result once, and a workspace written and read."""
    numbers = (
        one.samples * one.channels * one.height * one.width
        + one.filters * one.channels * one.filter_height * one.filter_width
        + one.samples * one.filters * one.out_height * one.out_width
    )
    return Work(name, flop=flop, nbytes=numbers * one.element_size + 2 * workspace, dtype=one.dtype)


def _gemm(one: Convolution) -> tuple[str, float, int]:
    results = one.samples * one.filters * one.out_height * one.out_width
    return "gemm", 2.0 * results * one.channels * one.filter_height * one.filter_width, 0


def _winograd(one: Convolution) -> tuple[str, float, int]:
    tiles = one.samples * math.ceil(one.out_height / _OUTPUTS) * math.ceil(one.out_width / _OUTPUTS)
    products = 2.0 * _TILE**2 * tiles * one.channels * one.filters
    numbers = tiles * (one.channels + one.filters) + one.channels * one.filters
    return "winograd", products, _TILE**2 * numbers * one.element_size


def _fft(one: Convolution) -> tuple[str, float, int]:
    height, width = one.height + one.filter_height - 1, one.width + one.filter_width - 1
    spectrum = height * (width // 2 + 1)
    pairs = one.samples * one.channels + one.samples * one.filters + one.channels * one.filters
    transforms = pairs * 2.5 * height * width * math.log2(height * width)
    products = 8.0 * spectrum * one.samples * one.channels * one.filters
    return "fft", transforms + products, 2 * pairs * spectrum * one.element_size
