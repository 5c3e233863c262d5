"""A profile of a device: kernels of every class on grids of shapes, each alone, with a fifth of them held out.

    products, convolutions     shapes drawn evenly in logarithms; the constants of a `ProductFit`
    all other classes          bytes that double; a `TimeCurve` per class
    overheads                  `calibration.overheads`

Tensors lie where a step that moves 8 MiB in between would have left them (chosen).
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from geartrain.calibration.effort import Effort
from geartrain.calibration.kernel_fits import Error, Product, error_of, fit_curve, fit_product
from geartrain.calibration.operations import Clock, time_call
from geartrain.calibration.overheads import measure_overheads
from geartrain.calibration.recording import Call, Shape, replaced
from geartrain.cluster.spec import Device
from geartrain.cost.curves import ProductFit, TimeCurve
from geartrain.cost.kernel_class import KernelClass
from geartrain.cost.profile import Overheads, Profile
from geartrain.runtime.measure import threads
from geartrain.runtime.opcost import work_of

Stage = Callable[[str], AbstractContextManager[object]]

aten: Any = torch.ops.aten
_DISTANCE = 8 << 20
_SMALLEST, _LARGEST = 1 << 10, 1 << 26
_ROW = 256  # elements of a row that is normalised or summed; chosen
_PRODUCTS, _CONVOLUTIONS = 40, 15
_MOST_FLOP = 1 << 31
_KERNEL_SIZES = (1, 3, 5, 7)


@dataclass(frozen=True)
class Sample:
    """A kernel of the grid: its class, what it costs, and for a product its extents (m, n, k, how many)."""

    kind: KernelClass
    call: Call
    fit: str = ""
    extents: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


def measure_profile(
    device: torch.device, effort: Effort, *, name: str, threads: int = 1, stage: Stage, clock: Clock = time.perf_counter
) -> Profile:
    """Measure a device of this host.

    Args:
        device: the CPU, or an accelerator.
        effort: how much is measured.
        name: of the profile.
        threads: that an operation may use on a CPU.
        stage: told what is being done.
        clock: seconds; that of the thread's own CPU time where other programs run beside it.
    """
    timer = _Timer(device, effort, threads, clock)
    with stage("products and convolutions"):
        fits, errors = _fits(timer.all(_products(effort)))
    with stage("other kernels"):
        curves, more = _curves(timer.all(_others(effort)))
    with stage("overheads of the host"):
        overheads = measure_overheads(num_threads=threads, device=device, clock=clock)
    found = f"measured: {datetime.date.today().isoformat()}, torch {torch.__version__}, {threads} thread(s)"
    return Profile(
        name=name,
        host=f"{platform.machine()}, {platform.system()}",
        date=datetime.date.today().isoformat(),
        num_threads=threads,
        source=f"kernels of each class alone, torch {torch.__version__}, {threads} thread(s){timer.left_out}",
        device=_device(device, fits, curves, overheads),
        queued=device.type != "cpu",
        curves=curves,
        fits=fits,
        overheads=overheads,
        errors={**errors, **more},
        origins={key: found for key in ("device", "curves", "fits", "overheads", "errors")},
    )


@dataclass(frozen=True)
class _Timer:
    device: torch.device
    effort: Effort
    num_threads: int
    clock: Clock
    failed: set[str] = field(default_factory=set)

    @property
    def left_out(self) -> str:
        """Which operations the device could not run at some of their shapes and types; empty if there were none."""
        return f"; could not be run: {', '.join(sorted(self.failed))}" if self.failed else ""

    def all(self, samples: Sequence[Sample]) -> list[tuple[Sample, float]]:
        """Each sample with its median seconds; those that the device cannot run are left out, see `left_out`."""
        timed = []
        with threads(self.num_threads), torch.no_grad():
            for sample in samples:
                try:
                    taken = time_call(
                        sample.call,
                        repeats=self.effort.repeats,
                        seconds=self.effort.seconds / 4,
                        device=self.device,
                        clock=self.clock,
                    )
                except (RuntimeError, NotImplementedError):
                    self.failed.add(sample.call.work.name)
                    continue
                timed.append((sample, statistics.median(taken)))
        return timed


def _fits(timed: Sequence[tuple[Sample, float]]) -> tuple[dict[str, ProductFit], dict[KernelClass, Error]]:
    fits: dict[str, ProductFit] = {}
    held: dict[KernelClass, list[tuple[float, float]]] = {}
    for key in dict.fromkeys(sample.fit for sample, _ in timed):
        rows = [(sample, seconds) for sample, seconds in timed if sample.fit == key]
        fits[key] = fit_product([_product(*row) for index, row in enumerate(rows) if index % 5 != 4])
        for one in (_product(*row) for row in rows[4::5]):
            held.setdefault(rows[0][0].kind, []).append(
                (fits[key].seconds(one.m, one.n, one.k, one.count), one.seconds)
            )
    return fits, {kind: error_of(pairs) for kind, pairs in held.items()}


def _product(sample: Sample, seconds: float) -> Product:
    """A backward pass counts as one product, in proportion to its operations."""
    m, n, k, count = sample.extents
    return Product(m, n, k, count, seconds * 2 * m * n * k * count / sample.call.work.flop)


def _curves(timed: Sequence[tuple[Sample, float]]) -> tuple[dict[KernelClass, TimeCurve], dict[KernelClass, Error]]:
    curves: dict[KernelClass, TimeCurve] = {}
    errors: dict[KernelClass, Error] = {}
    for kind in dict.fromkeys(sample.kind for sample, _ in timed):
        rows = [(sample.call.work.nbytes, seconds) for sample, seconds in timed if sample.kind == kind]
        curves[kind] = fit_curve(row for index, row in enumerate(rows) if index % 5 != 4)
        errors[kind] = error_of((curves[kind].seconds(nbytes), seconds) for nbytes, seconds in rows[4::5])
    return curves, errors


def _device(
    device: torch.device, fits: dict[str, ProductFit], curves: dict[KernelClass, TimeCurve], overheads: Overheads
) -> Device:
    """Its peaks: of large products, of the largest copy, and of what surrounds an operation."""
    nbytes, seconds = curves["copy"].points[-1]
    there = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return Device(
        name=there.name if there else "cpu",
        flops={key.partition("/")[2]: fit.rate for key, fit in fits.items() if key.startswith("product/")},
        memory=there.total_memory if there else _host_memory(),
        memory_rate=nbytes / seconds,
        launch_overhead=overheads.between + overheads.launch,
        source=f"kernels of each class alone, torch {torch.__version__}",
    )


def _host_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 8 << 30


# --- grids ---------------------------------------------------------------------------------------------------------


def _sample(kind: KernelClass, func: Any, *args: Any, fit: str = "", extents: Sequence[float] = ()) -> Sample:
    """A call of an operation on tensors that are given by shape only."""
    out = func(*args)
    work = work_of(func, args, {}, out)
    shapes = replaced(list(args), Tensor, lambda one: Shape(tuple(one.shape), one.stride(), one.dtype, _DISTANCE))
    m, n, k, count = extents or (0.0, 0.0, 0.0, 0.0)
    return Sample(kind, Call(func, shapes, {}, work, _DISTANCE), fit, (m, n, k, count))


def _meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _products(effort: Effort) -> list[Sample]:
    draw = random.Random(0)

    def extent(low: int, high: int) -> int:
        return round(low * math.exp(draw.random() * math.log(high / low)))

    samples = []
    for index in range(_PRODUCTS // _share(effort)):
        m, n, k = extent(8, 4096), extent(8, 4096), extent(8, 4096)
        m = max(1, min(m, _MOST_FLOP // (2 * n * k)))
        if index % 4 == 3:
            m, n, k, count = extent(16, 256), extent(16, 256), extent(16, 128), extent(4, 64)
            operands = (_meta(count, m, k), _meta(count, k, n))
            samples.append(
                _sample("product", aten.bmm.default, *operands, fit="product/fp32", extents=(m, n, k, count))
            )
        else:
            operands = (_meta(m, k), _meta(k, n))
            samples.append(_sample("product", aten.mm.default, *operands, fit="product/fp32", extents=(m, n, k, 1)))
    for size in _KERNEL_SIZES:
        for _ in range(_CONVOLUTIONS // _share(effort)):
            samples += _convolution(size, extent)
    return samples


def _convolution(size: int, extent: Callable[[int, int], int]) -> Iterator[Sample]:
    """A convolution, and its backward pass."""
    images, inside, outside, wide = extent(1, 32), extent(4, 256), extent(8, 256), extent(7, 64)
    images = max(1, min(images, _MOST_FLOP // (2 * inside * outside * wide * wide * size * size)))
    given = (_meta(images, inside, wide, wide), _meta(outside, inside, size, size))
    pads = [size // 2, size // 2]
    more = ([1, 1], pads, [1, 1], False, [0, 0], 1)
    extents = (images * wide * wide, outside, inside * size * size, 1)
    func, fit = aten.convolution.default, f"{size}x{size}/fp32"
    yield _sample("convolution", func, *given, None, *more, fit=f"convolution{fit}", extents=extents)
    func, gradient = aten.convolution_backward.default, _meta(images, outside, wide, wide)
    rest = (None, *more, [True, True, False])
    yield _sample("convolution", func, gradient, *given, *rest, fit=f"convolution_backward{fit}", extents=extents)


def _share(effort: Effort) -> int:
    """By how much the grids are thinner than usual."""
    return 1 if effort.repeats >= 20 else 2


def _others(effort: Effort) -> list[Sample]:
    """All other classes, at bytes that double: large and small in turns, so that a held-out fifth has all sizes."""
    samples: list[Sample] = []
    size = _SMALLEST
    while size <= min(_LARGEST, effort.largest):
        samples += _of_size(size)
        size *= 2 * _share(effort)
    return samples


def _of_size(size: int) -> Iterator[Sample]:
    """One kernel of each operation, whose largest tensor has so many bytes."""
    numel = size // 4
    rows = max(1, numel // _ROW)
    flat, table, scale = _meta(numel), _meta(rows, _ROW), _meta(_ROW)
    yield _sample("elementwise", aten.relu.default, flat)
    yield _sample("elementwise", aten.add.Tensor, flat, flat)
    yield _sample("elementwise", aten.mul.Tensor, flat, flat)
    yield _sample("elementwise", aten.threshold_backward.default, flat, flat, 0)
    yield _sample("reduction", aten.sum.dim_IntList, table, [0], True)
    yield _sample("reduction", aten.sum.dim_IntList, table, [1], True)
    yield _sample("normalisation", aten.native_layer_norm.default, table, [_ROW], scale, scale, 1e-5)
    yield _sample("normalisation", aten._softmax.default, table, -1, False)
    yield _sample("normalisation", aten._log_softmax.default, table, 1, False)
    yield _sample("copy", aten.clone.default, flat)
    yield _sample("copy", aten.copy_.default, flat, flat)
    yield _sample("concatenation", aten.cat.default, [flat, flat])
    chosen = _meta(rows, dtype=torch.int64)
    yield _sample("lookup", aten.embedding.default, table, chosen)
    yield _sample("lookup", aten.index_select.default, table, 0, chosen)
    yield _sample("scatter", aten.embedding_dense_backward.default, table, chosen, rows, -1, False)
    yield _sample("update", aten.mul_.Tensor, flat, 0.9)
    yield _sample("update", aten.add_.Tensor, flat, flat)
    yield _sample("update", aten._foreach_addcdiv_.Scalar, [flat], [flat], [flat], -0.1)
    length = max(8, min(256, numel // 64))
    heads = _meta(max(1, numel // (64 * length)), 1, length, 64)
    yield _sample("attention", aten._scaled_dot_product_flash_attention_for_cpu.default, heads, heads, heads)
