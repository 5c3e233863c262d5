"""Choices that change a workload: its data type, and what it keeps for backward. Both are changes to plain values.

with_dtype(w, "bf16")          parameters, gradients and arithmetic of two bytes
with_dtype(w, "bf16_mixed")    arithmetic of two bytes on copies of parameters that are kept, like gradients, in fp32
with_dtype(w, "tf32")          fp32, with products at the rate of tf32
checkpointed(w, "blocks")      of each block its input is kept, and its forward pass runs again in backward
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from geartrain.errors import ConfigurationError, UnknownName
from geartrain.workload.spec import Kernel, Layer, Line, MemoryShape, Part, Peak, Workload

DTYPES = ("fp32", "tf32", "bf16", "fp16", "bf16_mixed")
CHECKPOINTING = ("none", "blocks", "all")

_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16"}
_PRODUCTS = re.compile(r"\b(mm|addmm|bmm|baddbmm|_addmm_activation|convolution|convolution_backward)\b")
_SIZES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element; of types that are not here (bool, int8) 1."""


def with_dtype(workload: Workload, dtype: str) -> Workload:
    """The workload of a model that was traced in fp32, in another type.

    What a layer keeps for backward is halved for two bytes, masks and indices among it too; tracing a model that is in
    that type, as `get_workload` does, tells them apart.

    Args:
        workload: in fp32.
        dtype: "fp32", "tf32", "bf16", "fp16" or "bf16_mixed".

    Raises UnknownName for another type, ConfigurationError where the workload is not in fp32.
    """
    if dtype not in DTYPES:
        raise UnknownName("data type of a workload", dtype, DTYPES)
    if workload.dtype != "fp32":
        raise ConfigurationError(f"{workload.name} is in {workload.dtype} already; only one in fp32 can become {dtype}")
    match dtype:
        case "fp32":
            return workload
        case "tf32":
            layers = tuple(_with_kernels(layer, _product_in_tf32) for layer in workload.layers)
            return replace(workload, layers=layers, dtype="tf32", gradient_dtype="fp32")
        case "bf16_mixed":
            return with_master_weights(_in_two_bytes(workload, "bf16"))
    return _in_two_bytes(workload, dtype)


def _product_in_tf32(kernel: Kernel) -> Kernel:
    return replace(kernel, dtype="tf32") if kernel.dtype == "fp32" and _PRODUCTS.search(kernel.op) else kernel


def _with_kernels(layer: Layer, change: Callable[[Kernel], Kernel]) -> Layer:
    """The layer with each kernel changed; its sums stay."""
    return replace(
        layer,
        forward_kernels=tuple(change(kernel) for kernel in layer.forward_kernels),
        backward_kernels=tuple(change(kernel) for kernel in layer.backward_kernels),
    )


def _in_two_bytes(workload: Workload, dtype: str) -> Workload:
    layers = tuple(_layer_in_two_bytes(layer, dtype) for layer in workload.layers)
    memory = workload.memory
    if memory is not None:
        memory = MemoryShape(
            buffers=memory.buffers // 2,
            forward=_moved(memory.forward, factor=0.5),
            backward_fresh=_moved(memory.backward_fresh, factor=0.5),
            backward_kept=_moved(memory.backward_kept, factor=0.5),
            update=memory.update // 2,
        )
    parts = tuple(_part_in_two_bytes(part, dtype) for part in workload.parts)
    return replace(
        workload, layers=layers, dtype=dtype, element_size=2, parts=parts, memory=memory, update_operations=()
    )


def _part_in_two_bytes(part: Part, dtype: str) -> Part:
    return replace(part, dtype=_TORCH_NAMES[dtype], element_size=2) if part.dtype == "float32" else part


def _layer_in_two_bytes(layer: Layer, dtype: str) -> Layer:
    def halved(kernel: Kernel) -> Kernel:
        # What an operation moves is floats and, here and there, indices or masks: those are moved once and stay.
        rest = _sum(_tensor_bytes(kernel, at) for at, kind in enumerate(kernel.dtypes) if kind != "float32")
        fixed, each = (whole - other for whole, other in zip(kernel.nbytes, rest, strict=True))
        return replace(
            kernel,
            dtypes=tuple(_TORCH_NAMES[dtype] if kind == "float32" else kind for kind in kernel.dtypes),
            nbytes=(max(fixed, 0.0) / 2 + rest[0], max(each, 0.0) / 2 + rest[1]),
            dtype=dtype if kernel.dtype == "fp32" else kernel.dtype,
        )

    changed = _with_kernels(layer, halved)
    forward = _traffic(changed.forward_kernels) or _halves(layer.forward_fixed_bytes, layer.forward_bytes)
    backward = _traffic(changed.backward_kernels) or _halves(layer.backward_fixed_bytes, layer.backward_bytes)
    return replace(
        changed,
        forward_fixed_bytes=forward[0],
        forward_bytes=forward[1],
        backward_fixed_bytes=backward[0],
        backward_bytes=backward[1],
        activation=layer.activation / 2,
    )


def _traffic(kernels: Sequence[Kernel]) -> Line | None:
    return _sum(_scaled(kernel.nbytes, kernel.count) for kernel in kernels) if kernels else None


def _halves(fixed: float, each: float) -> Line:
    return fixed / 2, each / 2


def with_master_weights(workload: Workload) -> Workload:
    """A workload in two bytes as mixed precision runs it: parameters, gradients and optimizer state are in fp32.

        forward     casts every parameter to two bytes, once a step     6 bytes of traffic an element, 2 that stay
        backward    casts every gradient to fp32                        6 bytes of traffic an element

    With AdamW that is 16 bytes per parameter (parameter 4, gradient 4, state 8) and the copy of 2.
    """
    numel = workload.num_parameters
    memory = workload.memory
    if memory is not None:
        memory = replace(
            memory,
            forward=_moved(memory.forward, fixed=2 * numel),
            backward_fresh=_moved(memory.backward_fresh, fixed=4 * numel),
            backward_kept=_moved(memory.backward_kept, fixed=2 * numel),
            update=2 * memory.update,
        )
    layers = tuple(_with_casts(layer, workload.dtype) for layer in workload.layers)
    return replace(workload, layers=layers, element_size=4, gradient_dtype="fp32", memory=memory, update_operations=())


def _with_casts(layer: Layer, dtype: str) -> Layer:
    if not layer.parameters or not layer.num_kernels:
        return layer
    short = _TORCH_NAMES[dtype]
    down, up = (
        tuple(_cast(parameter.shape, kinds) for parameter in layer.parameters)
        for kinds in (("float32", short), (short, "float32"))
    )
    moved = sum(6.0 * parameter.numel for parameter in layer.parameters)
    return replace(
        layer,
        forward_fixed_bytes=layer.forward_fixed_bytes + moved,
        backward_fixed_bytes=layer.backward_fixed_bytes + moved,
        num_kernels=layer.num_kernels + len(down),
        num_backward_kernels=layer.num_backward_kernels + len(up),
        forward_kernels=(*down, *layer.forward_kernels) if layer.forward_kernels else (),
        backward_kernels=(*layer.backward_kernels, *up) if layer.backward_kernels else (),
    )


def _cast(shape: tuple[int, ...], kinds: tuple[str, str]) -> Kernel:
    extents = tuple((extent, 0) for extent in shape)
    numel = 1.0
    for extent in shape:
        numel *= extent
    return Kernel(
        op="aten._to_copy.default", shapes=(extents, extents), dtypes=kinds, flop=(0.0, 0.0), nbytes=(6 * numel, 0.0)
    )


def with_skew(workload: Workload, skew: float) -> Workload:
    """The workload with rows looked up by Zipf's law: row i with a probability in proportion to i^-skew."""

    def skewed(kernel: Kernel) -> Kernel:
        return kernel if kernel.lookup is None else replace(kernel, lookup=replace(kernel.lookup, skew=skew))

    return replace(workload, layers=tuple(_with_kernels(layer, skewed) for layer in workload.layers))


def checkpointed(workload: Workload, which: str) -> Workload:
    """The workload with activations computed again in backward.

    A block is what the shallowest numbered module holds ("block3", "layer1.0"). Of each its input is kept; in backward
    its whole forward pass runs again before any of its own backward, so that all of it counts as work of its last
    layer. (torch's early stop would leave out what comes after the last tensor that backward needs.)

    Costs: the FLOP, traffic and kernels of the blocks' forward passes, in `recomputed_flop` and not in `model_flop`.
    What lives at once in backward is all kept inputs and the activations of the largest block.

    Args:
        workload: whose layers are named by a model's modules.
        which: "none", "blocks", or "all": also what stands before, between and after blocks, but for the loss; or some
            of the blocks by their numbers, "0-11+20".

    Raises UnknownName for another choice, ConfigurationError where no layer belongs to a block, or no block has that
    number.
    """
    if not is_checkpointing(which):
        raise UnknownName("choice of checkpointing", which, [*CHECKPOINTING, "0-11+20"])
    if which == "none":
        return workload
    segments = _segments(workload.layers, everything=which == "all")
    if which not in CHECKPOINTING:
        segments = _some_of(segments, which, workload.name)
    if not any(_block(workload.layers[segment[0]].name) for segment in segments):
        raise ConfigurationError(
            f"{workload.name} has no blocks to checkpoint: no module with a number in its name holds several layers"
        )
    layers = list(workload.layers)
    for segment in segments:
        layers[segment.start : segment.stop] = _computed_again(layers[segment.start : segment.stop])
    return replace(workload, layers=tuple(layers), memory=_memory_without(workload, segments))


def is_checkpointing(text: str) -> bool:
    """Whether a text is a choice of checkpointing: one of `CHECKPOINTING`, or numbers of blocks like "0-11+20"."""
    return text in CHECKPOINTING or re.fullmatch(r"\d+(-\d+)?(\+\d+(-\d+)?)*", text) is not None


def blocks(workload: Workload) -> list[range]:
    """The layers of each block that can be computed again as one, in forward order."""
    return _segments(workload.layers, everything=False)


def _some_of(segments: Sequence[range], which: str, name: str) -> list[range]:
    places: set[int] = set()
    for run in which.split("+"):
        first, _, last = run.partition("-")
        places.update(range(int(first), int(last or first) + 1))
    if max(places, default=0) >= len(segments):
        raise ConfigurationError(f"checkpointing={which}: {name} has {len(segments)} block(s), counted from 0")
    return [segments[place] for place in sorted(places)]


def _segments(layers: Sequence[Layer], everything: bool) -> list[range]:
    """Stretches of layers that are computed again as one: blocks, and with `everything` what is between them."""
    found: list[range] = []
    start = 0
    for at in range(1, len(layers) + 1):
        if at < len(layers) and _stretch(layers[at]) == _stretch(layers[start]):
            continue
        if _stretch(layers[start]) or (everything and _stretch(layers[start]) is not None):
            found.append(range(start, at))
        start = at
    return found


def _stretch(layer: Layer) -> str | None:
    """The block of a layer, "" beside blocks; None for what is of no module, like the loss."""
    return _block(layer.name) or ("" if _is_of_model(layer) else None)


def _is_of_model(layer: Layer) -> bool:
    return not layer.name.startswith("(") and layer.num_kernels > 0


def _block(name: str) -> str:
    """The name of the block that a layer is in: up to its first numbered part that is not the layer itself, or ""."""
    parts = name.partition("#")[0].split(".")
    end = next((at for at, part in enumerate(parts) if re.search(r"\d[a-z]?$", part)), len(parts))
    while end + 1 < len(parts) and parts[end + 1].isdigit():
        end += 1
    return ".".join(parts[: end + 1]) if end + 1 < len(parts) else ""


def _computed_again(layers: Sequence[Layer]) -> list[Layer]:
    changed = [replace(layer, activation=0.0) for layer in layers]
    changed[0] = replace(changed[0], activation=input_bytes(layers[0]))
    last = changed[-1]
    flop = sum(layer.forward_flop for layer in layers)
    kernels = tuple(kernel for layer in layers for kernel in layer.forward_kernels)
    known = all(layer.forward_kernels or not layer.num_kernels for layer in layers)
    changed[-1] = replace(
        last,
        backward_flop=last.backward_flop + flop,
        backward_bytes=last.backward_bytes + sum(layer.forward_bytes for layer in layers),
        backward_fixed_flop=last.backward_fixed_flop + sum(layer.forward_fixed_flop for layer in layers),
        backward_fixed_bytes=last.backward_fixed_bytes + sum(layer.forward_fixed_bytes for layer in layers),
        num_backward_kernels=last.num_backward_kernels + sum(layer.num_kernels for layer in layers),
        backward_kernels=(*kernels, *last.backward_kernels) if known else (),
        recomputed_flop=last.recomputed_flop + flop,
    )
    return changed


def input_bytes(layer: Layer) -> float:
    """Bytes per sample of what a stretch starts from: of the first tensor of its first kernel that grows with them.

    Where no kernels are known, what its first layer keeps for backward, which is its input in most layers.
    """
    for kernel in layer.forward_kernels[:1]:
        for at in range(len(kernel.shapes)):
            each = _tensor_bytes(kernel, at)[1]
            if each:
                return each
    return layer.activation


def _memory_without(workload: Workload, segments: Sequence[range]) -> MemoryShape | None:
    """What lives at once when the segments keep their inputs alone.

    A moment at which a share of all activations lived is one at which that share of the inputs lives. New is that one
    segment has its activations again, beside the inputs of all before it and the gradients of all behind it: most of
    the former in the last segment, most of the latter in the first.
    """
    memory = workload.memory
    if memory is None:
        return None
    layers = workload.layers
    held = [sum(layers[at].activation for at in segment) for segment in segments]
    inputs = [input_bytes(layers[segment[0]]) for segment in segments]
    whole = sum(layer.activation for layer in layers)
    again = max(one + _largest_tensor(layers[at] for at in part) for one, part in zip(held, segments, strict=True))

    def less(line: Line) -> Line:
        return line[0], max(line[1] - min(1.0, line[1] / whole) * (sum(held) - sum(inputs)), 0.0)

    behind, everywhere = (
        float(workload.element_size * sum(p.numel for layer in layers[start:] for p in layer.parameters))
        for start in (segments[-1].stop, segments[0].start)
    )
    last, first, gradients = sum(inputs) + again, inputs[0] + again, float(workload.gradient_bytes)
    return replace(
        memory,
        forward=_changed(memory.forward, less),
        backward_fresh=(*_changed(memory.backward_fresh, less), (behind, last), (everywhere, first), (gradients, 0.0)),
        backward_kept=(*_changed(memory.backward_kept, less), (0.0, last)),
    )


def _largest_tensor(layers: Iterable[Layer]) -> float:
    """Bytes per sample of the largest tensor that backward of these layers takes or makes, as its gradient is."""
    kernels = (kernel for layer in layers for kernel in layer.backward_kernels)
    return max((_tensor_bytes(kernel, at)[1] for kernel in kernels for at in range(len(kernel.shapes))), default=0.0)


def _changed(peak: Peak, change: Callable[[Line], Line]) -> Peak:
    return tuple(change(line) for line in peak)


def _tensor_bytes(kernel: Kernel, at: int) -> Line:
    """Bytes of one of a kernel's tensors; what grows faster than in proportion to the samples is not foreseen."""
    fixed, both = 1, 1
    for start, each in kernel.shapes[at]:
        fixed, both = fixed * start, both * (start + each)
    size = _SIZES.get(kernel.dtypes[at], 1)
    return float(size * fixed), float(size * (both - fixed))


def _sum(lines: Iterable[Line]) -> Line:
    pairs = list(lines)
    return sum(pair[0] for pair in pairs), sum(pair[1] for pair in pairs)


def _scaled(line: Line, factor: float) -> Line:
    return line[0] * factor, line[1] * factor


def _moved(peak: Peak, *, factor: float = 1.0, fixed: float = 0.0, per_sample: float = 0.0) -> Peak:
    """All lines of a peak times a factor, and more or less of both of their parts."""
    return tuple((one * factor + fixed, max(each * factor + per_sample, 0.0)) for one, each in peak)
