"""Convolution algorithms under a memory budget: what LargeScaleArchs says of batches, through the planner's programme.

    budget of X samples = memory - X * what they keep - 3 * parameters        parameters, gradients, momentum

The larger a batch, the less is left for workspaces of the fast algorithms.

Source: Zou and others, 2017, arXiv 1709.06622, step 1, recalled. The device, half a K80, is chosen, and its 12 GiB, 2.8
TFLOP/s and 240 GB/s are recalled.
"""

from __future__ import annotations

from functools import lru_cache

from geartrain.cluster.spec import Device
from geartrain.cost.compute import ROOFLINE
from geartrain.errors import ConfigurationError
from geartrain.models import get_workload
from geartrain.planner.convolutions import conv_choices, convolutions
from geartrain.planner.knapsack import Chosen, choose

DEVICE = Device(name="K80/2", flops={"fp32": 2.8e12}, memory=12 << 30, memory_rate=240e9, source="recalled")
_COPIES = 3


def budget(*, workload: str, samples: int) -> int:
    """Bytes that are left for workspaces; below zero where the batch does not fit."""
    shape = get_workload(workload)
    kept = samples * sum(layer.activation for layer in shape.layers)
    return DEVICE.memory - round(kept) - _COPIES * shape.gradient_bytes


@lru_cache
def chosen(workload: str, samples: int) -> Chosen:
    """The fastest algorithms of forward whose workspaces all fit at once."""
    left = budget(workload=workload, samples=samples)
    layers = [conv_choices(one, DEVICE, ROOFLINE) for one in convolutions(get_workload(workload), samples)]
    best = choose(layers, left) if left >= 0 else None
    if best is None:
        raise ConfigurationError(f"{samples} samples of {workload} need {-left} bytes more than {DEVICE.name} has")
    return best


def without_workspace(*, workload: str, samples: int) -> float:
    """Seconds of forward where no convolution has a workspace."""
    layers = convolutions(get_workload(workload), samples)
    return sum(conv_choices(one, DEVICE, ROOFLINE)[0].seconds for one in layers)


def fast_layers(*, workload: str, samples: int) -> float:
    """How many convolutions have another algorithm than the one without a workspace."""
    return float(sum(choice.memory > 0 for choice in chosen(workload, samples).choices))


def fast_layers_ratio(*, workload: str, samples: int, base: int) -> float:
    """How many with `samples` over how many with `base`."""
    return fast_layers(workload=workload, samples=samples) / fast_layers(workload=workload, samples=base)


def fft_workspace_ratio(*, workload: str, samples: int, layer: int) -> float:
    """Workspace of a convolution by FFT over the bytes that it gives.

    Args:
        layer: number of the convolution, from 0; one of stride 1.
    """
    one = [*convolutions(get_workload(workload), samples)][layer]
    given = samples * one.filters * one.out_height * one.out_width * one.element_size
    spaces = [choice.memory for choice in conv_choices(one, DEVICE, ROOFLINE) if choice.name == "fft"]
    if not spaces:
        raise ConfigurationError(f"convolution {layer} of {workload} has a stride, and no FFT here")
    return spaces[0] / given


def throughput_ratio(*, workload: str, samples: int, base: int) -> float:
    """Samples per second through all convolutions, forward, with `samples` at a time over those with `base`."""
    return samples / chosen(workload, samples).seconds / (base / chosen(workload, base).seconds)
