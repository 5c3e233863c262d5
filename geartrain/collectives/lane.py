"""A lane for collectives: any of ours beside what the rank computes."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.registry import Collective
from geartrain.runtime.context import Context


class CollectiveLane:
    """Collectives beside the rank's main lane, one after another in the order in which they were started.

    gloo's receives can be waited for but not polled, so whoever drives a collective in sends and receives must be able
    to block: a lane does, on a group of its own. It works on the tensors that it is given; nothing is copied.

    Args:
        ctx: of the rank.
        group: used by nothing else.
        function: what to do with the tensors of `start` and the group, see `geartrain.collectives.registry`.
        name: of the lane.

    Example:
        lane = CollectiveLane(ctx, group, ring_all_reduce)
        lane.start(flat)
        ...  # compute
        lane.wait()
    """

    def __init__(self, ctx: Context, group: dist.ProcessGroup, function: Collective, name: str = "collectives") -> None:
        self._group, self._function, self._todo, self._done = group, function, ctx.queue(), ctx.queue()
        self._pending = 0
        # As a daemon it does not keep a rank alive whose peers are gone.
        self._lane = ctx.spawn(self._loop, name, daemon=True)

    def _loop(self) -> None:
        while (task := self._todo.get()) is not None:
            function, tensors = task
            function(*tensors, self._group)
            self._done.put(tensors)

    def start(self, *tensors: Tensor, function: Collective | None = None) -> None:
        """Begin the collective once those before it are done; leave its tensors alone until `wait`.

        Args:
            tensors: what it works on.
            function: in place of the lane's own.
        """
        self._pending += 1
        self._todo.put((function or self._function, tensors))

    def wait(self) -> None:
        """Until all that was started is done."""
        while self._pending:
            self._done.get()
            self._pending -= 1

    def ready(self) -> bool:
        """Whether all that was started is done; does not wait."""
        while self._pending and self._done.ready():
            self._done.get()
            self._pending -= 1
        return not self._pending

    def close(self) -> None:
        """End the lane."""
        self._todo.put(None)
        if not self._pending:  # else a peer is missing, and the lane ends with its rank
            self._lane.join()
