"""A step of a recommendation model on one device with two lanes, kernel by kernel, and who gets which table of many.

    dense inputs     -> bottom layers    -+
                                           +-> products of all pairs -> top layers -> score
    looked-up rows, summed by table      -+

Small batches keep the device waiting for the host, which launches several dozen kernels; large ones do not. What adding
up kernels leaves out is the host, so it errs most where batches are small.

    products                  max(FLOP / peak, bytes / memory_rate)
    element by element        the same; 8 to 16 bytes an element
    look-ups                  `geartrain.cost.lookup`
    every kernel              FIXED more

Source: Lin and others, 2024, arXiv 2404.12674, and 2022, arXiv 2201.07821: formulas and constants of the authors' code
(owensgroup/ml_perf_model). Products are fitted nets there and a roofline here. Sizes of caches and warps are recalled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from geartrain.cost.compute import Launch
from geartrain.cost.lanes import Fronts
from geartrain.cost.lookup import lookup_seconds
from geartrain.errors import UnknownName
from geartrain.workload.spec import Lookup

FIXED = 5e-6
"""Seconds that every kernel takes whatever its size."""

_WARPS = 64  # resident on a processor


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A device by measured peaks: FLOP and bytes per second, bytes, processors."""

    peak: float
    memory_rate: float
    cache_rate: float
    cache: int
    processors: int
    host_rate: float = 8.1e9


CHIPS: Mapping[str, Chip] = {
    "a100": Chip(peak=15.027e12, memory_rate=1391e9, cache_rate=2271e9, cache=40 << 20, processors=108),
    "v100": Chip(peak=15.442e12, memory_rate=817e9, cache_rate=2847e9, cache=6 << 20, processors=80),
    "gv100": Chip(peak=13.036e12, memory_rate=601e9, cache_rate=2467e9, cache=6 << 20, processors=80, host_rate=5.0e9),
}


@dataclass(frozen=True, kw_only=True)
class Recommender:
    """A model: widths of the bottom layers from the dense inputs on, of the top layers, and the tables."""

    bottom: tuple[int, ...]
    top: tuple[int, ...]
    tables: tuple[Lookup, ...]


MODELS: Mapping[str, Recommender] = {
    "default": Recommender(
        bottom=(512, 512, 64),
        top=(1024, 1024, 1024, 1),
        tables=(Lookup(rows=1_000_000, width=64, per_sample=100),) * 8,
    ),
    "ddp": Recommender(
        bottom=(128, 128, 128, 128),
        top=(512, 512, 512, 256, 1),
        tables=(Lookup(rows=80_000, width=128, per_sample=100),) * 8,
    ),
}
"""Look-ups of "ddp" are not known; those of "default" are taken."""


# Kernels


def product(chip: Chip, m: int, n: int, k: int, count: int = 1) -> float:
    """Seconds of `count` products of (m, k) and (k, n)."""
    return count * max(2 * m * n * k / chip.peak, 4 * (m * k + k * n + m * n) / chip.memory_rate)


def elementwise(chip: Chip, numel: float, nbytes: float, flop: float = 1.0) -> float:
    """Seconds of an operation on every element; bytes and FLOP of one."""
    return max(numel * flop / chip.peak, numel * nbytes / chip.memory_rate)


def look_up(chip: Chip, tables: Sequence[Lookup], samples: int, *, backward: bool = False) -> float:
    """Seconds of looking up, and summing, rows of tables alike; backward reads and writes them.

    As many tables share the cache as the resident warps, one for each sample, are at work on.
    """
    one, moves = tables[0], 2 if backward else 1
    at_once = math.ceil(chip.processors * _WARPS / samples)
    beside = 96 + 32 * math.ceil(4 * one.per_sample / 32) + 32 * math.ceil(4 * one.width / 32)
    return (len(tables) * moves) * lookup_seconds(
        one,
        samples,
        cache=chip.cache // at_once,
        cache_rate=chip.cache_rate,
        memory_rate=chip.memory_rate,
        rest=samples * beside / moves,
    )


def kernels(model: Recommender, chip: Chip, samples: int) -> Iterator[float]:
    """Seconds of all kernels of a step, in order: forward, backward, update."""
    features, width = len(model.tables) + 1, model.tables[0].width
    pairs = features * (features - 1) // 2
    top = (width + pairs, *model.top)
    yield from _forward(model.bottom, chip, samples)
    yield look_up(chip, model.tables, samples)
    yield elementwise(chip, samples * features * width, 8)  # side by side
    yield product(chip, features, features, width, samples)
    yield elementwise(chip, samples * pairs, 8)  # each pair once
    yield elementwise(chip, samples * top[0], 8)
    yield from _forward(top, chip, samples)
    yield elementwise(chip, samples, 12)  # loss
    yield elementwise(chip, samples, 12)
    yield from _backward(top, chip, samples)
    yield elementwise(chip, samples * top[0], 8)
    yield elementwise(chip, samples * pairs, 8)
    yield product(chip, features, width, features, samples)
    yield product(chip, features, width, features, samples)
    yield elementwise(chip, samples * features * width, 12)
    yield elementwise(chip, samples * features * width, 8)
    yield look_up(chip, model.tables, samples, backward=True)
    yield from _backward(model.bottom, chip, samples)
    for inputs, outputs in (*pairwise(model.bottom), *pairwise(top)):
        yield elementwise(chip, inputs * outputs, 12)
        yield elementwise(chip, outputs, 12)


def _forward(widths: Sequence[int], chip: Chip, samples: int) -> Iterator[float]:
    for inputs, outputs in pairwise(widths):
        yield product(chip, samples, outputs, inputs)
        yield elementwise(chip, samples * outputs, 8)


def _backward(widths: Sequence[int], chip: Chip, samples: int) -> Iterator[float]:
    for inputs, outputs in reversed([*pairwise(widths)]):
        yield elementwise(chip, samples * outputs, 12)
        yield product(chip, inputs, outputs, samples)
        yield product(chip, samples, inputs, outputs)
        yield elementwise(chip, samples * outputs, 4)  # gradient of the bias


# A step


def step(model: Recommender, chip: Chip, samples: int, host: float) -> tuple[float, float]:
    """Seconds until both lanes are done, and of the kernels alone.

    Args:
        host: seconds that the host takes for each kernel.
    """
    times = [seconds + FIXED for seconds in kernels(model, chip, samples)]
    lanes = Fronts()
    indices = sum(table.per_sample for table in model.tables)
    inputs = 4 * samples * (model.bottom[0] + indices) / chip.host_rate
    lanes.run(Launch(host, inputs, blocks=True))
    for seconds in times:
        lanes.run(Launch(host, seconds))
    return max(lanes.host, lanes.device), sum(times) + inputs


def kernels_error(*, model: str, chip: str, samples: int, fitted_samples: int, fitted_error: float) -> float:
    """What adding up kernels errs by, relative to the step with its host.

    Args:
        fitted_samples, fitted_error: the batch at which that error is known; the host's seconds are fitted on it.
    """
    host = _fit_host(model, chip, fitted_samples, fitted_error)
    return _error(model, chip, samples, host)


def _error(model: str, chip: str, samples: int, host: float) -> float:
    if model not in MODELS:
        raise UnknownName("recommender", model, MODELS)
    if chip not in CHIPS:
        raise UnknownName("device with measured peaks", chip, CHIPS)
    seconds, alone = step(MODELS[model], CHIPS[chip], samples, host)
    return alone / seconds - 1


@lru_cache
def _fit_host(model: str, chip: str, samples: int, error: float) -> float:
    low, high = 0.0, 1e-3
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if _error(model, chip, samples, middle) > error else (low, middle)
    return (low + high) / 2


# Tables on ranks

SHARDERS: Mapping[str, Callable[[Lookup], float]] = {
    "size_greedy": lambda table: table.rows * table.width,
    "lookup_greedy": lambda table: table.per_sample * table.width,
    "norm_lookup_greedy": lambda table: table.per_sample * table.width / table.rows,
    "size_lookup_greedy": lambda table: table.per_sample * table.width * math.log10(table.rows),
}
"""What a table costs; the most expensive one goes to the rank that has least, and so on."""


def shard(tables: Sequence[Lookup], ranks: int, by: str) -> list[list[Lookup]]:
    """The tables of each rank: by a greedy rule, or "naive" (in turn) or "naive_chunk" (as many in a row for each)."""
    if by == "naive":
        return [list(tables[rank::ranks]) for rank in range(ranks)]
    if by == "naive_chunk":
        cuts = [len(tables) * rank // ranks for rank in range(ranks + 1)]
        return [list(tables[begin:end]) for begin, end in pairwise(cuts)]
    if by not in SHARDERS:
        raise UnknownName("sharder", by, ("naive", "naive_chunk", *SHARDERS))
    cost, dealt = SHARDERS[by], [list[Lookup]() for _ in range(ranks)]
    loads = [0.0] * ranks
    for table in sorted(tables, key=cost, reverse=True):
        least = loads.index(min(loads))
        dealt[least].append(table)
        loads[least] += cost(table)
    return dealt


def exchanged_bytes(dealt: Sequence[Sequence[Lookup]], samples: int) -> float:
    """Bytes that decide an all-to-all of looked-up rows: the most that a rank sends or receives.

    Args:
        dealt: the tables of each rank.
        samples: global; each rank gets an equal part of every rank's rows.
    """
    ranks = len(dealt)
    owned = [4.0 * samples / ranks * sum(table.width for table in tables) for tables in dealt]  # for each peer
    return max(max(sum(owned) - mine, mine * (ranks - 1)) for mine in owned)
