"""Times of operations on this host: runs real training steps of a task and notes what each operation takes."""

from __future__ import annotations

import datetime
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from geartrain.cost.compute import Work
from geartrain.cost.table import Entry, Key, Table
from geartrain.errors import TaskError
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.runtime.worker import Batch, Task
from geartrain.torch_private import DispatchMode

_WARM_UP = 2  # steps whose times are thrown away: first touches of memory, kernels chosen, optimizer state made


class _Stopwatch(DispatchMode):
    """Times every operation, below autograd."""

    def __init__(self, costs: OpCosts) -> None:
        super().__init__()
        self.times: list[tuple[Work, float]] = []
        self._costs = costs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        begin = time.perf_counter()
        out = func(*args, **kwargs)
        seconds = time.perf_counter() - begin
        work = self._costs(func, args, kwargs, out)
        if work is not FREE:
            self.times.append((work, seconds))
        return out


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for an operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure_table(
    task: Task,
    batch_sizes: Sequence[int],
    repeats: int = 20,
    progress: Callable[[str], None] = lambda message: None,
) -> Table:
    """Measure the operations of a task's training step on this host's CPU, with one thread.

        seconds of a key = median over all its calls + correction
        correction       = (median time of a step without a stopwatch - sum of a step's medians) / operations of a step

    The median, not the least: a training step finds its caches as the operations before it leave them. The correction
    spreads what lies between operations over all alike (takes off the stopwatch's own cost, adds Python and autograd),
    so that a step's prices add up to the time of a real step. A corrected time is at least a tenth of the measured one.

    Args:
        task: whose steps are run: forward, backward, update.
        batch_sizes: samples per step; one is measured after the other. What a worker will take, e.g. [16, 32].
        repeats: steps measured per batch size, after two to warm up.
        progress: told what is being done.
    """
    if repeats < 1 or not batch_sizes:
        raise TaskError(f"give at least one batch size and one repeat, not {list(batch_sizes)} and {repeats}")
    entries: dict[Key, Entry] = {}
    with threads(1):
        for batch in batch_sizes:
            progress(f"measuring {task.name} at {batch} samples, {repeats} steps")
            # What was measured at an earlier size stays: an operation that does not depend on the batch keeps its time.
            entries = {**_measure(task, batch, repeats), **entries}
    sizes = ", ".join(str(batch) for batch in batch_sizes)
    return Table(
        host=f"{platform.node()} ({platform.machine()}), torch {torch.__version__}",
        date=datetime.date.today().isoformat(),
        num_threads=1,
        what=f"steps of {task.name} at {sizes} samples, median of {repeats}",
        entries=entries,
    )


def _measure(task: Task, batch: int, repeats: int) -> dict[Key, Entry]:
    model = task.model(seed=0)
    optimizer = task.optimizer(model.parameters())
    data = [task.batches(rank=0, num_workers=1, batch=batch, seed=0).take()]

    def step() -> None:
        _step(task, model, optimizer, data[0])

    for _ in range(_WARM_UP):
        step()
    whole = statistics.median(_seconds(step) for _ in range(repeats))
    stopwatch = _Stopwatch(OpCosts())
    with stopwatch:
        step()
        stopwatch.times.clear()
        for _ in range(repeats):
            step()
    return _entries(stopwatch.times, whole, repeats)


def _step(task: Task, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    optimizer.zero_grad()
    task.loss(model, batch).backward()
    optimizer.step()


def _seconds(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _entries(times: Sequence[tuple[Work, float]], whole: float, repeats: int) -> dict[Key, Entry]:
    works: dict[Key, Work] = {}
    samples: dict[Key, list[float]] = {}
    for work, seconds in times:
        works[work.key] = work
        samples.setdefault(work.key, []).append(seconds)
    medians = {key: statistics.median(values) for key, values in samples.items()}
    per_step = sum(medians[key] * len(values) for key, values in samples.items()) / repeats
    correction = (whole - per_step) * repeats / len(times)
    return {
        key: Entry(max(medians[key] + correction, 0.1 * medians[key]), work.flop, work.nbytes)
        for key, work in works.items()
    }
