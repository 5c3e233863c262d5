"""Messages between the ranks of a group. What is empty is not sent: both ends know the size."""

from __future__ import annotations

from collections.abc import Iterable

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
