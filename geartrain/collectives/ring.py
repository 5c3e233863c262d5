"""Ring collectives on sends and receives, in place, for any number of elements.

A flat tensor is cut into W chunks, W the ranks of the group; the first (numel mod W) chunks have one element more.

    reduce-scatter   round s = 0..W-2:  send chunk (r - s) mod W to r + 1; receive chunk (r - s - 1) mod W from r - 1,
    add all-gather       round s = 0..W-2:  send chunk (r + 1 - s) mod W to r + 1; receive chunk (r - s) mod W from r -
    1

Chunk c is summed in the order c, c + 1, ..., c + W - 1 (mod W), which no engine changes: results are the same to the
bit.

Cost per rank: 2 (W - 1) messages of one chunk; 2 M (W - 1)/W bytes when W divides the elements, of M bytes. A chunk
without elements is no message.

Source: derived in the comparison of Alqahtani and Demirbas, 2019, arXiv 1909.02061 (ring all-reduce); the algorithm is
textbook.
"""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.cost.terms import Traffic
from geartrain.runtime.buckets import even_cuts
from geartrain.runtime.context import Context


def ring_reduce_scatter(flat: Tensor, group: dist.ProcessGroup) -> None:
    """Rank r ends with the sum over ranks in chunk (r + 1) mod W; its other chunks hold partial sums."""
    chunks, rank, size = _chunks(flat, group.size()), group.rank(), group.size()
    incoming = torch.empty_like(chunks[0])
    for s in range(size - 1):
        target = chunks[(rank - s - 1) % size]
        received = incoming[: target.numel()]
        _shift(chunks[(rank - s) % size], received, group)
        target.add_(received)


def ring_all_gather(flat: Tensor, group: dist.ProcessGroup) -> None:
    """Every rank gets chunk (r + 1) mod W of each rank r, where `ring_reduce_scatter` left the sums."""
    chunks, rank, size = _chunks(flat, group.size()), group.rank(), group.size()
    for s in range(size - 1):
        _shift(chunks[(rank + 1 - s) % size], chunks[(rank - s) % size], group)


def ring_all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    """`flat` becomes the sum over the ranks of the group."""
    ring_reduce_scatter(flat, group)
    ring_all_gather(flat, group)


def ring_traffic(numel: int, element_size: int, num_ranks: int) -> tuple[Traffic, ...]:
    """What each rank sends in one all-reduce: every chunk in both halves but those that it ends or begins with."""
    cuts = even_cuts(numel, num_ranks)
    sizes = [end - begin for begin, end in itertools.pairwise(cuts)]
    traffic = []
    for rank in range(num_ranks):
        kept = ((rank + 1) % num_ranks, (rank + 2) % num_ranks)
        sent = [size for chunks in kept for chunk, size in enumerate(sizes) if chunk != chunks and size]
        traffic.append(Traffic(nbytes=sum(sent) * element_size, messages=len(sent)))
    return tuple(traffic)


def _chunks(flat: Tensor, count: int) -> list[Tensor]:
    cuts = even_cuts(flat.numel(), count)
    return [flat[begin:end] for begin, end in itertools.pairwise(cuts)]


def _shift(outgoing: Tensor, incoming: Tensor, group: dist.ProcessGroup) -> None:
    """One round: send to the next rank, receive from the one before."""
    rank, size = group.rank(), group.size()
    # The receive is posted first: sends meet their receives, and all ranks send at once.
    works = post_recv(incoming, (rank - 1) % size, group)
    works += post_send(outgoing, (rank + 1) % size, group)
    wait_all(works)


class RingLane:
    """Ring all-reduces beside the rank's main lane, one after another in the order in which they were started.

    gloo's receives can be waited for but not polled, so whoever drives a ring must be able to block: a lane does, on a
    group of its own.

    Args:
        ctx: of the rank.
        group: used by nothing else.
    """

    def __init__(self, ctx: Context, group: dist.ProcessGroup) -> None:
        self._group, self._todo, self._done = group, ctx.queue(), ctx.queue()
        self._pending = 0
        # As a daemon it does not keep a rank alive whose peers are gone.
        self._lane = ctx.spawn(self._loop, "ring", daemon=True)

    def _loop(self) -> None:
        while (flat := self._todo.get()) is not None:
            ring_all_reduce(flat, self._group)
            self._done.put(flat)

    def start(self, flat: Tensor) -> None:
        """All-reduce `flat` in place; leave it alone until `wait`."""
        self._pending += 1
        self._todo.put(flat)

    def wait(self) -> None:
        """Until all that was started is done."""
        while self._pending:
            self._done.get()
            self._pending -= 1

    def close(self) -> None:
        """End the lane."""
        self._todo.put(None)
        if not self._pending:  # else a peer is missing, and the lane ends with its rank
            self._lane.join()
