"""How code that only pretends to compute says what it would have computed.

On a real engine nothing listens and a charge is free; the simulated engine charges it to the calling rank's clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Work of one kernel or a run of kernels on a device.

    Attributes:
        name: for the timeline.
        flop: floating-point operations.
        nbytes: device-memory traffic.
        dtype: of the arithmetic, e.g. "fp32".
        num_kernels: launches.
    """

    name: str
    flop: float
    nbytes: float
    dtype: str = "fp32"
    num_kernels: int = 1


_local = threading.local()


def charge(work: Work) -> None:
    """Charge `work` to the device of the calling rank, if somebody keeps account."""
    listener: Callable[[Work], None] | None = getattr(_local, "listener", None)
    if listener is not None:
        listener(work)


def listen(listener: Callable[[Work], None] | None) -> None:
    """Set who keeps account of charges made in this thread."""
    _local.listener = listener
