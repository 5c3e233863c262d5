"""Training steps on devices known by measured peaks, priced by a roofline with two fitted constants.

    fitted     the share of the peak that is reached, and the seconds of a launch: on ResNet-50, V100, batches 16 and 64
    predicted  everything else: other batches, other devices, with the same two constants

Source: Lin and others, 2024, arXiv 2404.12674: measured peaks of FLOP and memory, and measured steps, of the authors'
code (owensgroup/ml_perf_model). fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from geartrain.cluster.spec import Device
from geartrain.cost.compute import Roofline, step_times
from geartrain.errors import UnknownName
from geartrain.models import get_workload

PEAKS: Mapping[str, tuple[float, float]] = {
    "v100": (15.442e12, 817e9),
    "titan-xp": (10.769e12, 439e9),
    "p100": (9.344e12, 543e9),
}
"""FLOP and bytes per second."""

_FITTED_ON, _FITTED = "v100", {16: 66.6e-3, 64: 214.5e-3}


def step_time(*, device: str, workload: str, batch: int) -> float:
    """Seconds of a step on one device."""
    if device not in PEAKS:
        raise UnknownName("device with measured peaks", device, PEAKS)
    efficiency, launch = fitted()
    return _seconds(device, workload, batch, efficiency, launch)


def _seconds(device: str, workload: str, batch: int, efficiency: float, launch: float) -> float:
    flops, memory_rate = PEAKS[device]
    one = Device(
        name=device,
        flops={"fp32": flops},
        memory=16 << 30,
        memory_rate=memory_rate,
        launch_overhead=launch,
        source="measured, owensgroup/ml_perf_model",
    )
    return step_times(get_workload(workload), one, batch, Roofline(efficiency)).total


@lru_cache
def fitted() -> tuple[float, float]:
    """Share of the peak and seconds of a launch that give both measured steps.

    A step is longer by the same for every launch, so their difference fixes the share, and then one step the launches.
    """
    (small, first), (large, second) = sorted(_FITTED.items())
    low, high = 0.05, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        longer = _of_fit(large, middle, 0.0) - _of_fit(small, middle, 0.0)
        low, high = (middle, high) if longer > second - first else (low, middle)
    launches = _of_fit(small, low, 1.0) - _of_fit(small, low, 0.0)
    return low, (first - _of_fit(small, low, 0.0)) / launches


def _of_fit(batch: int, efficiency: float, launch: float) -> float:
    return _seconds(_FITTED_ON, "resnet50", batch, efficiency, launch)
