"""What one operation costs a device: FLOP, memory traffic, kernels, read off its arguments. Values are never read.

    flop    matrix products, convolutions, attention: a multiply-add is two; the rest: one per element; copies: none
    bytes   every tensor read once and written once; what is overwritten is not read; stretched dimensions count once
    kernels one per operation; a `_foreach` operation is one; views, fresh memory and collectives are none and free

Real and meta tensors cost the same. Matrix products and convolutions use torch's own table of FLOP formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry

from geartrain.cost.compute import Work

FREE = Work(name="free", flop=0.0, nbytes=0.0, num_kernels=0)
"""What a view, an empty tensor or a collective costs the device."""

_DTYPES = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.int8: "int8",
    torch.uint8: "int8",
}  # other integers run at the rate of fp32

_FREE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "profiler", "prim", "_dtensor"})


def _names(*lines: str) -> frozenset[str]:
    return frozenset(name for line in lines for name in line.split())


_FREE_NAMES = _names(
    "_unsafe_view alias_ as_strided_ detach_ empty empty_like empty_permuted empty_strided is_same_size item lift",
    "_local_scalar_dense new_empty new_empty_strided record_stream requires_grad_ resize_ resize_as_ set_ set_data",
    "squeeze_ swapaxes_ swapdims_ t_ transpose_ unsqueeze_",
)
_OVERWRITES = _names(
    "copy_ fill_ zero_ normal_ uniform_ bernoulli_ random_ exponential_ geometric_ log_normal_ cauchy_",
    "_foreach_copy_ _foreach_zero_",
)
_LIKE = _names("zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full bernoulli")
_MOVES = _LIKE | _names(
    "clone copy_ _to_copy cat stack zeros ones full fill_ zero_ arange scalar_tensor index_select gather embedding",
    "index take constant_pad_nd slice_backward select_backward slice_scatter select_scatter as_strided_scatter roll",
    "flip repeat unfold_backward _foreach_copy_ _foreach_zero_",
)
_GATHERS = _names("embedding index_select gather index take take_along_dim")
_SCATTERS = _names("index_add_ index_put_ _index_put_impl_ index_copy_ scatter_ scatter_add_ scatter_reduce_")
# The same arithmetic under a name that the table of formulas does not have.
_SAME_FLOP = {
    "_scaled_dot_product_flash_attention_for_cpu": "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu_backward": "_scaled_dot_product_flash_attention_backward",
    "_addmm_activation": "addmm",
}
_VECTOR_PRODUCTS = {"mv": 0, "dot": 0, "vdot": 0, "addmv": 1}  # -> which argument says how many multiply-adds


@dataclass(frozen=True, slots=True)
class _Operation:
    """What is known of an operation by its name alone; `writes` names its arguments that it changes."""

    name: str
    base: str
    free: bool
    writes: frozenset[str]
    order: tuple[str, ...]
    formula: Callable[..., int] | None


_operations: dict[int, _Operation] = {}
"""By the identity of the operation, which lives as long as the process: its own hash is slow."""


def _operation(func: Any) -> _Operation:
    """Looked up once per operation and process; two threads that meet here do the same work twice, nothing worse."""
    known = _operations.get(id(func))
    if known is None:
        space, _, full = func.name().partition("::")
        base = full.partition(".")[0]
        arguments = func._schema.arguments
        formula = flop_registry.get(func.overloadpacket)
        if formula is None and base in _SAME_FLOP:
            formula = flop_registry.get(getattr(torch.ops.aten, _SAME_FLOP[base]))
        known = _operations[id(func)] = _Operation(
            name=str(func),
            base=base,
            free=space in _FREE_NAMESPACES or base in _FREE_NAMES or bool(func.is_view),
            writes=frozenset(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write),
            order=tuple(a.name for a in arguments),
            formula=formula,
        )
    return known


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _extent(tensor: Tensor) -> int:
    """Elements that are there: an expanded dimension has one."""
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor.numel()
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(_extent(tensor) * tensor.element_size() for tensor in tensors)


def _traffic(op: _Operation, named: Mapping[str, Any], out: Sequence[Tensor]) -> int:
    """Bytes read plus bytes written."""
    changed = [t for name, value in named.items() if name in op.writes for t in _tensors(value)]
    fresh = [t for t in out if not any(t is other for other in changed)]
    read = [t for name, value in named.items() if name not in op.writes for t in _tensors(value)]
    if op.base in _SCATTERS:
        # Only the places that the source lands on are read and written.
        touched = max((t.numel() for t in read), default=0) * changed[0].element_size()
        return _nbytes(read) + 2 * touched
    if op.base in _GATHERS:
        return _nbytes(read[1:]) + 2 * _nbytes(fresh)
    if op.base == "_embedding_bag":  # the rows of the table that are looked up, and their sums
        return _nbytes(read[1:]) + _looked_up(read) * read[0].element_size() + _nbytes(fresh)
    if op.base in _LIKE:
        read = []
    # Arguments called `out` are overwritten, others that change are updated.
    updates = op.base not in _OVERWRITES and "self" in op.writes
    return _nbytes(read) + _nbytes(fresh) + _nbytes(changed) * (2 if updates else 1)


def _looked_up(read: Sequence[Tensor]) -> int:
    """Elements of the rows that indices, the second tensor, name in a table, the first."""
    return read[1].numel() * read[0].shape[1]


def _flop(op: _Operation, args: Sequence[Any], kwargs: Mapping[str, Any], named: Mapping[str, Any], out: Any) -> float:
    if op.formula is not None:
        return float(op.formula(*args, **kwargs, out_val=out))
    if op.base in _VECTOR_PRODUCTS:
        return 2.0 * int(args[_VECTOR_PRODUCTS[op.base]].numel())
    if op.base in _MOVES:
        return 0.0
    if op.base == "_embedding_bag":
        return float(_looked_up([t for value in named.values() for t in _tensors(value)]))
    if op.base.startswith("_foreach") or op.base.startswith("_fused"):
        return float(sum(t.numel() for t in _tensors(next(iter(named.values()), ()))))
    sizes = (t.numel() for value in (*named.values(), out) for t in _tensors(value))
    return float(max(sizes, default=0))


def dtype_key(dtype: torch.dtype) -> str:
    """The key of `Device.flops` at whose rate a type computes."""
    return _DTYPES.get(dtype, "fp32")


def _arithmetic(tensors: Sequence[Tensor]) -> str:
    arithmetic = next((t.dtype for t in tensors if t.is_floating_point() or t.is_complex()), None)
    if arithmetic is None:
        arithmetic = tensors[0].dtype if tensors else torch.float32
    return dtype_key(arithmetic)


def work_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, out: Any) -> Work:
    """The work of one call, as a dispatch mode sees it: `out = func(*args, **kwargs)`.

    Args:
        func: the operation, e.g. `torch.ops.aten.mm.default`.
        args, kwargs: what it was given.
        out: what it returned.

    The work's key is (name, shapes, dtypes) of what goes in and comes out.
    """
    op = _operation(func)
    if op.free or (op.base == "ones_like" and out.dim() == 0):
        return FREE  # a one of no dimension is the gradient that backward starts from, and nobody's work
    kwargs = kwargs or {}
    named = dict(zip(op.order, args, strict=False)) | dict(kwargs)
    inputs = [t for value in named.values() for t in _tensors(value)]
    outputs = list(_tensors(out))
    everything = [*inputs, *outputs]
    return Work(
        name=op.name,
        flop=_flop(op, args, kwargs, named, out),
        nbytes=float(_traffic(op, named, outputs)),
        dtype=_arithmetic(everything),
        key=(
            op.name,
            tuple(tuple(t.shape) for t in everything),
            tuple(str(t.dtype).removeprefix("torch.") for t in everything),
        ),
    )


_PLAIN = frozenset({int, float, type(None), str, torch.dtype, torch.layout, torch.device, torch.memory_format})
_LARGEST = 1 << 16  # entries; a program whose shapes never repeat must not fill the memory


class OpCosts:
    """`work_of` with a memory, for code that sees every operation: 1 to 5 us where the shapes were seen before.

    May be shared by threads.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Work] = {}

    def __call__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, out: Any) -> Work:
        op = _operations.get(id(func)) or _operation(func)
        if op.free:
            return FREE
        parts: list[Any] = [id(func)]
        try:
            _describe(args, parts)
            if kwargs:
                _describe(kwargs.values(), parts)
        except (RuntimeError, NotImplementedError):  # a sparse tensor has no strides
            return work_of(func, args, kwargs, out)
        # What an operation changes in place has been described. Else numbers, which are left out, may say how large
        # the result is; its first tensor tells.
        if not op.writes:
            first = out[0] if type(out) in (tuple, list) and out else out
            parts.append(first.shape if isinstance(first, Tensor) else None)
        key = tuple(parts)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _LARGEST:
                self._known.clear()
            known = self._known[key] = work_of(func, args, kwargs, out)
        return known


def _describe(values: Iterable[Any], parts: list[Any]) -> None:
    """Append what the cost depends on. Numbers are left out: learning rates change at every step and cost nothing."""
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is nn.Parameter:
            parts += (value.shape, value.stride(), value.dtype)
        elif kind in _PLAIN:
            continue
        elif kind is bool:
            parts.append(value)
        elif kind is list or kind is tuple:
            _describe_list(value, parts)
        elif isinstance(value, Tensor):
            parts += (kind, value.shape, value.stride(), value.dtype)


def _describe_list(values: Sequence[Any], parts: list[Any]) -> None:
    first = type(values[0]) if values else int
    if first is int or first is float:
        return
    parts.append(len(values))
    if first is bool:
        parts += values
    else:
        _describe(values, parts)
