"""Learners of decentralised methods: workers alone or, hierarchically, the workers of a node that train one model.

    gradient of a learner   = sum over its members of (n * weight_i) * g_i,   n learners
    mean over the learners  = the gradient of the global batch, where all models are equal

The members of a learner sum their gradients by an all-reduce; its first member, the leader, exchanges models with other
leaders and hands the result to the members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.cluster.placement import Placement
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Traffic
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch
from geartrain.workload.spec import Workload


def learners_of(nodes: Sequence[int], *, hierarchical: bool) -> tuple[tuple[int, ...], ...]:
    """The workers of each learner, in rank order: one each or, hierarchically, those of a node.

    Example:
        >>> learners_of([0, 0, 1], hierarchical=True)
        ((0, 1), (2,))
    """
    ranks = range(len(nodes))
    if not hierarchical:
        return tuple((rank,) for rank in ranks)
    ordered = sorted(ranks, key=lambda rank: (nodes[rank], rank))
    return tuple(tuple(members) for _, members in groupby(ordered, key=lambda rank: nodes[rank]))


class Learner:
    """One worker's place among the learners. All workers make it at the same point.

    Args:
        ctx: of the rank.
        hierarchical: the workers of a node are one learner.

    Attributes:
        index, count: its learner's number, and how many there are.
        ranks: the leaders' ranks, in the order of the learners.
        leads: whether this worker exchanges models for its learner.
        leaders: the group of the leaders, in the order of the learners; None on the other workers.
    """

    def __init__(self, ctx: Context, *, hierarchical: bool) -> None:
        learners = learners_of(ctx.nodes[: ctx.num_workers], hierarchical=hierarchical)
        self.count = len(learners)
        self.index = next(number for number, members in enumerate(learners) if ctx.rank in members)
        self.ranks = [members[0] for members in learners]
        self.leads = self.ranks[self.index] == ctx.rank
        self.leaders = ctx.group(self.ranks)
        self._members: dist.ProcessGroup | None = None
        for members in learners:
            group = ctx.group(members) if len(members) > 1 else None
            self._members = group or self._members

    def share_of(self, batch: Batch) -> Batch:
        """The batch with the weight that makes the mean over learners the gradient of the global batch."""
        return replace(batch, weight=batch.weight * self.count)

    def sum(self, gradients: Iterable[Tensor]) -> None:
        """Gradients of the members become that of the learner."""
        if self._members is not None:
            for flat in gradients:
                dist.all_reduce(flat, group=self._members)

    def hand_out(self, tensors: Iterable[Tensor]) -> None:
        """What the leader has becomes what all members have."""
        if self._members is not None:
            for tensor in tensors:
                dist.broadcast(tensor, group=self._members, group_src=0)


def buffers_of(model: nn.Module) -> list[Tensor]:
    """What is averaged beside parameters at the end of a run: statistics in floating point."""
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]


@torch.no_grad()
def distance(mine: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """||x - y|| over all tensors together; it is looked at and not trained with, so it is not charged."""
    with uncharged():
        parts = [float(torch.linalg.vector_norm(a - b)) for a, b in zip(mine, other, strict=True)]
    return math.sqrt(sum(part * part for part in parts))


# Closed forms


def collective_cost(
    kind: str, place: Placement, workload: Workload, groups: Iterable[Sequence[int]], sent: list[Traffic]
) -> float:
    """Seconds of a native collective of all parameters that groups of ranks make at once; adds what they send.

    Args:
        kind: "all_reduce" or "broadcast".
        groups: ranks; those alone do nothing.
        sent: of each rank, changed in place.
    """
    seconds = 0.0
    for ranks in groups:
        taken, traffic = native_collective(place, kind, workload.gradient_bytes, workload.element_size, ranks)
        seconds = max(seconds, taken)
        for rank, more in zip(ranks, traffic, strict=True):
            sent[rank] += more
    return seconds
