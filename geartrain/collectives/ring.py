"""Ring collectives on sends and receives, for any number of elements.

A flat tensor is cut into W chunks, W the ranks of the group; the first (numel mod W) chunks have one element more.

    reduce-scatter   round s = 0..W-2:  send chunk (r + k - 1 - s) to r + 1; add chunk (r + k - 2 - s) from r - 1
    all-gather       round s = 0..W-2:  send chunk (r + k - s) to r + 1; receive chunk (r + k - 1 - s) from r - 1

all numbers mod W. Rank r ends the first, and begins the second, with chunk r + k: k = 0 where the halves are used by
themselves, k = 1 in an all-reduce, where every rank can then begin with its own chunk r. Chunk c is summed in the order
c - k + 1, c - k + 2, ..., c - k + W (mod W), which no engine changes: results are the same to the bit.

Cost per rank: W - 1 messages of one chunk for either half; M (W - 1)/W bytes when W divides the elements, of M bytes. A
chunk without elements is no message. Exactly: `geartrain.cost.own_collectives.traffic`.

Use it for large tensors: no algorithm sends fewer bytes. For small ones the 2 (W - 1) latencies decide.

Source: derived in the comparison of Alqahtani and Demirbas, 2019, arXiv 1909.02061 (ring all-reduce); the algorithm is
textbook.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import Team, whole
from geartrain.runtime.buckets import even_cuts


def ring_all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    """`flat` becomes the sum over the ranks of the group."""
    all_reduce_in_place(flat, whole(group))


def ring_reduce_scatter(output: Tensor, flat: Tensor, group: dist.ProcessGroup) -> None:
    """`output` becomes the sum over ranks of chunk r, r this rank; `flat` is only read.

    Args:
        output: 1-D, as long as chunk r.
        flat: 1-D, of any length.
        group: whose ranks sum.
    """
    team, parts = whole(group), chunks(flat, group.size())
    size, rank = team.size, team.index
    _check(output, parts[rank], "output", rank, flat.numel())
    outgoing = parts[rank - 1]
    spares = [torch.empty_like(parts[0]) for _ in range(min(2, size - 2))]
    for s in range(size - 1):
        mine = parts[(rank - 2 - s) % size]
        incoming = output if s == size - 2 else spares[s % 2][: mine.numel()]
        _shift(outgoing, incoming, team)
        incoming.add_(mine)
        outgoing = incoming
    if size == 1:
        output.copy_(flat)


def ring_all_gather(output: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
    """Chunk r of `output` becomes the `shard` of rank r, for all ranks.

    Args:
        output: 1-D, of any length.
        shard: 1-D, as long as this rank's chunk of `output`; may be that chunk itself.
        group: whose ranks give.
    """
    team = whole(group)
    own = chunks(output, team.size)[team.index]
    _check(shard, own, "shard", team.index, output.numel())
    if shard.data_ptr() != own.data_ptr() or shard.is_meta:
        own.copy_(shard)
    all_gather_in_place(output, team, 0)


def reduce_scatter_in_place(flat: Tensor, team: Team, k: int) -> None:
    """Rank r ends with the sum in chunk r + k; its other chunks hold partial sums."""
    parts, rank, size = chunks(flat, team.size), team.index, team.size
    incoming = torch.empty_like(parts[0])
    for s in range(size - 1):
        target = parts[(rank + k - 2 - s) % size]
        received = incoming[: target.numel()]
        _shift(parts[(rank + k - 1 - s) % size], received, team)
        target.add_(received)


def all_gather_in_place(flat: Tensor, team: Team, k: int) -> None:
    """Every rank gets chunk r + k of each rank r."""
    parts, rank, size = chunks(flat, team.size), team.index, team.size
    for s in range(size - 1):
        _shift(parts[(rank + k - s) % size], parts[(rank + k - 1 - s) % size], team)


def all_reduce_in_place(flat: Tensor, team: Team) -> None:
    """`ring_all_reduce` within a team."""
    reduce_scatter_in_place(flat, team, 1)
    all_gather_in_place(flat, team, 1)


def chunks(flat: Tensor, count: int) -> list[Tensor]:
    """The chunks of a flat tensor, as views."""
    return [flat[begin:end] for begin, end in itertools.pairwise(even_cuts(flat.numel(), count))]


def _shift(outgoing: Tensor, incoming: Tensor, team: Team) -> None:
    """One round: send to the next rank, receive from the one before."""
    team.exchange(outgoing, (team.index + 1) % team.size, incoming, (team.index - 1) % team.size)


def _check(given: Tensor, chunk: Tensor, name: str, rank: int, numel: int) -> None:
    if given.shape != chunk.shape:
        raise ValueError(
            f"`{name}` of rank {rank} has shape {tuple(given.shape)}, but its chunk of {numel} elements is "
            f"{tuple(chunk.shape)}; the first chunks have one element more where it does not divide"
        )
