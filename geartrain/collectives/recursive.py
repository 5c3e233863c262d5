"""All-reduce by recursive exchange with partners at distances that are powers of two, for any number of ranks.

    recursive doubling   round k: exchange everything with the partner at distance 2^k, and add
    halving-doubling     exchange halves of what is held, at distances P/2, ..., 2, 1, and add, until each rank holds
                         one of P chunks; then back, distances 1, 2, ..., P/2, passing on what has been summed

P is the largest power of two in the W ranks. Of the first 2 (W - P) ranks those with an even number hand their data to
the next rank before, and get the result after ("folding").

Sums are those of a balanced tree whose two branches are added by both partners: addition of two numbers does not depend
on their order, so all ranks, and all engines, have the same bits.

Cost per rank that takes part, of M bytes: doubling log2 P messages of M; halving-doubling 2 log2 P messages and
2 M (P - 1)/P bytes. Folding adds two rounds of M, which for large tensors is more than a ring needs.
Exactly: `geartrain.cost.own_collectives.traffic`.

Use doubling for a few kilobytes, where only latencies count, halving-doubling for what lies between that and a ring.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import Team, whole
from geartrain.cost.collective_forms import members
from geartrain.runtime.buckets import even_cuts


def recursive_doubling_all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    """`flat` becomes the sum over the ranks of the group, in the fewest rounds."""
    _fold(flat, group, _double)


def halving_doubling_all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    """`flat` becomes the sum over the ranks of the group, in few rounds and with few bytes."""
    _fold(flat, group, _halve_and_double)


def _fold(flat: Tensor, group: dist.ProcessGroup, recursion: Callable[[Tensor, Team], None]) -> None:
    everyone = whole(group)
    rank, (inside, extras) = everyone.index, members(everyone.size)
    if rank in extras:
        everyone.send(flat, rank + 1)
        everyone.recv(flat, rank + 1)
        return
    takes_in = rank - 1 in extras
    if takes_in:
        incoming = torch.empty_like(flat)
        everyone.recv(incoming, rank - 1)
        flat.add_(incoming)
    recursion(flat, Team(group, inside, inside.index(rank)))
    if takes_in:
        everyone.send(flat, rank - 1)


def _double(flat: Tensor, team: Team) -> None:
    incoming, distance = torch.empty_like(flat), 1
    while distance < team.size:
        partner = team.index ^ distance
        team.exchange(flat, partner, incoming, partner)
        flat.add_(incoming)
        distance *= 2


def _halve_and_double(flat: Tensor, team: Team) -> None:
    cuts = even_cuts(flat.numel(), team.size)
    incoming = torch.empty_like(flat[: cuts[-(-team.size // 2)]])  # the first half is the larger one

    def held(index: int, distance: int) -> Tensor:
        """What this member holds once halves have been exchanged at this distance."""
        first = index - index % distance
        return flat[cuts[first] : cuts[first + distance]]

    distances = [1 << k for k in range(team.size.bit_length() - 1)]
    for distance in reversed(distances):
        partner = team.index ^ distance
        mine = held(team.index, distance)
        received = incoming[: mine.numel()]
        team.exchange(held(partner, distance), partner, received, partner)
        mine.add_(received)
    for distance in distances:
        partner = team.index ^ distance
        team.exchange(held(team.index, distance), partner, held(partner, distance), partner)
