"""Messages between the ranks of a group. What is empty is not sent: both ends know the size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor


def post_send(tensor: Tensor, to: int, group: dist.ProcessGroup, tag: int = 0) -> list[dist.Work]:
    """Start sending to a group rank; what must be waited for."""
    return _posted(dist.isend(tensor, group=group, group_dst=to, tag=tag)) if tensor.numel() else []


def post_recv(tensor: Tensor, source: int, group: dist.ProcessGroup, tag: int = 0) -> list[dist.Work]:
    """Start receiving from a group rank into `tensor`, which must be contiguous; what must be waited for."""
    return _posted(dist.irecv(tensor, group=group, group_src=source, tag=tag)) if tensor.numel() else []


def _posted(work: dist.Work | None) -> list[dist.Work]:
    assert work is not None, "only a rank outside the group gets no work"
    return [work]


def wait_all(works: Iterable[dist.Work]) -> None:
    """Wait in the order in which they were posted."""
    for work in works:
        work.wait()


@dataclass(frozen=True)
class Team:
    """Ranks of a group that work together, in an order of their own: no group of their own is needed.

    Attributes:
        group: whose ranks they are.
        ranks: their group ranks, in the order of the team.
        index: the place of this rank in that order.
    """

    group: dist.ProcessGroup
    ranks: Sequence[int]
    index: int

    @property
    def size(self) -> int:
        return len(self.ranks)

    def send(self, tensor: Tensor, to: int) -> None:
        """Send to a place of the team, and wait until it has left."""
        wait_all(post_send(tensor, self.ranks[to], self.group))

    def recv(self, tensor: Tensor, source: int) -> None:
        """Receive from a place of the team."""
        wait_all(post_recv(tensor, self.ranks[source], self.group))

    def exchange(self, outgoing: Tensor, to: int, incoming: Tensor, source: int) -> None:
        """Send to one place and receive from another, both at once."""
        # The receive is posted first: sends meet their receives, and all ranks send at once.
        works = post_recv(incoming, self.ranks[source], self.group)
        works += post_send(outgoing, self.ranks[to], self.group)
        wait_all(works)


def whole(group: dist.ProcessGroup) -> Team:
    """All ranks of a group, in its order."""
    return Team(group, range(group.size()), group.rank())
