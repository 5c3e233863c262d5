"""The whole of it: measure on all ranks, fit a cluster, and hold it against the collectives that were measured.

    devices -> pairs -> topology -> collectives -> cluster with origins -> the same collectives, simulated on it
                                    (of one host: what its ranks take from each other, too)

Source: the interconnect part of Ren, Yoo and Hoisie, "Performance Analysis of Deep Learning Workloads on Leading-edge
Systems" (2019, arXiv 1905.08764): collectives by size, told as bus bandwidth. Differs from the paper: they measured
all-reduce and broadcast by NCCL's tests from 1 MB to 1 GB, and fitted nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from geartrain.calibration.collectives import TimeCollectives, asks, joined
from geartrain.calibration.description import Found, describe, written
from geartrain.calibration.devices import MEASURED_TYPES, DeviceRates, TimeDevices
from geartrain.calibration.effort import EXACT, Effort
from geartrain.calibration.fit import ANY, fit_machines, fit_pairs, tolerance_for
from geartrain.calibration.pairs import Pair, PairTimes, TimePairs, TimeTogether, all_pairs, first_pairs, ways
from geartrain.calibration.site import InOrder, Site
from geartrain.calibration.surroundings import Surroundings, look_around
from geartrain.calibration.together import TimeSharing, curve_asks, curves, joined_sharing
from geartrain.cluster.fields import DataType
from geartrain.cluster.measured import CollectiveTime
from geartrain.cluster.spec import Cluster
from geartrain.engines.simulated import SimulatedEngine

Stage = Callable[[str], AbstractContextManager[object]]
"""Is entered while something is done; the text says what."""


@dataclass(frozen=True)
class Prediction:
    """A collective as it was measured, and as the simulated engine has it on the fitted cluster."""

    measured: CollectiveTime
    simulated: float

    @property
    def error(self) -> float:
        """Of the simulated time, relative to the measured one."""
        return self.simulated / self.measured.time - 1 if self.measured.time else 0.0

    @property
    def error_of_least(self) -> float:
        """The same, relative to the least of the repeats, which a busy host has delayed least."""
        return self.simulated / self.measured.least - 1 if self.measured.least else 0.0


@dataclass(frozen=True)
class Calibration:
    """What came of it.

    Attributes:
        cluster: with origins and what was measured.
        predictions: for each collective and size.
        notes: what a reader of the numbers must know.
    """

    cluster: Cluster
    predictions: tuple[Prediction, ...]
    notes: tuple[str, ...]


def calibrate(
    site: Site, *, sizes: Sequence[int], effort: Effort, name: str, given: Cluster | None, stage: Stage
) -> Calibration:
    """Measure a site and describe it as a cluster. Every process of the site calls it, with the same arguments.

    Args:
        sizes: of collectives, bytes.
        effort: how much is measured; `EXACT` for a virtual clock.
        name: of the cluster that comes out.
        given: the cluster that an engine emulates or simulates, if any.
        stage: told what is being done.
    """
    with stage("devices"):
        results = site.run(InOrder((look_around, TimeDevices(effort, _types(site, given)))))
    around: list[Surroundings] = [one for one, _ in results]
    devices: list[DeviceRates] = [rates for _, rates in results]
    found = Found(site, around, devices, given)
    if site.num_ranks > 1:
        with stage("pairs of ranks, one at a time"):
            _measure_pairs(found, effort)
        with stage(f"collectives of {len(sizes)} size(s)"):
            asked = asks(sizes, site.num_ranks)
            found.collectives = joined(site.run(TimeCollectives(asked, effort)))
            if found.loopback:
                _measure_sharing(found, effort)
    cluster = describe(found, name)
    predictions: tuple[Prediction, ...] = ()
    if found.collectives:
        with stage("the same collectives, simulated on the fitted cluster"):
            predictions = predict(cluster)
    return Calibration(cluster, predictions, found.notes())


def predict(cluster: Cluster) -> tuple[Prediction, ...]:
    """The times that the simulated engine has, on a cluster, for the collectives that were measured of it.

    By its links: curves say what an all-reduce adds to computing, which is more than it takes after a barrier.
    """
    measured = cluster.measured
    if measured is None or not measured.collectives:
        return ()
    links = cluster.model_copy(update={"measured": None})
    program = TimeCollectives(tuple((one.kind, one.size) for one in measured.collectives), EXACT)
    record = SimulatedEngine().run(program, links, workers=measured.ranks, meta=True)
    simulated = joined(record.results)
    return tuple(Prediction(one, other.time) for one, other in zip(measured.collectives, simulated, strict=True))


def _measure_sharing(found: Found, effort: Effort) -> None:
    """What ranks of one host take from each other, and the curve of their all-reduces."""
    site = found.site
    results = site.run(TimeSharing(curve_asks(effort, site.num_ranks), effort))
    found.curves = curves(joined([times for times, _ in results]), site.num_ranks)
    found.sharing = (joined_sharing([shared for _, shared in results]),)


def _types(site: Site, given: Cluster | None) -> tuple[DataType, ...]:
    """Those that are measured: of a virtual clock those that the cluster has a rate for, else all."""
    if not site.exact or given is None:
        return MEASURED_TYPES
    known = {name for group in given.nodes for name in group.device.flops}
    return tuple(name for name in MEASURED_TYPES if name in known)


def _measure_pairs(found: Found, effort: Effort) -> None:
    """Some pairs at first; the rest as well, if those are not as alike as a star has them."""
    site = found.site
    times = _time_pairs(site, first_pairs(site.num_ranks), effort)
    _fit(found, times, effort)
    if found.fit is None:
        rest = tuple(pair for pair in all_pairs(site.num_ranks) if pair not in times)
        times.update(_time_pairs(site, rest, effort))
        _fit(found, times, effort)


def _time_pairs(site: Site, pairs: Sequence[Pair], effort: Effort) -> dict[Pair, PairTimes]:
    return {pair: one for times in site.run(TimePairs(pairs, effort)) for pair, one in times.items()}


def _fit(found: Found, times: dict[Pair, PairTimes], effort: Effort) -> None:
    site, nodes = found.site, found.around[0].nodes
    found.ways = ways(times)
    found.tolerance = ANY if found.loopback else tolerance_for(found.ways, site.exact)

    def rounded(value: float) -> float:
        return written(value, site.exact)

    def share_wire() -> bool:
        per_node = nodes.count(nodes[0])
        pair = (0, per_node)
        size = times[pair].size if pair in times else max(one.size for one in times.values())
        results = site.run(TimeTogether(pair, (1, per_node + 1), size, effort))
        alone, together = next(one for one in results if one is not None)
        return bool(together > 1.5 * alone)

    machines = fit_machines(found.ways, nodes, found.tolerance, rounded, share_wire)
    found.fit = machines or fit_pairs(found.ways, site.num_ranks, found.tolerance, rounded)
