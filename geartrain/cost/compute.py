"""What a piece of work costs a device: `Work`, and the contract of the models that price it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from geartrain.cluster.spec import Device


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one kernel, or of a run of kernels, on a device.

    Attributes:
        name: for the timeline, e.g. "aten.mm".
        flop: floating-point operations.
        nbytes: device-memory traffic.
        dtype: of the arithmetic, a key of `Device.flops`.
        num_kernels: launches.
        key: what a measured table knows it by (operation, shapes, types), or None.
    """

    name: str
    flop: float
    nbytes: float
    dtype: str = "fp32"
    num_kernels: int = 1
    key: Any = None


class ComputeModel(ABC):
    """Prices work on a device."""

    @abstractmethod
    def seconds(self, work: Work, device: Device) -> float: ...
