"""What ranks of one host take from each other: its cores and memory while all compute, and while a collective runs.

    slowdown    = seconds of a round of computing, all ranks at once / seconds of a round, one rank alone
    all-reduce  = seconds of a round with an all-reduce after it, of the slowest rank - a round, all ranks at once
    steals      = 1 - (rounds while all-reduces run, all ranks computing / rounds of that time without them)

A round takes a few milliseconds, so that an all-reduce finds what it finds in a step: ranks that come at different
moments, caches full of other things, and a core that has gone to sleep or to another rank. One after another without
computing they are several times as fast. Means, not medians, of rounds without collectives: where there are more ranks
than cores most operations are undisturbed and a few wait for a core.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.calibration.collectives import Ask, Times, agreed_repeats, prepared
from geartrain.calibration.effort import Effort, KiB, MiB
from geartrain.cluster.measured import CollectiveCurve, CollectiveTime, Sharing
from geartrain.cost.collective_curve import fit_curve
from geartrain.errors import ConfigurationError
from geartrain.runtime.context import Context

_ROWS, _PRODUCTS = 256, 5  # of a round; chosen, as are the following
_SUMMED, _SUMS = 256 * KiB, 30
_REDUCED = 4 * MiB
_SHORTEST = 1e-6  # seconds
_SMALLEST, _LARGEST = KiB, 64 * MiB


def curve_asks(effort: Effort, num_ranks: int) -> tuple[Ask, ...]:
    """All-reduces of sizes that double, each a whole number of elements for every rank."""
    size, asked = _SMALLEST * num_ranks, []
    while size <= min(_LARGEST, effort.largest):
        asked.append(size)
        size *= 2
    return tuple(("all_reduce", one) for one in asked)


def curves(times: Sequence[CollectiveTime], num_ranks: int) -> tuple[CollectiveCurve, ...]:
    """The curve of all-reduces, where enough sizes were measured."""
    try:
        return (fit_curve("all_reduce", num_ranks, times),)
    except ConfigurationError:
        return ()


@dataclass(frozen=True)
class TimeSharing:
    """Program of a rank. Returns what all-reduces add to its rounds, and (slowdown, steals).

    Args:
        asked: the all-reduces.
        effort: how much is measured.
    """

    asked: Sequence[Ask]
    effort: Effort

    def __call__(self, ctx: Context) -> tuple[Times, tuple[float, float]]:
        one = _round()
        before = self._alone(ctx, one)
        usual = self._mean(ctx, one, times=2)
        after = self._alone(ctx, one)
        added = {ask: self._added(ctx, one, prepared(ctx, *ask), usual) for ask in self.asked}
        return added, (2 * usual / (before + after), self._steals(ctx, one, usual))

    def _alone(self, ctx: Context, one: Callable[[], None]) -> float:
        """Mean seconds of a round, one rank after another."""
        alone = 0.0
        for turn in range(ctx.num_workers):
            dist.barrier(group=ctx.workers)
            if turn == ctx.rank:
                alone = self._mean(ctx, one)
        dist.barrier(group=ctx.workers)
        return alone

    def _mean(self, ctx: Context, one: Callable[[], None], times: int = 1) -> float:
        """Mean seconds of a round, over the time that the effort allows."""
        one()
        begin, count = ctx.clock.now(), 0
        while count < 3 or ctx.clock.now() - begin < times * self.effort.seconds:
            one()
            count += 1
        return (ctx.clock.now() - begin) / count

    def _added(
        self, ctx: Context, one: Callable[[], None], collective: Callable[[], object], usual: float
    ) -> list[float]:
        def lasted() -> float:
            begin = ctx.clock.now()
            one()
            collective()
            return ctx.clock.now() - begin

        dist.barrier(group=ctx.workers)
        warm = [lasted() for _ in range(2)]
        num = agreed_repeats(ctx, self.effort, warm[-1])
        return [max(_SHORTEST, lasted() - usual) for _ in range(num)]

    def _steals(self, ctx: Context, one: Callable[[], None], usual: float) -> float:
        tensor = torch.ones(_REDUCED // 4)
        num = max(3, int(self.effort.seconds / 0.01))
        dist.barrier(group=ctx.workers)
        begin, count = ctx.clock.now(), 0
        for _ in range(num):
            work = dist.all_reduce(tensor, group=ctx.workers, async_op=True)
            while not work.is_completed():
                one()
                count += 1
        return 1 - count * usual / (ctx.clock.now() - begin)


def _round() -> Callable[[], None]:
    """Products, which need a core, and sums in its cache: a few milliseconds."""
    left, right, row = torch.ones(_ROWS, _ROWS), torch.ones(_ROWS, _ROWS), torch.ones(_SUMMED // 4)

    def one() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(left, right)
        for _ in range(_SUMS):
            torch.add(row, 1.0)

    return one


def joined_sharing(results: Sequence[tuple[float, float]]) -> Sharing:
    """The mean over the ranks, within what is possible."""
    slowdown, steals = (statistics.fmean(column) for column in zip(*results, strict=True))
    return Sharing(ranks=len(results), slowdown=max(1.0, slowdown), steals=min(max(steals, 0.0), 1.0))
