"""The topology that says what was measured between pairs, as simple as they allow.

    star      all pairs alike: one wire; else, where it explains every pair, some wires are different:
                  rate(a, b)    = min(up_a, down_b)           up_a = max_b rate(a, b), down_b = max_a rate(a, b)
                  latency(a, b) = (latency_a + latency_b) / 2
    matrix    a wire of its own for every pair

Two values are alike when they differ by less than the tolerance, relative to the usual one (the median). Where several
ranks share a machine, the wires inside machines and those between them are fitted one by one, if each is alike.

Limits: pairs were measured one at a time. A matrix and a star know nothing of what several messages would share behind
the wires: the uplink of a leaf switch, one host's memory. Collectives, which are measured as well, show it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from geartrain.calibration.pairs import Pair, Way
from geartrain.cluster.overrides import WireOverride
from geartrain.cluster.spec import Matrix, Star, Wire

Round = Callable[[float], float]


@dataclass(frozen=True)
class Tolerance:
    """How far values may lie from the usual one and count as alike, relative to it."""

    rate: float
    latency: float

    def text(self) -> str:
        """Of rates and latencies."""
        if self.rate < 0.001:
            return f"within {self.rate:.0e} and {self.latency:.0e} of the usual one"
        return f"within {self.rate:.0%} and {self.latency:.0%} of the usual one"


EXACT = Tolerance(1e-6, 1e-6)
REAL = Tolerance(0.05, 0.25)
"""The least for what a clock has measured; chosen."""
NOISY = Tolerance(0.25, 1.0)
"""The most, on a busy host; chosen."""
ANY = Tolerance(math.inf, math.inf)
"""Where all pairs are the same interface, whatever a busy host let each have."""


def tolerance_for(ways: Mapping[Pair, Way], exact: bool) -> Tolerance:
    """Of real measurements: the usual spread of the repeats of one pair, but between `REAL` and `NOISY`."""
    if exact:
        return EXACT
    rate = statistics.median(way.rate_spread for way in ways.values())
    latency = statistics.median(way.latency_spread for way in ways.values())
    return Tolerance(min(max(REAL.rate, rate), NOISY.rate), min(max(REAL.latency, latency), NOISY.latency))


@dataclass(frozen=True)
class Fit:
    """What was fitted.

    Attributes:
        topology, wires: for the cluster.
        any_number: all machines are alike, so that there may be as many of them as a run needs.
        devices_per_node: how many ranks a machine has.
        residual: the largest relative deviations of pairs (of the medians of machines') from it: (rate, latency).
    """

    topology: Star | Matrix
    wires: tuple[WireOverride, ...] = ()
    any_number: bool = False
    devices_per_node: int = 1
    residual: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class _Switched:
    wire: Wire
    overrides: tuple[WireOverride, ...]
    residual: tuple[float, float]


def fit_pairs(ways: Mapping[Pair, Way], num_ranks: int, tolerance: Tolerance, rounded: Round) -> Fit | None:
    """Ranks as machines of their own: a star, or a matrix; None when a star does not do and pairs are missing."""
    star = _fit_star(ways, num_ranks, tolerance, rounded)
    if star is not None:
        return Fit(Star(wire=star.wire), star.overrides, not star.overrides, residual=star.residual)
    if len(ways) < num_ranks * (num_ranks - 1):
        return None
    ranks = range(num_ranks)
    rate = tuple(tuple(None if a == b else rounded(ways[a, b].rate) for b in ranks) for a in ranks)
    latency = tuple(tuple(None if a == b else rounded(ways[a, b].latency) for b in ranks) for a in ranks)
    return Fit(Matrix(rate=rate, latency=latency))


def fit_machines(
    ways: Mapping[Pair, Way],
    nodes: tuple[int, ...],
    tolerance: Tolerance,
    rounded: Round,
    share_wire: Callable[[], bool],
) -> Fit | None:
    """Machines of several ranks each: a star with inner wires; None when pairs do not let themselves be told so.

    Args:
        nodes: the machine of each rank.
        share_wire: finds out whether two ranks of a machine share its wire outward; asked once the rest fits.
    """
    machines = tuple(dict.fromkeys(nodes))
    per_node = len(nodes) // len(machines)
    whole = tuple(machine for machine in machines for _ in range(per_node))
    if len(machines) < 2 or per_node < 2 or nodes != whole:
        return None
    inside = {pair: way for pair, way in ways.items() if nodes[pair[0]] == nodes[pair[1]]}
    inner = _alike(inside.values(), tolerance, rounded)
    between: dict[Pair, list[Way]] = {}
    for (a, b), way in ways.items():
        if nodes[a] != nodes[b]:
            between.setdefault((machines.index(nodes[a]), machines.index(nodes[b])), []).append(way)
    outer = {pair: _usual(group) for pair, group in between.items() if _alike(group, tolerance, rounded)}
    if inner is None or len(outer) < len(between):
        return None
    star = _fit_star(outer, len(machines), tolerance, rounded)
    if star is None:
        return None
    topology = Star(wire=star.wire, wire_per="node" if share_wire() else "device", inner=inner)
    return Fit(topology, star.overrides, not star.overrides, per_node, star.residual)


def _usual(ways: Iterable[Way]) -> Way:
    each = list(ways)
    return Way(statistics.median(way.latency for way in each), statistics.median(way.rate for way in each))


def _near(value: float, usual: float, tolerance: float) -> bool:
    return abs(value - usual) <= tolerance * usual


def _alike(ways: Iterable[Way], tolerance: Tolerance, rounded: Round) -> Wire | None:
    """The usual wire, if all are alike."""
    each = list(ways)
    usual = _usual(each)
    if all(
        _near(way.rate, usual.rate, tolerance.rate) and _near(way.latency, usual.latency, tolerance.latency)
        for way in each
    ):
        return Wire(rate=rounded(usual.rate), latency=rounded(usual.latency))
    return None


def _fit_star(ways: Mapping[Pair, Way], num: int, tolerance: Tolerance, rounded: Round) -> _Switched | None:
    wire = _alike(ways.values(), tolerance, rounded)
    if wire is not None:
        usual = {"up": wire.rate, "down": wire.rate, "latency": wire.latency}
        return _Switched(wire, (), _residual(ways, [usual] * num))
    latencies = _latencies(ways, num)
    ups = [max((way.rate for (a, _), way in ways.items() if a == node), default=0.0) for node in range(num)]
    downs = [max((way.rate for (_, b), way in ways.items() if b == node), default=0.0) for node in range(num)]
    if min(*ups, *downs) <= 0:
        return None
    wire = Wire(rate=rounded(statistics.median_high([*ups, *downs])), latency=rounded(statistics.median(latencies)))
    each = [_one_wire(*values, wire, tolerance, rounded) for values in zip(ups, downs, latencies, strict=True)]
    residual = _residual(ways, each)
    if residual[0] > tolerance.rate or residual[1] > tolerance.latency:
        return None
    overrides = tuple(override for node, one in enumerate(each) for override in _overrides(node, one, wire))
    return _Switched(wire, overrides, residual)


def _one_wire(
    up: float, down: float, latency: float, wire: Wire, tolerance: Tolerance, rounded: Round
) -> dict[str, float]:
    """A machine's wire: the usual one where it is near enough, and the same both ways where those are."""
    if _near(up, down, tolerance.rate):
        up = down = (up + down) / 2
    return {
        "up": wire.rate if _near(up, wire.rate, tolerance.rate) else rounded(up),
        "down": wire.rate if _near(down, wire.rate, tolerance.rate) else rounded(down),
        "latency": wire.latency if _near(latency, wire.latency, tolerance.latency) else rounded(latency),
    }


def _latencies(ways: Mapping[Pair, Way], num: int) -> list[float]:
    """The latency of each wire by least squares; of two, only the sum is known."""
    if num == 2:
        return [statistics.fmean(way.latency for way in ways.values())] * 2
    halves, seen = np.zeros((len(ways), num)), np.zeros(len(ways))
    for row, ((a, b), way) in enumerate(ways.items()):
        halves[row, a] = halves[row, b] = 0.5
        seen[row] = way.latency
    return [max(0.0, float(value)) for value in np.linalg.lstsq(halves, seen, rcond=None)[0]]


def _residual(ways: Mapping[Pair, Way], each: list[dict[str, float]]) -> tuple[float, float]:
    """The largest relative deviations of rates and latencies from what such wires give."""
    rates, latencies = [0.0], [0.0]
    for (a, b), way in ways.items():
        rate, latency = min(each[a]["up"], each[b]["down"]), (each[a]["latency"] + each[b]["latency"]) / 2
        rates.append(abs(rate / way.rate - 1))
        latencies.append(abs(latency - way.latency) / max(way.latency, 1e-12))
    return max(rates), max(latencies)


def _overrides(node: int, one: Mapping[str, float], wire: Wire) -> Iterable[WireOverride]:
    latency = None if one["latency"] == wire.latency else one["latency"]
    if one["up"] == one["down"]:
        rate = None if one["up"] == wire.rate else one["up"]
        if rate is not None or latency is not None:
            yield WireOverride(node=node, rate=rate, latency=latency)
        return
    if latency is not None:
        yield WireOverride(node=node, latency=latency)
    if one["up"] != wire.rate:
        yield WireOverride(node=node, direction="up", rate=one["up"])
    if one["down"] != wire.rate:
        yield WireOverride(node=node, direction="down", rate=one["down"])
