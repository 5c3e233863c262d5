"""Partition, replication and mapping by dynamic programming (the PRM of SPP).

Devices stand in an order, stages are stretches of the model on stretches of that order. W(l, x, r, i) is what the first
l parts cost in x stages on the first i devices, the last stage on the last r of them:

    C(l, x, r, i) = max(C(l', x - 1, r', i - r), channel at l', work of parts l'+1..l on r devices)
    A(l, x, r, i) = max(A(l', x - 1, r', i - r), sum of those parts' gradients over r devices)
    plan          = the one of least M C + A;   l = all parts, i <= all devices, any r

Each W holds all pairs (C, A) of which none is worse in both: C and A only grow as stages are added, so a worse pair
never becomes a better plan, and the search is exact for the objective M C + A.

Paper: Luo and others, 2022, arXiv 2204.10562; recalled. Chosen here: the pairs, in place of a search for each A.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from geartrain.errors import StrategyError
from geartrain.parallel.list_order import Channel
from geartrain.parallel.ordering import Rates
from geartrain.parallel.partition import Plan, Stage


class Prices(Protocol):
    """What stages and channels take for one micro-batch, in seconds."""

    @property
    def num_parts(self) -> int:
        """Of the model."""
        ...

    @property
    def num_devices(self) -> int:
        """Of the cluster."""
        ...

    @property
    def duplex(self) -> bool:
        """Whether a channel carries both directions at a time."""
        ...

    def work(self, parts: range, ranks: tuple[int, ...]) -> tuple[float, float]:
        """Forward and backward of some parts on devices that share a micro-batch."""
        ...

    def channel(self, cut: int, senders: tuple[int, ...], receivers: tuple[int, ...]) -> Channel:
        """What lies between part `cut - 1` and part `cut`."""
        ...

    def gradient_sum(self, parts: range, ranks: tuple[int, ...]) -> float:
        """Of the gradients of some parts over the devices, once per iteration."""
        ...

    def fits(self, parts: range, ranks: tuple[int, ...]) -> bool:
        """Whether so many devices can share a micro-batch and have the memory."""
        ...


@dataclass(frozen=True)
class UniformPrices:
    """Prices as the paper has them: equal devices, and work that is divided by the number of replicas.

        P_n = sum of p / r,   c = d / (r r' min b(v, v')),   A = 2 (r - 1)/r sum of alpha / min b within the stage

    Args:
        forward, backward: seconds of each part for a micro-batch on one device.
        activations, gradients: bytes that a micro-batch hands over, forward and back, at each cut.
        parameters: bytes of each part.
        rates: bytes per second between devices.
        duplex: a channel carries both directions at a time.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    activations: Sequence[float]
    gradients: Sequence[float]
    parameters: Sequence[float]
    rates: Rates
    duplex: bool = False

    @property
    def num_parts(self) -> int:
        return len(self.forward)

    @property
    def num_devices(self) -> int:
        return len(self.rates)

    def work(self, parts: range, ranks: tuple[int, ...]) -> tuple[float, float]:
        return (
            sum(self.forward[part] for part in parts) / len(ranks),
            sum(self.backward[part] for part in parts) / len(ranks),
        )

    def channel(self, cut: int, senders: tuple[int, ...], receivers: tuple[int, ...]) -> Channel:
        rate = len(senders) * len(receivers) * min(self.rates[a][b] for a in senders for b in receivers)
        return Channel(self.activations[cut - 1] / rate, self.gradients[cut - 1] / rate)

    def gradient_sum(self, parts: range, ranks: tuple[int, ...]) -> float:
        if len(ranks) == 1:
            return 0.0
        rate = min(self.rates[a][b] for a in ranks for b in ranks if a != b)
        return 2 * (len(ranks) - 1) / len(ranks) * sum(self.parameters[part] for part in parts) / rate

    def fits(self, parts: range, ranks: tuple[int, ...]) -> bool:
        return True


@dataclass(frozen=True)
class _Found:
    """A way to lay the first parts on the first devices: its C and A, its last stage, and what comes before."""

    bottleneck: float
    gradient_sum: float
    parts: range
    ranks: tuple[int, ...]
    before: _Found | None

    def stages(self) -> tuple[Stage, ...]:
        last = Stage(parts=(len(self.parts),), ranks=tuple(sorted(self.ranks)))
        return (*(self.before.stages() if self.before else ()), last)


def partition(
    prices: Prices,
    order: Sequence[int],
    num_stages: int,
    num_micro_batches: int,
    *,
    replicate: bool = True,
    idle: bool = True,
) -> tuple[Plan, float]:
    """PRM: the plan of so many stages that takes least, by M C + A, and that number.

    Args:
        order: of the devices, see `geartrain.parallel.ordering`.
        replicate: several devices may share a stage.
        idle: devices at the end of the order may stay without a stage.

    StrategyError where there is none.
    """
    search = _Search(prices, order, replicate)
    used = range(num_stages if idle else len(order), len(order) + 1)
    found = [one for devices in used for one in search.best(prices.num_parts, num_stages, devices)]
    if not found:
        raise StrategyError(
            f"a model of {prices.num_parts} part(s) cannot be laid on {prices.num_devices} device(s) in {num_stages} "
            "stage(s): each needs a part, a device with the memory, and a sample per device in every micro-batch"
        )
    objective = [num_micro_batches * one.bottleneck + one.gradient_sum for one in found]
    index = objective.index(min(objective))
    return Plan(found[index].stages()), objective[index]


class _Search:
    def __init__(self, prices: Prices, order: Sequence[int], replicate: bool) -> None:
        self._prices, self._order, self._replicate = prices, tuple(order), replicate
        self._last = functools.cache(self._last_stages)
        self._channel = functools.cache(prices.channel)
        self._stage = functools.cache(self._priced)

    def best(self, parts: int, stages: int, devices: int) -> list[_Found]:
        """W(parts, stages, r, devices) for all r."""
        return [one for r in self._replicas(devices) for one in self._last(parts, stages, r, devices)]

    def _replicas(self, devices: int) -> range:
        return range(1, devices + 1) if self._replicate else range(1, min(1, devices) + 1)

    def _last_stages(self, parts: int, stages: int, replicas: int, devices: int) -> list[_Found]:
        ranks, left = self._order[devices - replicas : devices], devices - replicas
        if stages == 1:
            if left:
                return []
            priced = self._stage(range(parts), ranks)
            return [_Found(*priced, range(parts), ranks, None)] if priced else []
        found = []
        for cut in range(stages - 1, parts):
            priced = self._stage(range(cut, parts), ranks)
            if priced is None or left < stages - 1:
                continue
            work, summed = priced
            for before in self.best(cut, stages - 1, left):
                channel = self._channel(cut, before.ranks, ranks)
                one = max if self._prices.duplex else lambda *both: sum(both)
                most = max(before.bottleneck, one(channel.forward, channel.backward), work)
                found.append(_Found(most, max(before.gradient_sum, summed), range(cut, parts), ranks, before))
        return _undominated(found)

    def _priced(self, parts: range, ranks: tuple[int, ...]) -> tuple[float, float] | None:
        """Work and sum of a stage; None where it does not fit."""
        if not self._prices.fits(parts, ranks):
            return None
        return sum(self._prices.work(parts, ranks)), self._prices.gradient_sum(parts, ranks)


def _undominated(found: Sequence[_Found]) -> list[_Found]:
    """Those that no other one beats in C and A; of equal ones the first."""
    kept: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.bottleneck, one.gradient_sum)):
        if not kept or one.gradient_sum < kept[-1].gradient_sum:
            kept.append(one)
    return kept


def even_pieces(work: Sequence[float], count: int) -> tuple[int, ...]:
    """How many parts each of `count` contiguous pieces has, so that the one with most work has least."""
    if count > len(work):
        raise StrategyError(f"a model of {len(work)} part(s) cannot be cut into {count} pieces")

    @functools.cache
    def best(parts: int, pieces: int) -> tuple[float, tuple[int, ...]]:
        if pieces == 1:
            return sum(work[:parts]), (parts,)
        options = []
        for cut in range(pieces - 1, parts):
            most, sizes = best(cut, pieces - 1)
            options.append((max(most, sum(work[cut:parts])), (*sizes, parts - cut)))
        return min(options)

    return best(len(work), count)[1]
