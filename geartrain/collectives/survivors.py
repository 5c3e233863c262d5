"""Coming together, and averaging, among those ranks of a group that are still there.

A rank whose process has died is noticed by whoever sends to it or receives from it: the connection breaks. So the
lowest rank that is there can be found without asking anybody:

    root = 0, 1, ...:  send one element to it, and wait for its list of who is there;  an error: try the next
    the root itself :  receive an element from every higher rank;  an error: it is not there;  send the list to the rest

Cost: 2 messages per rank, n + 1 bytes. A rank that dies between the list and the end of `mean` is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.runtime.charging import uncharged

BROKEN = (RuntimeError,)
"""What torch raises where the connection to another rank breaks."""


def survivors(group: dist.ProcessGroup, device: torch.device) -> tuple[int, ...]:
    """Wait until all ranks that are still there have called it; their group ranks. The book-keeping is not charged."""
    with uncharged():
        return _survivors(group, device)


def _survivors(group: dist.ProcessGroup, device: torch.device) -> tuple[int, ...]:
    word = torch.ones(1, dtype=torch.uint8, device=device)
    there = torch.zeros(group.size(), dtype=torch.uint8, device=device)
    for root in range(group.rank()):
        try:
            wait_all(post_send(word, root, group))
            wait_all(post_recv(there, root, group))
        except BROKEN:
            continue
        return _listed(there, group.size())
    return _gather(group, word, there)


def _gather(group: dist.ProcessGroup, word: Tensor, there: Tensor) -> tuple[int, ...]:
    """The root's part."""
    me = group.rank()
    found = [me]
    for other in range(me + 1, group.size()):
        try:
            wait_all(post_recv(word, other, group))
        except BROKEN:
            continue
        found.append(other)
    there[found] = 1
    for other in found[1:]:
        try:
            wait_all(post_send(there, other, group))
        except BROKEN:
            continue
    return tuple(found)


def _listed(there: Tensor, size: int) -> tuple[int, ...]:
    # Without numbers nobody dies either.
    return tuple(range(size)) if there.is_meta else tuple(torch.nonzero(there).flatten().tolist())


@torch.no_grad()
def mean(tensors: Iterable[Tensor], group: dist.ProcessGroup, there: Sequence[int]) -> None:
    """Every tensor becomes its mean over those who are there: by one all-reduce each if nobody is missing.

    Args:
        tensors: the same on all ranks, contiguous.
        group: whose ranks.
        there: group ranks, as `survivors` has found them.
    """
    for tensor in tensors:
        if len(there) == group.size():
            dist.all_reduce(tensor, group=group)
        else:
            _sum_at_the_first(tensor, group, there)
        tensor.div_(len(there))


def _sum_at_the_first(tensor: Tensor, group: dist.ProcessGroup, there: Sequence[int]) -> None:
    """An all-reduce in a group with a dead rank breaks; messages between the living do not."""
    root, rest = there[0], there[1:]
    if group.rank() != root:
        wait_all(post_send(tensor, root, group))
        wait_all(post_recv(tensor, root, group))
        return
    part = torch.empty_like(tensor)
    for other in rest:
        wait_all(post_recv(part, other, group))
        tensor.add_(part)
    for other in rest:
        wait_all(post_send(tensor, other, group))
