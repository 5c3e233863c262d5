"""All-reduce in two levels: within each node, between nodes, and within each node again.

    reduce-scatter within a node -> all-reduce of every share between nodes -> all-gather within a node

all of them rings. With N nodes of L ranks each, a rank holds share i of its node after the first part, and sums it with
the ranks i of the other nodes. Where nodes are not equal, L is the number of ranks of the smallest one; the others of a
node hand everything to one of its first L before, and get the result after.

Sums are in the order of the rings, on every engine.

Cost per rank, of M bytes, where all divides: 2 (L - 1)/L M within the node in 2 (L - 1) messages, 2 (N - 1)/N M/L
between nodes in 2 (N - 1) messages; through the wire of a node that its ranks share, 2 (N - 1)/N M. Exactly:
`geartrain.cost.own_collectives.traffic`.

    T = 2 (L - 1) (alpha_in + M/L / B_in) + 2 (N - 1) (alpha + M/N / B)        B: the wire of a node

Use it where nodes have several ranks and the wires inside are much faster than those between: a ring over all ranks
pays the latency between nodes N L - 1 times. With one rank in each node it is the ring.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives import ring
from geartrain.collectives.messages import Team, whole
from geartrain.cost.own_collectives import hierarchy


def hierarchical_all_reduce(flat: Tensor, group: dist.ProcessGroup, nodes: Sequence[int]) -> None:
    """`flat` becomes the sum over the ranks of the group.

    Args:
        flat: 1-D.
        group: whose ranks sum.
        nodes: the node of each group rank, as in `ctx.nodes`.
    """
    everyone, ranks = whole(group), hierarchy(nodes)
    folds = ranks.folds()
    for rank, takes in folds:
        if rank == everyone.index:
            everyone.send(flat, takes)
            everyone.recv(flat, takes)
            return
    taken = [rank for rank, takes in folds if takes == everyone.index]
    incoming = torch.empty_like(flat) if taken else flat
    for rank in taken:
        everyone.recv(incoming, rank)
        flat.add_(incoming)
    place = next(number for number, node in enumerate(ranks.nodes) if everyone.index in node)
    at = ranks.nodes[place].index(everyone.index)
    inner = Team(group, ranks.nodes[place][: ranks.width], at)
    ring.reduce_scatter_in_place(flat, inner, 0)
    ring.all_reduce_in_place(ring.chunks(flat, ranks.width)[at], Team(group, [node[at] for node in ranks.nodes], place))
    ring.all_gather_in_place(flat, inner, 0)
    for rank in taken:
        everyone.send(flat, rank)
