"""Times of collectives by kind and size: from the moment that all are ready until the slowest has it done.

    time of a repeat = max over ranks of (end - begin), every rank having left a barrier just before

Ranks leave a barrier at slightly different moments, which counts as time of the collective: microseconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
import torch.distributed as dist

from geartrain.calibration.effort import Effort, finish_device
from geartrain.cluster.measured import CollectiveKind, CollectiveTime
from geartrain.runtime.context import Context

KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
TINY = 4
"""Bytes of the all-reduce that stands for the cost of a collective without bytes."""

Ask = tuple[CollectiveKind, int]
Times = dict[Ask, list[float]]
_ELEMENT = 4


def asks(sizes: Sequence[int], num_ranks: int) -> tuple[Ask, ...]:
    """What is timed: the tiny all-reduce, then each kind at each size, rounded up to whole shares for all ranks."""
    step = _ELEMENT * num_ranks
    whole = dict.fromkeys(-(-size // step) * step for size in sizes)
    return (("all_reduce", TINY), *((kind, size) for kind in KINDS for size in whole))


@dataclass(frozen=True)
class TimeCollectives:
    """Program of a rank: times collectives, one after another. Returns the seconds of each repeat on this rank."""

    asked: Sequence[Ask]
    effort: Effort

    def __call__(self, ctx: Context) -> Times:
        return {ask: self._repeats(ctx, prepared(ctx, *ask)) for ask in self.asked}

    def _repeats(self, ctx: Context, collective: Callable[[], object]) -> list[float]:
        if self.effort.exact:
            return [_once(ctx, collective)]
        warm = [_once(ctx, collective) for _ in range(2)]
        num = agreed_repeats(ctx, self.effort, warm[-1])
        return [_once(ctx, collective) for _ in range(num)]


def joined(results: Sequence[Times]) -> tuple[CollectiveTime, ...]:
    """Median and least over the repeats, of the slowest rank of each."""
    rows = []
    for ask in results[0]:
        slowest = [max(one) for one in zip(*(times[ask] for times in results), strict=True)]
        rows.append(CollectiveTime(kind=ask[0], size=ask[1], time=statistics.median(slowest), least=min(slowest)))
    return tuple(rows)


def agreed_repeats(ctx: Context, effort: Effort, seconds: float) -> int:
    """How often something is repeated that took rank 0 so long; every rank asks."""
    num = torch.tensor([effort.repeats_for(seconds, 5 * effort.repeats)], device=ctx.device)
    dist.broadcast(num, group=ctx.workers, group_src=0)
    return int(num.item())


def _once(ctx: Context, collective: Callable[[], object]) -> float:
    dist.barrier(group=ctx.workers)
    finish_device(ctx)
    begin = ctx.clock.now()
    collective()
    finish_device(ctx)
    return ctx.clock.now() - begin


def prepared(ctx: Context, kind: CollectiveKind, size: int) -> Callable[[], object]:
    """The collective, ready to be called. `size` as in `geartrain.cost.collectives`."""
    group, numel = ctx.workers, size // _ELEMENT
    whole = torch.zeros(numel, device=ctx.device)
    share = torch.zeros(numel // ctx.num_workers, device=ctx.device)
    match kind:
        case "all_reduce":
            return lambda: dist.all_reduce(whole, group=group)
        case "broadcast":
            return lambda: dist.broadcast(whole, group=group, group_src=0)
        case "reduce":
            return lambda: dist.reduce(whole, group=group, group_dst=0)
        case "all_gather":
            return lambda: dist.all_gather_single(whole, share, group=group)
        case "reduce_scatter":
            return lambda: dist.reduce_scatter_single(share, whole, group=group)
        case "all_to_all":
            other = torch.empty_like(whole)
            return lambda: dist.all_to_all_single(other, whole, group=group)
