"""What a device computes with: rates by data type, rate of its memory, the time of launching an operation.

    launch overhead   an operation on one element, without its bytes
    memory rate       2 S / (copy of S bytes - copy of one element)      S read and S written
    compute rate      2 n^3 / (product of n x n matrices - launch)       n grows until a product takes long enough
    reduction rate    S / (adding S bytes to S others)

Ranks are measured in turn, as those of one host would take each other's cores. The least of the repeats counts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from geartrain.calibration.effort import Effort, MiB, finish_device
from geartrain.cluster.fields import DataType
from geartrain.runtime.context import Context

_TYPES: dict[DataType, torch.dtype] = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
MEASURED_TYPES: tuple[DataType, ...] = tuple(_TYPES)
_LARGE = 64 * MiB  # bytes that are copied: more than caches hold; chosen
_IN_A_ROW = 100  # launches that are timed together; chosen
_ROUNDING = 1e-3  # share of a launch below which it is none; chosen
_LONG_ENOUGH = 0.02  # seconds of a product; chosen


@dataclass(frozen=True)
class DeviceRates:
    """What one rank's device reached.

    Attributes:
        name, memory: of the device; of a CPU its share of the host's memory is not known here, and memory is 0.
        threads: that an operation could use; 0 on an accelerator.
        flops: FLOP per second by data type.
        memory_rate, reduction_rate: bytes per second.
        launch_overhead: seconds.
        spread: by how much the median of the copies lies above the least, relative to it.
    """

    name: str
    memory: int
    threads: int
    flops: dict[DataType, float]
    memory_rate: float
    reduction_rate: float
    launch_overhead: float
    spread: float


@dataclass(frozen=True)
class TimeDevices:
    """Program of a rank: measures its device while all others wait."""

    effort: Effort
    types: tuple[DataType, ...] = MEASURED_TYPES

    def __call__(self, ctx: Context) -> DeviceRates | None:
        found = None
        for turn in range(ctx.num_workers):
            if turn == ctx.rank:
                found = self._measured(ctx)
            if ctx.num_workers > 1:
                dist.barrier(group=ctx.workers)
        return found

    def _measured(self, ctx: Context) -> DeviceRates:
        one, other = (torch.zeros(1, device=ctx.device) for _ in range(2))
        large, source = (torch.zeros(_LARGE // 4, device=ctx.device) for _ in range(2))
        tiny = min(self._times(ctx, lambda: one.copy_(other), _IN_A_ROW))
        copies = self._times(ctx, lambda: large.copy_(source))
        memory_rate = (2 * _LARGE - 8) / (min(copies) - tiny)
        launch = tiny - 8 / memory_rate
        if launch < _ROUNDING * tiny:
            launch = 0.0
        rates = DeviceRates(
            name="cpu",
            memory=0,
            threads=torch.get_num_threads(),
            flops={name: self._flops(ctx, _TYPES[name], launch) for name in self.types if name in _TYPES},
            memory_rate=memory_rate,
            reduction_rate=_LARGE / min(self._times(ctx, lambda: large.add_(source))),
            launch_overhead=launch,
            spread=statistics.median(copies) / min(copies) - 1,
        )
        return self._of_accelerator(ctx, rates, launch) if ctx.device.type == "cuda" else rates

    def _of_accelerator(self, ctx: Context, rates: DeviceRates, launch: float) -> DeviceRates:
        there = torch.cuda.get_device_properties(ctx.device)
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("high")
        try:
            tf32 = self._flops(ctx, torch.float32, launch)
        finally:
            torch.set_float32_matmul_precision(before)
        flops = {**rates.flops, "tf32": tf32}
        return replace(rates, name=there.name, memory=there.total_memory, threads=0, flops=flops)

    def _flops(self, ctx: Context, dtype: torch.dtype, launch: float) -> float:
        rows = self.effort.product if self.effort.exact else 256
        while True:
            left, right = (torch.ones(rows, rows, dtype=dtype, device=ctx.device) for _ in range(2))
            times = self._times(ctx, lambda left=left, right=right: torch.mm(left, right))  # type: ignore[misc]
            if rows >= self.effort.product or min(times) >= _LONG_ENOUGH:
                return float(2 * rows**3 / (min(times) - launch))
            rows *= 2

    def _times(self, ctx: Context, operation: Callable[[], object], in_a_row: int = 1) -> list[float]:
        """Seconds of an operation, repeat by repeat."""
        if not self.effort.exact:
            operation()
        first = self._once(ctx, operation, in_a_row)
        more = self.effort.repeats_for(first * in_a_row, self.effort.repeats) - 1
        return [first, *(self._once(ctx, operation, in_a_row) for _ in range(more))]

    def _once(self, ctx: Context, operation: Callable[[], object], in_a_row: int) -> float:
        finish_device(ctx)
        begin = ctx.clock.now()
        for _ in range(in_a_row):
            operation()
        finish_device(ctx)
        return (ctx.clock.now() - begin) / in_a_row
