"""Compute in virtual time: every operation a rank runs is priced on its device and charged to its clock, as it runs.

Because charges fall inside forward and backward, what a program overlaps with communication is overlapped here too.

A device with two lanes (`ComputeModel.queued`) has a host that launches ahead: an activity's `host` is where that
stands, its `now` where the device does. Waiting for communication holds up the device alone; reading a number and the
end of a step hold up the host until the device is done.
"""

from __future__ import annotations

import random
from typing import Any

from torch import Tensor
from torch.nn import Parameter

from geartrain.cluster.placement import Pace
from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, Work
from geartrain.cost.lanes import Fronts, Launch
from geartrain.runtime import charging
from geartrain.runtime.charging import Works
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.sim.kernel import Activity, Kernel, Stopped
from geartrain.torch_private import READ_NUMBER, DispatchMode, FakeTensor


class Pacer:
    """How fast one rank computes now: its device's speed, jitter and straggling, drawn anew for every step.

    Where a program marks no steps (a script), drawn anew each time that it has stood still for others.

    Args:
        pace: what the cluster says of the device.
        seed: of this rank's stream.
    """

    def __init__(self, pace: Pace, seed: int) -> None:
        self._pace = pace
        self._random = random.Random(seed)
        self.varies = pace.jitter > 0.0 or pace.straggler is not None
        self.slowness = 1.0 / pace.speed

    def draw(self) -> None:
        """A new step begins."""
        if not self.varies:
            return
        pace = self._pace
        factor = max(0.1, 1.0 + pace.jitter * self._random.gauss(0.0, 1.0)) if pace.jitter else 1.0
        if pace.straggler is not None and self._random.random() < pace.straggler.probability:
            factor *= pace.straggler.factor
        self.slowness = factor / pace.speed

    def state(self) -> tuple[Any, float]:
        """Where the stream stands and what was drawn last."""
        return self._random.getstate(), self.slowness

    def load_state(self, state: tuple[Any, float]) -> None:
        """Go on where `state` was taken."""
        random_state, self.slowness = state
        self._random.setstate(random_state)


class Prices:
    """Seconds of work on one device, looked up once per distinct work; shared by all ranks with such a device."""

    def __init__(self, model: ComputeModel, device: Device) -> None:
        self._model, self._device = model, device
        self.queued = model.queued
        self._launches: dict[Work, tuple[Launch, ...]] = {}
        self._known: dict[Work, float] = {}
        self._by_identity: dict[int, tuple[Work, float]] = {}
        self._lists: dict[Works, tuple[float, ...]] = {}

    def of(self, work: Work) -> float:
        # The cost cache hands out the same object for the same operation: its identity is the quick key, and the entry
        # keeps it alive.
        entry = self._by_identity.get(id(work))
        if entry is None:
            seconds = self._known.get(work)
            if seconds is None:
                seconds = self._known[work] = self._model.seconds(work, self._device)
            if work.key is None:
                return seconds
            entry = self._by_identity[id(work)] = (work, seconds)
        return entry[1]

    def launches_of(self, work: Work) -> tuple[Launch, ...]:
        """The kernels of a piece of work on a device with two lanes."""
        launches = self._launches.get(work)
        if launches is None:
            launches = self._launches[work] = self._model.launches(work, self._device)
        return launches

    def of_all(self, works: Works) -> tuple[float, ...]:
        seconds = self._lists.get(works)
        if seconds is None:
            seconds = self._lists[works] = tuple(map(self.of, works.items))
        return seconds


class ChargeMode(DispatchMode):
    """Charges every operation of one activity to its clock; entered in its thread."""

    def __init__(self, kernel: Kernel, activity: Activity, costs: OpCosts, prices: Prices, pacer: Pacer) -> None:
        super().__init__()
        self._kernel, self._activity, self._cost, self._prices, self._pacer = kernel, activity, costs, prices, pacer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fake = False
        for kind in types:
            if issubclass(kind, FakeTensor):
                fake = True  # shapes are being worked out; nothing is computed
            elif kind is not Tensor and kind is not Parameter:
                return NotImplemented  # a tensor subclass (DTensor) runs its local operations, which come back here
        result = func(*args, **kwargs) if kwargs else func(*args)
        work = self._cost(func, args, kwargs, result)
        if work is not FREE:
            if not fake and not charging.paused():
                self.charge(work)
        elif func is READ_NUMBER:
            self._activity.host = self._activity.now
        return result

    def charge(self, work: Work) -> None:
        if self._kernel.stopping:
            raise Stopped
        if self._prices.queued:
            self._launch(work)
        else:
            self._activity.now += self._prices.of(work) * self._pacer.slowness
        self._activity.polls = 0

    def _launch(self, work: Work) -> None:
        """The host takes its time whatever the device's pace."""
        activity, slowness = self._activity, self._pacer.slowness
        fronts = Fronts(activity.host, activity.now)
        for launch in self._prices.launches_of(work):
            fronts.run(Launch(launch.host, launch.device * slowness, launch.blocks))
        activity.host, activity.now = fronts.host, fronts.device

    def charge_all(self, works: Works) -> None:
        if self._kernel.stopping:
            raise Stopped
        if self._prices.queued:
            for work in works.items:
                self._launch(work)
            self._activity.polls = 0
            return
        now, slowness = self._activity.now, self._pacer.slowness
        for seconds in self._prices.of_all(works):
            now += seconds * slowness  # one by one, to the same last bit as with `charge`
        self._activity.now = now
        self._activity.polls = 0
