"""What a piece of work costs a device: `Work`, the models that price it, and the times of a workload's step.

Roofline    from the device's description
Constant    the same for every kernel
Measured    from a table measured on a host
Profiled    from a profile of a device, kernel by kernel: `geartrain.cost.profile`
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from geartrain.cluster.spec import Device
from geartrain.cost.lanes import Fronts
from geartrain.cost.lanes import Launch as Launch
from geartrain.cost.memo import Memo, Same
from geartrain.cost.table import Table
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.units import format_exact, parse_time
from geartrain.workload.spec import Kernel, Layer, Lookup, Workload


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
        parts: the kernels of a run of kernels, where they are known; models that know no kinds of kernels ignore them.
        lookup: the table that a kernel looks up rows of, with their number in `per_sample`.
    """

    name: str
    flop: float
    nbytes: float
    dtype: str = "fp32"
    num_kernels: int = 1
    key: Any = None
    parts: tuple[Work, ...] = field(default=(), hash=False)
    lookup: Lookup | None = None


def kernel_work(kernel: Kernel, samples: float) -> Work:
    """The work of a kernel on so many samples, known by the key that the same operation has when it is run."""
    shapes = tuple(tuple(round(fixed + samples * each) for fixed, each in shape) for shape in kernel.shapes)
    lookup = kernel.lookup
    return Work(
        name=kernel.op,
        flop=kernel.flop[0] + samples * kernel.flop[1],
        nbytes=kernel.nbytes[0] + samples * kernel.nbytes[1],
        dtype=kernel.dtype,
        key=(kernel.op, shapes, kernel.dtypes),
        lookup=None if lookup is None else replace(lookup, per_sample=samples * lookup.per_sample),
    )


_parts: Memo[tuple[Work, ...]] = Memo(4096)


def _kernel_works(kernels: tuple[Kernel, ...], samples: float) -> tuple[Work, ...]:
    """The kernels of a layer one by one; worked out once, since the blocks of a model share them."""

    def make() -> tuple[Work, ...]:
        return tuple(work for kernel in kernels for work in [kernel_work(kernel, samples)] * kernel.count)

    return _parts.get((Same(kernels), samples), make) if kernels else ()


class ComputeModel(ABC):
    """Prices work on a device. `str(model)` is the text that `parse_compute` reads."""

    @property
    def queued(self) -> bool:
        """Whether the device has two lanes: the host launches ahead, and times follow from how `launches` fit together.

        Else a piece of work takes its `seconds`, whatever comes before.
        """
        return False

    @abstractmethod
    def seconds(self, work: Work, device: Device) -> float: ...

    def launches(self, work: Work, device: Device) -> tuple[Launch, ...]:
        """The kernels of a piece of work on two lanes; one that costs the host nothing where a model has one lane."""
        return (Launch(0.0, self.seconds(work, device)),)

    def report(self) -> tuple[str, ...]:
        """What a reader of the results must know of how the work was priced."""
        return ()


_told: set[tuple[str, str]] = set()


def _flops(device: Device, dtype: str) -> float:
    rates = device.flops
    for known, rate in rates.items():
        if known == dtype:
            return rate
    # Whole numbers that no matrix unit multiplies run at the rate of fp32 everywhere, so there is nothing to tell.
    if (device.name, dtype) not in _told and dtype not in ("fp32", "int8"):
        _told.add((device.name, dtype))
        message = f"device {device.name!r} gives no compute rate for {dtype}; its rate for fp32 is used"
        warnings.warn(message, stacklevel=2)
    return device.flops_of("fp32")


@dataclass(frozen=True)
class Roofline(ComputeModel):
    """The slower of arithmetic and memory, after the launches.

        seconds = num_kernels * launch_overhead + max(flop / (flops[dtype] * efficiency), nbytes / memory_rate)

    Args:
        efficiency: share of the peak compute rate that is reached, in (0, 1].

    When to use: to compare devices and clusters by their data sheets. It is optimistic for small kernels.
    A data type that the device does not list is priced at fp32, with a warning once.

        Roofline(0.5).seconds(Work("mm", flop=1e9, nbytes=0), device)
    """

    efficiency: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise ConfigurationError(
                f"efficiency is a share of the peak, above 0 and at most 1, not {self.efficiency!r}"
            )

    def __str__(self) -> str:
        return "roofline" if self.efficiency == 1 else f"roofline:efficiency={self.efficiency!r}"

    def seconds(self, work: Work, device: Device) -> float:
        launch = work.num_kernels * device.launch_overhead
        memory = work.nbytes / device.memory_rate
        if not work.flop:
            return launch + memory
        return launch + max(work.flop / (_flops(device, work.dtype) * self.efficiency), memory)


@dataclass(frozen=True)
class Constant(ComputeModel):
    """The same time for every kernel, whatever its size and the device: timelines that can be written down by hand.

    Args:
        per_kernel: seconds.
    """

    per_kernel: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.per_kernel) and self.per_kernel >= 0):
            raise ConfigurationError(f"a kernel takes a finite time, zero or more, not {self.per_kernel!r}")

    def __str__(self) -> str:
        return f"constant:{format_exact(self.per_kernel, 'time')}"

    def seconds(self, work: Work, device: Device) -> float:
        return work.num_kernels * self.per_kernel


@dataclass(frozen=True)
class Measured(ComputeModel):
    """Times measured on a host, the same for every device.

    Work that was not measured is priced by a roofline of the best rates in the table, scaled to what its class of
    operations (convolutions, products, the rest) reached; with nothing of its class, by `fallback`. `report` counts it.

    Args:
        table: what was measured.
        fallback: prices what the table says nothing of.
        path: file that the table was read from, if any.
    """

    table: Table
    fallback: ComputeModel = field(default_factory=Roofline)
    path: str = ""
    _estimated: dict[Any, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _missed: dict[Any, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return f"table:{self.path}" if self.path else "measured"

    def seconds(self, work: Work, device: Device) -> float:
        if not work.num_kernels:
            return 0.0
        if work.parts:
            return sum(self.seconds(part, device) for part in work.parts)
        entry = self.table.entries.get(work.key)
        if entry is not None:
            return entry.seconds
        self._missed[work if work.key is None else work.key] = work.name
        seconds = self._estimated.get(work.key) if work.key is not None else None
        if seconds is None:
            guess = self.table.estimate(work.name, work.flop, work.nbytes, work.num_kernels)
            seconds = self.fallback.seconds(work, device) if guess is None else guess
            if work.key is not None and guess is not None:  # the fallback depends on the device
                self._estimated[work.key] = seconds
        return seconds

    def report(self) -> tuple[str, ...]:
        table, counts = self.table, Counter(self._missed.values())
        lines = [f"times measured on {table.host}, {table.date}, {table.num_threads} thread(s): {table.what}"]
        if counts:
            shown = ", ".join(f"{name} ({count})" for name, count in counts.most_common(5))
            lines.append(f"not in the table, so estimated: {counts.total()} operations (one per shapes), {shown}")
        return tuple(lines)


def parse_compute(text: str, measure: Callable[[], Table] | None = None) -> ComputeModel:
    """The model that a text stands for.

        roofline | roofline:efficiency=0.5 | constant:10 us | table:FILE | profile:NAME | profile:FILE | measured

    Args:
        text: as above.
        measure: makes a table on this host, for "measured"; refused where nothing can be run.
    """
    kind, _, rest = text.partition(":")
    if kind == "roofline":
        return Roofline(_efficiency(rest)) if rest else Roofline()
    if kind == "constant" and rest:
        return Constant(parse_time(rest))
    if kind == "profile" and rest:
        from geartrain.cost.profile import Profiled, load_profile  # which is made of the models here

        return Profiled(load_profile(rest), path=rest)
    if kind == "table" and rest:
        return Measured(Table.load(rest), path=rest)
    if text == "measured":
        if measure is None:
            raise ConfigurationError("'measured' needs a task to run; give 'table:FILE' with times measured before")
        return Measured(measure())
    known = ["roofline", "roofline:efficiency=0.5", "constant:10 us", "table:FILE", "profile:NAME|FILE", "measured"]
    raise UnknownName("compute model", text, known)


def _efficiency(text: str) -> float:
    name, _, value = text.partition("=")
    try:
        if name.strip() != "efficiency":
            raise ValueError
        return float(value)
    except ValueError:
        raise ConfigurationError(f"'roofline' knows 'efficiency=NUMBER', like efficiency=0.5, not {text!r}") from None


def forward_work(workload: Workload, layer: Layer, samples: float) -> Work:
    """The work of one layer's forward pass on so many samples."""
    return Work(
        name=f"{layer.name} forward",
        flop=layer.forward_fixed_flop + samples * layer.forward_flop,
        nbytes=layer.forward_fixed_bytes + samples * layer.forward_bytes,
        dtype=workload.dtype,
        num_kernels=layer.num_kernels,
        parts=_kernel_works(layer.forward_kernels, samples),
    )


def backward_work(workload: Workload, layer: Layer, samples: float) -> Work:
    """The work of one layer's backward pass on so many samples."""
    return Work(
        name=f"{layer.name} backward",
        flop=layer.backward_fixed_flop + samples * layer.backward_flop,
        nbytes=layer.backward_fixed_bytes + samples * layer.backward_bytes,
        dtype=workload.dtype,
        num_kernels=layer.num_backward_kernels,
        parts=_kernel_works(layer.backward_kernels, samples),
    )


def update_work(workload: Workload, numel: int | None = None) -> Work:
    """The work of the optimizer on all parameters, or on so many elements of them."""
    elements = workload.num_parameters if numel is None else numel
    return Work(
        name="update",
        flop=workload.update_flop * elements,
        nbytes=workload.update_traffic * elements * workload.element_size,
        dtype=workload.dtype,
        num_kernels=workload.update_kernels,
        parts=_kernel_works(workload.update_operations, 1) if elements == workload.num_parameters else (),
    )


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one training step on one device, alone.

    Attributes:
        forward, backward: per layer, both in forward order.
        update: of the optimizer.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: float

    @property
    def total(self) -> float:
        return sum(self.forward) + sum(self.backward) + self.update


ROOFLINE = Roofline()
"""The model of closed forms, unless another one is given."""


_steps: Memo[StepTimes] = Memo(512)


def step_times(workload: Workload, device: Device, samples: float, model: ComputeModel = ROOFLINE) -> StepTimes:
    """What one step on `samples` samples takes on a device, layer by layer; worked out once."""
    # Of models only the same one counts: some keep count of what they are asked, so that equal ones differ.
    key = (workload, device, samples, Same(model))
    return _steps.get(key, lambda: _step_times(workload, device, samples, model))


def _step_times(workload: Workload, device: Device, samples: float, model: ComputeModel) -> StepTimes:
    if model.queued:
        return _queued_times(workload, device, samples, model)
    return StepTimes(
        forward=tuple(model.seconds(forward_work(workload, layer, samples), device) for layer in workload.layers),
        backward=tuple(model.seconds(backward_work(workload, layer, samples), device) for layer in workload.layers),
        update=model.seconds(update_work(workload), device),
    )


def _queued_times(workload: Workload, device: Device, samples: float, model: ComputeModel) -> StepTimes:
    """The times of a device with two lanes: of each layer, how far it moves the device's front."""
    fronts = Fronts()

    def moved(work: Work) -> float:
        before = fronts.device
        for launch in model.launches(work, device):
            fronts.run(launch)
        return fronts.device - before

    forward = [moved(forward_work(workload, layer, samples)) for layer in workload.layers]
    backward = [moved(backward_work(workload, layer, samples)) for layer in reversed(workload.layers)]
    return StepTimes(tuple(forward), tuple(reversed(backward)), moved(update_work(workload)))
