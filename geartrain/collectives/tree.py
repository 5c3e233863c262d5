"""Broadcast, reduce and all-reduce through a binomial tree, for any number of ranks.

    reduce      distances d = 1, 2, 4, ...: positions that are odd multiples of d send all they have to position - d,
                which adds it to its own
    broadcast   the same rounds backwards
    all-reduce  reduce to rank 0, then broadcast

Positions count from the root. Position p adds p + 1, p + 2, p + 4, ... in this order, on every engine.

Cost, of M bytes on W ranks: ceil(log2 W) rounds of M; each rank but the root sends M once in a reduce, and each rank
but the root receives it once in a broadcast. Exactly: `geartrain.cost.own_collectives.traffic`.

Use it for small tensors and where there is a root; its all-reduce takes twice the latencies of recursive doubling, but
W - 1 messages each way in all, where that takes W log2 W.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import Team


def tree_reduce(flat: Tensor, group: dist.ProcessGroup, root: int = 0) -> None:
    """On group rank `root`, `flat` becomes the sum over the ranks; on the others it holds partial sums afterwards."""
    team = _from_root(group, root)
    incoming: Tensor | None = None
    for distance in _distances(team.size):
        if team.index % (2 * distance):
            team.send(flat, team.index - distance)
            return
        if team.index + distance < team.size:
            incoming = torch.empty_like(flat) if incoming is None else incoming
            team.recv(incoming, team.index + distance)
            flat.add_(incoming)


def tree_broadcast(flat: Tensor, group: dist.ProcessGroup, root: int = 0) -> None:
    """`flat` becomes that of group rank `root`."""
    team = _from_root(group, root)
    for distance in reversed(_distances(team.size)):
        if team.index % (2 * distance) == distance:
            team.recv(flat, team.index - distance)
        elif team.index % (2 * distance) == 0 and team.index + distance < team.size:
            team.send(flat, team.index + distance)


def tree_all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    """`flat` becomes the sum over the ranks of the group."""
    tree_reduce(flat, group)
    tree_broadcast(flat, group)


def _from_root(group: dist.ProcessGroup, root: int) -> Team:
    size = group.size()
    return Team(group, [(root + position) % size for position in range(size)], (group.rank() - root) % size)


def _distances(size: int) -> list[int]:
    return [1 << k for k in range((size - 1).bit_length())]
