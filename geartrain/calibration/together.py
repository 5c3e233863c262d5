"""What ranks of one host take from each other: its cores and memory while all compute, and while a collective runs.

    slowdown = seconds of a pass, all ranks computing at once / seconds of a pass, one rank alone
    steals   = 1 - (passes while all-reduces run, all ranks computing / passes of that time without them)

Means, not medians: where there are more ranks than cores most operations are undisturbed and a few wait for a core. Two
kinds of passes count alike: a product, which needs a core, and a copy, which needs memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from geartrain.calibration.collectives import Ask
from geartrain.calibration.effort import Effort, KiB, MiB
from geartrain.cluster.measured import CollectiveCurve, CollectiveTime, Sharing
from geartrain.cost.collective_curve import fit_curve
from geartrain.errors import ConfigurationError
from geartrain.runtime.context import Context

_ROWS = 256  # of the product; chosen
_COPIED = 8 * MiB
_REDUCED = 4 * MiB
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
    """Program of a rank. Returns its slowdown and the share of communication that computing loses."""

    effort: Effort

    def __call__(self, ctx: Context) -> tuple[float, float]:
        left, right = torch.ones(_ROWS, _ROWS), torch.ones(_ROWS, _ROWS)
        source, target = torch.ones(_COPIED // 4), torch.ones(_COPIED // 4)
        passes: tuple[Callable[[], object], ...] = (lambda: torch.mm(left, right), lambda: target.copy_(source))
        slowdown = statistics.fmean(self._slowdown(ctx, one) for one in passes)
        return slowdown, self._steals(ctx, passes[0])

    def _slowdown(self, ctx: Context, one: Callable[[], object]) -> float:
        alone = 0.0
        for turn in range(ctx.num_workers):
            dist.barrier(group=ctx.workers)
            if turn == ctx.rank:
                alone = self._pass_time(ctx, one)
        dist.barrier(group=ctx.workers)
        return self._pass_time(ctx, one, times=2) / alone

    def _pass_time(self, ctx: Context, one: Callable[[], object], times: int = 1) -> float:
        """Mean seconds of a pass, over the time that the effort allows."""
        one()
        begin, count = ctx.clock.now(), 0
        while count < 3 or ctx.clock.now() - begin < times * self.effort.seconds:
            one()
            count += 1
        return (ctx.clock.now() - begin) / count

    def _steals(self, ctx: Context, one: Callable[[], object]) -> float:
        dist.barrier(group=ctx.workers)
        usual = self._pass_time(ctx, one, times=2)
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


def joined_sharing(results: Sequence[tuple[float, float]]) -> Sharing:
    """The mean over the ranks, within what is possible."""
    slowdown, steals = (statistics.fmean(column) for column in zip(*results, strict=True))
    return Sharing(ranks=len(results), slowdown=max(1.0, slowdown), steals=min(max(steals, 0.0), 1.0))
