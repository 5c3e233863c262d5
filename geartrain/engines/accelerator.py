"""The emulated accelerator: the numerics run on the host, the time that the device would take is slept.

Every lane of a rank has an account, the moment at which its device will have done all that it was given:

    due = max over segments of (begin + charges)      a segment begins where the lane went on after standing still
    settle      before others are told of a result (an operation is posted, a wait or a step begins or ends, the clock
                is asked): sleep until `due`
    late        if the host took longer for the numerics than the device was charged, the device is late by that, and
                nothing is slept; both are summed up and told

So what a program overlaps with communication on an accelerator it overlaps here: a bucket is sent when the device would
have computed it. What a sleep overshoots is taken off the next one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from geartrain.cost.compute import Work
from geartrain.runtime import charging
from geartrain.runtime.charging import Works
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.sim.compute import Pacer, Prices
from geartrain.torch_private import DispatchMode, FakeTensor

CHARGED, SLEPT, OVERSLEPT, LATE = "device_charged", "device_slept", "device_overslept", "device_late"
"""Counts of a rank's log, in seconds; see `Accelerator`."""


class _Account(threading.local):
    due: float = 0.0
    charged: float = 0.0


class Accelerator:
    """A device of one rank, shared by its lanes, each of which has it to itself (as in the simulator).

    Args:
        prices: of the device.
        pacer: how fast it is.
        counts: of the rank's log. Gets the seconds that were charged, that were slept, by which sleeping was late,
            and by which computing was late since the host took longer than the device.
    """

    def __init__(self, prices: Prices, pacer: Pacer, counts: dict[str, float]) -> None:
        self._prices, self._pacer, self._counts = prices, pacer, counts
        self._account, self._lock, self._costs = _Account(), threading.Lock(), OpCosts()
        for name in (CHARGED, SLEPT, OVERSLEPT, LATE):
            counts[name] = 0.0

    @contextmanager
    def lane(self) -> Iterator[None]:
        """What the calling thread computes inside is charged."""
        with _ChargeMode(self, self._costs):
            self._begin()
            try:
                yield
            finally:
                self.settle()
                charging.listen(None)

    def enter_lane(self) -> None:
        """As `lane`, until the thread ends."""
        mode: Any = _ChargeMode(self, self._costs)
        mode.__enter__()
        self._begin()

    def _begin(self) -> None:
        charging.listen(self)
        self.resume()

    def charge(self, work: Work) -> None:
        """See `Account`."""
        self._add(self._prices.of(work) * self._pacer.slowness)

    def charge_all(self, works: Works) -> None:
        """See `Account`."""
        self._add(sum(self._prices.of_all(works)) * self._pacer.slowness)

    def _add(self, seconds: float) -> None:
        account = self._account
        account.due += seconds
        account.charged += seconds

    def spare(self, seconds: float) -> None:
        """So much of the host's time was nobody's work."""
        self._account.due += seconds

    def settle(self) -> None:
        """Sleep until the device has done what this lane gave it."""
        account = self._account
        charged, account.charged = account.charged, 0.0
        left = account.due - time.monotonic()
        if left > 0:
            time.sleep(left)
            self._count(charged, slept=left, overslept=time.monotonic() - account.due)
        else:
            account.due -= left
            self._count(charged, late=-left if charged else 0.0)

    def resume(self) -> None:
        """This lane stood still until now, and its device with it."""
        self._account.due, self._account.charged = time.monotonic(), 0.0

    def new_step(self) -> None:
        """Jitter is drawn anew."""
        self._pacer.draw()

    def _count(self, charged: float, slept: float = 0.0, overslept: float = 0.0, late: float = 0.0) -> None:
        with self._lock:
            for name, value in ((CHARGED, charged), (SLEPT, slept), (OVERSLEPT, overslept), (LATE, late)):
                self._counts[name] += value


class _ChargeMode(DispatchMode):
    """Charges every operation of a thread."""

    def __init__(self, accelerator: Accelerator, costs: OpCosts) -> None:
        super().__init__()
        self._accelerator, self._cost = accelerator, costs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake = False
        for kind in types:
            if issubclass(kind, FakeTensor):
                fake = True
            elif kind is not Tensor and kind is not Parameter:
                return NotImplemented
        begun = time.monotonic()
        result = func(*args, **kwargs) if kwargs else func(*args)
        if charging.paused():
            self._accelerator.spare(time.monotonic() - begun)
            return result
        work = self._cost(func, args, kwargs, result)
        if work is not FREE and not fake:
            self._accelerator.charge(work)
        return result
