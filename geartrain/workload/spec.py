"""`Workload`: the shape of one training step as plain data: layers, FLOP, bytes, parameters. No torch, no data.

Work and moved bytes are told per sample, beside what does not grow with the batch: on b samples a layer has
`fixed + b * per sample` of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

Line = tuple[float, float]
"""(fixed, per sample): on b samples fixed + b * per sample."""

Extent = tuple[int, int]
"""The same for one dimension of a tensor."""

Peak = tuple[Line, ...]
"""The highest of several lines: which moment of a step is the fullest depends on the batch."""

UNUSED = "(unused)"
"""Name of the layer that holds trainable tensors which take no part in the step: they never get a gradient."""


@dataclass(frozen=True)
class Parameter:
    """A trainable tensor: its dotted name, its shape, its place among the trainable ones of `model.parameters()`."""

    name: str
    shape: tuple[int, ...]
    index: int

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class Lookup:
    """A table of vectors as a kernel that looks some of them up sees it.

    Attributes:
        rows, width: of the table, in vectors and elements.
        per_sample: how many vectors a sample looks up.
        skew: exponent of Zipf's law, by which some rows are looked up more often than others; 0: all alike.
    """

    rows: int
    width: int
    per_sample: float
    skew: float = 0.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation of a layer, at any batch.

    Attributes:
        op: as in `Work.name`, e.g. "aten.addmm.default".
        shapes: of all tensors in and out, in the order of `Work.key`.
        dtypes: of their elements, e.g. "float32", likewise.
        flop: floating-point operations.
        nbytes: device-memory traffic.
        dtype: of the arithmetic, a key of `Device.flops`.
        count: how many equal ones follow each other.
        lookup: what it looks up, if that is what it does.
    """

    op: str
    shapes: tuple[tuple[Extent, ...], ...]
    dtypes: tuple[str, ...]
    flop: Line
    nbytes: Line
    dtype: str = "fp32"
    count: int = 1
    lookup: Lookup | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryShape:
    """What a step needs beyond parameters, the buffers of the strategy and the optimizer's state; bytes.

    Attributes:
        buffers: of the modules, and their tensors that are not trained.
        forward: the most that lives in forward.
        backward_fresh: the most in backward when gradients are made anew; they are in it.
        backward_kept: the most in backward when gradients exist before; they are not in it.
        update: the optimizer's temporaries.
    """

    buffers: int
    forward: Peak
    backward_fresh: Peak
    backward_kept: Peak
    update: int


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A leaf of the model, or what runs between two leaves, in forward order.

    Attributes:
        name: dotted name; what belongs to no leaf ends in "(functional)", what runs outside the model is "(loss)".
        parameters: its own trainable tensors, in registration order (a tied one only at its first layer).
        forward_flop, backward_flop: floating-point operations per sample (a multiply-add is two).
        forward_bytes, backward_bytes: device-memory traffic per sample, in bytes.
        forward_fixed_flop, backward_fixed_flop: operations that do not grow with the batch.
        forward_fixed_bytes, backward_fixed_bytes: traffic that does not grow with the batch (the weights).
        activation: bytes per sample kept for backward.
        num_kernels, num_backward_kernels: kernels launched in forward and in backward.
        forward_kernels, backward_kernels: those kernels in order; empty where only their sums are known.
        recomputed_flop: operations per sample that backward repeats of forward; they are in `backward_flop`.
    """

    name: str
    parameters: tuple[Parameter, ...] = ()
    forward_flop: float = 0.0
    backward_flop: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    forward_fixed_flop: float = 0.0
    backward_fixed_flop: float = 0.0
    forward_fixed_bytes: float = 0.0
    backward_fixed_bytes: float = 0.0
    activation: float = 0.0
    num_kernels: int = 1
    num_backward_kernels: int = 2
    forward_kernels: tuple[Kernel, ...] = ()
    backward_kernels: tuple[Kernel, ...] = ()
    recomputed_flop: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of the model that can be computed on a device of its own: what comes before hands it one tensor.

    Attributes:
        modules: names of the submodules that it consists of, in order; a layer belongs to the part of its module.
        shape: of what it hands on, without the samples; of the last part what the model returns.
        dtype: type of its elements, as torch calls it.
        element_size: bytes of one of them.
    """

    modules: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str = "float32"
    element_size: int = 4

    @property
    def numel(self) -> int:
        """Elements that it hands on per sample."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def holds(self, name: str) -> bool:
        """Whether a layer or a parameter of this dotted name is in one of its modules."""
        return any(name == module or name.startswith(f"{module}.") for module in self.modules)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step of a model.

    Attributes:
        name: what it is called.
        source: where the model definition comes from.
        layers: in forward order.
        dtype: of parameters and gradients, e.g. "fp32".
        element_size: bytes per parameter on the wire and in memory.
        optimizer_state: optimizer bytes per parameter byte (SGD 0, momentum 1, Adam 2).
        update_flop: operations per parameter in the update (SGD 1, momentum 3).
        update_traffic: bytes that the update moves per parameter byte (SGD 3, momentum 8: v *= m; v += g; p += v).
        update_kernels: kernels that the update launches when it takes all parameters at a time.
        update_operations: those kernels in order; empty where only their sums are known.
        parts: the model as an ordered list of parts; empty where it has no such order or nobody said.
        gradient_dtype: of gradients, where it is another than `dtype`, which is then that of the arithmetic.
        memory: what a step needs beside parameters and state, measured on shapes; None where nobody looked.
    """

    name: str
    source: str
    layers: tuple[Layer, ...]
    dtype: str = "fp32"
    element_size: int = 4
    optimizer_state: float = 1.0
    update_flop: float = 3.0
    update_traffic: float = 8.0
    update_kernels: int = 3
    update_operations: tuple[Kernel, ...] = ()
    parts: tuple[Part, ...] = ()
    gradient_dtype: str | None = None
    memory: MemoryShape | None = None

    def __hash__(self) -> int:
        # Equal workloads have it in common, and a tuple of a thousand layers takes too long to hash at every look-up.
        return hash((self.name, self.dtype, len(self.layers)))

    def __getstate__(self) -> dict[str, Any]:
        # What was computed on demand is computed again.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """All trainable tensors in the order of `model.parameters()`, which need not be the order of use."""
        return tuple(sorted((p for layer in self.layers for p in layer.parameters), key=lambda p: p.index))

    @cached_property
    def num_parameters(self) -> int:
        return sum(p.numel for p in self.parameters)

    @cached_property
    def model_flop(self) -> float:
        """Operations per sample of forward and backward, without those that are repeated: what MFU counts."""
        return sum(layer.forward_flop + layer.backward_flop - layer.recomputed_flop for layer in self.layers)

    @property
    def gradient_bytes(self) -> int:
        return self.num_parameters * self.element_size
