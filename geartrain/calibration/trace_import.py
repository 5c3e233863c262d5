"""A profile from a trace of `torch.profiler`: what kernels took, and what the host needs around them.

    operations    the outermost that is no composition of others ("aten::addmm", not "aten::linear"), views left out
    kernels       what was launched inside of it; of a trace without kernels (a CPU's) the operation itself
    between  T1   from an operation's end to the next one's begin, gaps of 200 us and more left out
    before   T2   from its begin to its first launch;   after  T3   from its last launch to its end
    launch   T4   a launch;                             inside T5   from one launch in it to the next

Means of what lies within 1.5 interquartile ranges of the quartiles. The profiler's own cost is taken off: 2 us for each
event inside of an interval, 2 + 4 us of a launch.

Source: Lin et al. (2024, arXiv 2404.12674), overheads of the authors' code. Differs from it: operations are those that
`Work` names, so that what a wrapper takes counts as between.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from geartrain.calibration.kernel_fits import Error, Product, error_of, fit_curve, fit_product
from geartrain.cluster.spec import Device
from geartrain.cost.curves import ProductFit, TimeCurve
from geartrain.cost.kernel_class import KernelClass, kernel_class
from geartrain.cost.profile import Overheads, Profile
from geartrain.errors import ConfigurationError
from geartrain.torch_private import is_composed

_CPU_EVENT, _GPU_EVENT = 2.0, 4.0  # microseconds of the profiler, given by the source
_LONGEST_GAP = 200.0
_DEVICE_EVENTS = {"kernel", "gpu_memcpy", "gpu_memset"}
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_FEWEST = 5  # products from which a fit is made
_SIZES = {"float": 4, "double": 8, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "int": 4, "bool": 1}
_ARITHMETIC = {"double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}


@dataclass
class _Operation:
    """One operation of the trace; microseconds."""

    base: str
    begin: float
    end: float
    dims: Sequence[Sequence[int]]
    types: Sequence[str]
    launches: list[tuple[float, float]] = field(default_factory=list)
    kernels: list[float] = field(default_factory=list)

    @property
    def nbytes(self) -> float:
        """Of what goes in, and once more of the largest, for what comes out."""
        sizes = [
            math.prod(dims) * _SIZES.get(kind, 4)
            for dims, kind in zip(self.dims, self.types, strict=False)
            if kind in _SIZES and dims
        ]
        return float(sum(sizes) + max(sizes, default=0))

    def product(self) -> tuple[float, float, float, float] | None:
        """(m, n, k, count) of a matrix product."""
        factors = [dims for dims in self.dims if len(dims) >= 2][-2:]
        if self.base not in ("mm", "addmm", "bmm", "baddbmm") or len(factors) < 2:
            return None
        one, other = factors
        return one[-2], other[-1], one[-1], math.prod(one[:-2])

    @property
    def dtype(self) -> str:
        return next((_ARITHMETIC[kind] for kind in self.types if kind in _ARITHMETIC), "fp32")


def profile_from_trace(path: Path, *, device: Device, name: str) -> Profile:
    """Read a trace that `torch.profiler` exported with shapes.

    Args:
        path: of the Chrome trace (JSON); of several steps, the first of which should be left out when it is taken.
        device: what ran, with its peaks; they price what the trace has no kernel of.
        name: of the profile.

    Raises ConfigurationError for a file that is no such trace, or that has no shapes.
    """
    events = _events(path)
    operations, starts = _operations(events)
    _launch(events, operations)
    queued = any(operation.kernels for operation in operations)
    timed = [one for one in operations if one.nbytes and (one.kernels or not queued)]
    if not timed:
        raise ConfigurationError(
            f"{str(path)!r} has no operations with shapes; take the trace with profile(..., record_shapes=True)"
        )
    fits, curves, errors = _fitted(timed, queued)
    found = f"measured: trace {path.name}, {len(timed)} operations"
    return Profile(
        name=name,
        host=device.name,
        date="",
        num_threads=0 if queued else 1,
        source=f"imported from a trace of torch.profiler, {path.name}",
        device=device,
        queued=queued,
        curves=curves,
        fits=fits,
        overheads=_overheads(operations, starts, queued),
        errors=errors,
        origins={"device": "given", **dict.fromkeys(("curves", "fits", "overheads", "errors"), found)},
    )


def _events(path: Path) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        events = data["traceEvents"] if isinstance(data, dict) else data
        return [event for event in events if event.get("ph") == "X"]
    except OSError as error:
        raise ConfigurationError(f"no trace can be read from {str(path)!r}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{str(path)!r} is no trace of torch.profiler ({error}); write one with export_chrome_trace"
        ) from error


@cache
def _kind(base: str) -> str:
    """ "own", "composed" of other operations, or "view"."""
    packet = getattr(torch.ops.aten, base, None)
    if packet is None:
        return "own"
    funcs = [getattr(packet, overload) for overload in packet.overloads()]
    if funcs[0].is_view:
        return "view"
    return "composed" if is_composed(funcs[0].name()) else "own"


def _operations(events: Iterable[Mapping[str, Any]]) -> tuple[list[_Operation], dict[Any, list[float]]]:
    """Outermost operations that are their own, in order of thread and time; and begins of all events, by thread."""
    found: list[_Operation] = []
    starts: dict[Any, list[float]] = defaultdict(list)
    ends: dict[Any, float] = {}
    rows = [event for event in events if event.get("cat") == "cpu_op"]
    for event in sorted(rows, key=lambda one: (str(one.get("tid")), float(one["ts"]), -float(one.get("dur", 0)))):
        thread, begin = event.get("tid"), float(event["ts"])
        starts[thread].append(begin)
        space, _, base = str(event["name"]).partition("::")
        if space != "aten" or begin < ends.get(thread, -math.inf) or _kind(base) == "composed":
            continue
        ends[thread] = begin + float(event.get("dur", 0))
        if _kind(base) == "own":
            given = event.get("args", {})
            dims = [
                one if isinstance(one, list) and all(isinstance(i, int) for i in one) else []
                for one in given.get("Input Dims", [])
            ]
            found.append(_Operation(base, begin, ends[thread], dims, given.get("Input type", [])))
    return found, starts


def _launch(events: Iterable[Mapping[str, Any]], operations: Sequence[_Operation]) -> None:
    """Give each operation the launches inside of it and the kernels that they started."""
    ordered = sorted(operations, key=lambda one: one.begin)
    begins = [one.begin for one in ordered]
    owners: dict[Any, _Operation] = {}
    for event in events:
        starts_kernel = "Launch" in event["name"] or event["name"].startswith("cudaMemcpy")
        if event.get("cat") in _LAUNCHES and starts_kernel:
            begin = float(event["ts"])
            place = bisect.bisect_right(begins, begin) - 1
            if place >= 0 and begin <= ordered[place].end:
                ordered[place].launches.append((begin, begin + float(event["dur"])))
                owners[event["args"].get("correlation")] = ordered[place]
    for event in events:
        owner = owners.get(event.get("args", {}).get("correlation")) if event.get("cat") in _DEVICE_EVENTS else None
        if owner is not None:
            owner.kernels.append(float(event["dur"]))


# --- what kernels took ---------------------------------------------------------------------------------------------


def _fitted(
    timed: Sequence[_Operation], queued: bool
) -> tuple[dict[str, ProductFit], dict[KernelClass, TimeCurve], dict[KernelClass, Error]]:
    points: dict[KernelClass, list[tuple[float, float]]] = defaultdict(list)
    products: dict[str, list[Product]] = defaultdict(list)
    for one in timed:
        seconds = 1e-6 * (sum(one.kernels) if queued else max(0.1, one.end - one.begin - _CPU_EVENT))
        extents = one.product()
        if extents is None:
            points[kernel_class(f"aten.{one.base}.default")].append((one.nbytes, seconds))
        else:
            products[f"product/{one.dtype}"].append(Product(*extents, seconds))
            points["product"].append((one.nbytes, seconds))
    fits = {key: fit_product(_fit_part(rows)) for key, rows in products.items() if len(rows) >= _FEWEST}
    curves = {kind: fit_curve(_fit_part(rows)) for kind, rows in points.items()}
    errors = {
        kind: error_of((curves[kind].seconds(nbytes), seconds) for nbytes, seconds in rows[4::5])
        for kind, rows in points.items()
        if len(curves[kind].points) > 1
    }
    for key, fit in fits.items():
        errors["product"] = error_of((fit.seconds(p.m, p.n, p.k, p.count), p.seconds) for p in products[key][4::5])
    return fits, curves, errors


def _fit_part(rows: Sequence[Any]) -> list[Any]:
    return [row for index, row in enumerate(rows) if index % 5 != 4]


# --- what the host needs -------------------------------------------------------------------------------------------


def filtered_mean(values: Iterable[float]) -> float:
    """Mean of what lies within 1.5 interquartile ranges of the quartiles; what is negative counts as zero."""
    kept = sorted(max(0.0, value) for value in values)
    if len(kept) < 4:
        return statistics.fmean(kept) if kept else 0.0
    first, _, third = statistics.quantiles(kept, n=4, method="inclusive")
    reach = 1.5 * (third - first)
    return statistics.fmean(value for value in kept if first - reach <= value <= third + reach)


def _overheads(operations: Sequence[_Operation], starts: Mapping[Any, list[float]], queued: bool) -> Overheads:
    all_starts = sorted(begin for each in starts.values() for begin in each)

    def less_events(begin: float, end: float) -> float:
        """Of an interval, without what the profiler took for the events that begin inside of it."""
        inside = bisect.bisect_left(all_starts, end) - bisect.bisect_right(all_starts, begin)
        return end - begin - _CPU_EVENT * inside

    gaps = [less_events(one.end, other.begin) for one, other in itertools.pairwise(operations)]
    between = filtered_mean(gap for gap in gaps if 0 <= gap < _LONGEST_GAP)
    before: dict[str, list[float]] = defaultdict(list)
    after: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, list[float]] = defaultdict(list)
    launches: list[float] = []
    for one in operations if queued else ():
        if not one.launches:
            inside[one.base].append(less_events(one.begin, one.end))
            continue
        before[one.base].append(less_events(one.begin, one.launches[0][0]))
        after[one.base].append(less_events(one.launches[-1][1], one.end))
        pairs = itertools.pairwise(one.launches)
        inside[one.base] += [less_events(last[1], following[0]) for last, following in pairs]
        launches += [end - begin - _CPU_EVENT - _GPU_EVENT for begin, end in one.launches]
    return Overheads(
        between=between * 1e-6,
        before=_means(before),
        after=_means(after),
        inside=_means(inside),
        launch=filtered_mean(launches) * 1e-6,
    )


def _means(values: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Seconds by the full names of the operations, and over all of them under "default"."""
    means = {base: filtered_mean(each) * 1e-6 for base, each in values.items() if each}
    everything = [value for each in values.values() for value in each]
    named = {f"aten.{base}.{overload}": seconds for base, seconds in means.items() for overload in _overloads(base)}
    return {"default": filtered_mean(everything) * 1e-6, **named} if everything else {}


def _overloads(base: str) -> list[str]:
    packet = getattr(torch.ops.aten, base, None)
    return [name for name in packet.overloads() if "out" not in name] if packet else ["default"]
