"""Times of single operations, each alone on fresh tensors that lie where the step would have left them.

    seconds of an operation = median over calls; its tensors rotate through so many copies that each call touches
                              what was touched `distance` bytes ago, as the step does (`calibration.recording`)

The step itself is never run, so that what it takes can be predicted from these times and held against it. Beyond twice
the size of the last cache all distances are alike. Whole numbers that stand for rows are drawn evenly.
"""

from __future__ import annotations

import datetime
import math
import mmap
import os
import platform
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from geartrain.calibration.recording import Call, Recorded, Shape, replaced
from geartrain.cost.compute import Work
from geartrain.cost.table import Entry, Key, Table
from geartrain.runtime.measure import threads

CACHE = 32 << 20
"""Bytes of the last cache, where the system does not tell; chosen."""

Clock = Callable[[], float]
CPU = torch.device("cpu")

_MOST_COPIES = 64  # of one tensor; chosen
_MOST_MEMORY = 256 << 20  # bytes of all copies of one tensor; chosen
_MANY_ZEROS = 0.2  # chosen
_WARM_UP = 2
_LONG = 5  # times the seconds that were allowed: then one call is enough; chosen
_FRESH = 64 << 20  # bytes of a block that the system gives each time; chosen
_LIMITS: Mapping[str, str] = {  # which argument says how many rows there are to choose from
    "embedding": "weight",
    "_embedding_bag": "weight",
    "embedding_dense_backward": "num_weights",
    "_embedding_bag_backward": "num_weights",
    "_embedding_bag_dense_backward": "num_weights",
}


def last_cache() -> int:
    """Bytes of this host's last cache."""
    try:
        return os.sysconf("SC_LEVEL3_CACHE_SIZE") or CACHE
    except (AttributeError, OSError, ValueError):
        return CACHE


def measure_operations(
    recorded: Sequence[Recorded],
    *,
    num_threads: int = 1,
    repeats: int = 15,
    seconds: float = 0.2,
    device: torch.device = CPU,
    clock: Clock = time.perf_counter,
    progress: Callable[[str], None] = lambda message: None,
) -> Table:
    """Measure every distinct operation of some steps, alone.

        seconds of a key = mean over the ways in which the steps call it of (median of its calls + page faults)

    Args:
        recorded: of one or several steps, see `record_step`.
        num_threads: that an operation may use.
        repeats: calls that are timed of each, at most; usually at least 3.
        seconds: that the calls of one operation may take together, about.
        device: where.
        clock: seconds; that of the thread's own CPU time where other programs run beside it.
        progress: told what is being done.

    An operation that cannot be run by itself is left out; the table's `what` counts them.
    """
    sums: dict[Key, list[float]] = {}
    works: dict[Key, Work] = {}
    failed: set[str] = set()
    with threads(num_threads), torch.no_grad():
        fault = fault_seconds(clock) if device == CPU else 0.0
        for count, (call, times, faults) in enumerate(_ways(recorded, device)):
            if count % 20 == 0:
                progress(f"{count} operations measured")
            try:
                taken = time_call(call, repeats=repeats, seconds=seconds, device=device, clock=clock, fault=fault)
            except (RuntimeError, IndexError, NotImplementedError):
                failed.add(call.work.name)
                continue
            works[call.work.key] = call.work
            sums.setdefault(call.work.key, []).extend([statistics.median(taken) + faults * fault] * times)
    left_out = f"; could not be run by themselves: {', '.join(sorted(failed))}" if failed else ""
    return Table(
        host=f"{platform.node()} ({platform.machine()}), torch {torch.__version__}",
        date=datetime.date.today().isoformat(),
        num_threads=num_threads,
        what=f"single operations, each alone, median of {repeats}{left_out}",
        entries={key: Entry(statistics.fmean(sums[key]), work.flop, work.nbytes) for key, work in works.items()},
    )


def _ways(recorded: Sequence[Recorded], device: torch.device) -> Iterator[tuple[Call, int, float]]:
    """For each way of calling an operation: a usual call, how many there are, and the page faults of one."""
    groups: dict[tuple[Any, ...], list[tuple[Call, int]]] = {}
    for one in recorded:
        counts = page_faults(one) if device == CPU else [0] * len(one.step)
        for call, faults in zip(one.step, counts, strict=True):
            strides = [shape.stride for shape in flat(call)]
            groups.setdefault((call.work.key, tuple(strides)), []).append((call, faults))
    for group in groups.values():
        usual = sorted((call for call, _ in group), key=lambda call: call.fresh)[len(group) // 2]
        yield usual, len(group), statistics.fmean(faults for _, faults in group)


def flat(call: Call) -> list[Shape]:
    """All shapes among what a call is given."""
    found: list[Shape] = []
    replaced((call.args, call.kwargs), Shape, found.append)
    return found


def time_call(
    call: Call,
    *,
    repeats: int,
    seconds: float,
    device: torch.device = CPU,
    clock: Clock = time.perf_counter,
    fault: float = 0.0,
) -> list[float]:
    """Seconds of each of several calls of one operation, less those of its page faults."""
    step = max(call.work.nbytes, 1.0)
    rings = replaced(
        _with_values(call), Shape, lambda shape: _Ring([_rand(shape, device) for _ in _copies(shape, step)])
    )
    rings = replaced(rings, _Made, lambda made: _Ring([made.make(device) for _ in _copies(made.shape, step)]))
    kept: deque[Any] = deque(maxlen=_number(call.fresh, step))
    taken: list[float] = []
    begin = clock()
    while len(taken) < _WARM_UP + repeats:
        given, named = replaced(rings, _Ring, _Ring.take)
        finish(device)
        before = num_faults()
        start = clock()
        kept.append(call.func(*given, **named))
        finish(device)
        passed = clock() - start
        taken.append(max(passed - (num_faults() - before) * fault, 0.1 * passed))
        spent = clock() - begin
        if (len(taken) >= _WARM_UP + 3 and spent > seconds) or (len(taken) > _WARM_UP and spent > _LONG * seconds):
            break
    return taken[_WARM_UP:]


# --- memory that the system gives ----------------------------------------------------------------------------------


def num_faults() -> int:
    """Page faults of this thread so far."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def fault_seconds(clock: Clock = time.perf_counter) -> float:
    """Seconds of a page fault: of memory that the system gives anew, against the same memory once it is there."""
    taken: list[float] = []
    for _ in range(5):
        with mmap.mmap(-1, _FRESH) as pages:
            block = torch.frombuffer(pages, dtype=torch.uint8)
            before, begin = num_faults(), clock()
            block.fill_(1)
            new, faults = clock() - begin, num_faults() - before
            begin = clock()
            block.fill_(1)
            taken.append(max(0.0, new - (clock() - begin)) / max(1, faults))
            del block  # or the pages could not be given back
    return statistics.median(taken)


def page_faults(recorded: Recorded) -> list[int]:
    """Page faults of each operation of a step: what the step allocates is allocated and touched, and nothing else done.

    An allocator gives large blocks back to the system, so that the next step pays for the same pages again.
    """
    blocks: dict[int, Tensor] = {}
    counts: list[int] = []
    for call in (*recorded.before, *recorded.step):
        before = num_faults()
        for number, nbytes in call.memory:
            if nbytes:
                blocks[number] = torch.empty(nbytes, dtype=torch.uint8).fill_(1)
            else:
                blocks.pop(number, None)
        counts.append(num_faults() - before)
    return counts[len(recorded.before) :]


def finish(device: torch.device) -> None:
    """Wait until an accelerator has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Ring:
    """Copies of one tensor that take turns."""

    def __init__(self, copies: list[Tensor]) -> None:
        self._copies, self._next = copies, 0

    def take(self) -> Tensor:
        self._next = (self._next + 1) % len(self._copies)
        return self._copies[self._next]


def _number(distance: float, step: float) -> int:
    """How many copies take turns when every call moves `step` bytes and shall find what was touched so long ago."""
    far = min(distance, 2.0 * last_cache())
    return max(1, min(_MOST_COPIES, 1 + int(far / step)))


def _copies(shape: Shape, step: float) -> range:
    most = max(1, _MOST_MEMORY // max(shape.nbytes, 1))
    return range(min(_number(shape.distance, step), most))


# --- values that an operation can do with --------------------------------------------------------------------------


class _Made:
    """A tensor with values of its own, in place of drawn ones."""

    def __init__(self, shape: Shape, values: Callable[[int], Tensor]) -> None:
        self.shape, self._values = shape, values

    def make(self, device: torch.device) -> Tensor:
        made = self._values(math.prod(self.shape.shape)).to(self.shape.dtype)
        return made.reshape(self.shape.shape).to(device)


def _rand(shape: Shape, device: torch.device) -> Tensor:
    """Numbers between a half and one: no operation makes them vanish, overflow or leave its domain."""
    numel = shape.nbytes // shape.dtype.itemsize
    if shape.dtype.is_floating_point:
        flat = torch.rand(numel, device=device).mul_(0.5).add_(0.5).to(shape.dtype)
        if shape.zeros > _MANY_ZEROS:
            flat[torch.rand(numel, device=device) < shape.zeros] = 0  # in no order, which branches feel
    else:
        flat = torch.ones(numel, dtype=shape.dtype, device=device)
    return flat.as_strided(shape.shape, shape.stride)


def _with_values(call: Call) -> Any:
    """(args, kwargs) with whole numbers as the operation needs them."""
    names = [argument.name for argument in call.func._schema.arguments]
    named = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    limit = _limit(str(call.func).split(".")[1], named)

    def value(name: str, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [value(name, item) for item in given]
        if not isinstance(given, Shape) or given.dtype != torch.int64:
            return given
        return _Made(given, _whole_numbers(name, named, limit))

    args = [value(name, given) for name, given in zip(names, call.args, strict=False)]
    return args, {name: value(name, given) for name, given in call.kwargs.items()}


def _limit(base: str, named: Mapping[str, Any]) -> int:
    """How many values there are for a whole number to choose from."""
    if base in _LIMITS:
        rows = named[_LIMITS[base]]
        return int(rows.shape[0] if isinstance(rows, Shape) else rows)
    shape: tuple[int, ...] = named["self"].shape if isinstance(named.get("self"), Shape) else ()
    if base.startswith("nll_loss"):
        return int(shape[1] if len(shape) > 1 else shape[0])
    if base.startswith("max_pool2d"):
        return int(math.prod(shape[-2:]))
    if base in ("index", "index_select", "gather"):
        return int(shape[0])
    return 2


def _whole_numbers(name: str, named: Mapping[str, Any], limit: int) -> Callable[[int], Tensor]:
    indices = named.get("indices")
    total = math.prod(indices.shape) if isinstance(indices, Shape) else 0
    bags = named.get("offsets")
    each = max(1, total // max(1, bags.shape[0])) if isinstance(bags, Shape) else 1
    match name:
        case "offsets":
            return lambda count: torch.arange(count) * each
        case "offset2bag":
            return lambda count: torch.arange(count) // each
        case "bag_size":
            return lambda count: torch.full((count,), each)
        case "maximum_indices":
            return lambda count: torch.zeros(count)
        case _:
            return lambda count: torch.randint(limit, (count,))
