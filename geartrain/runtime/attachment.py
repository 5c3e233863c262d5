"""What a strategy gives to be put into a training loop that it does not drive: an `Attachment`.

`geartrain.runtime.attach` finds the points of the loop; an attachment says what happens there:

    arrived           a gradient has been accumulated                     inside backward; must not wait
    gradients_ready   the last backward of a step ends                    may wait; clipping comes after it
    before_step       the loop has called optimizer.step()
    step              in its place, for a strategy that owns the step     delayed and sharded updates
    after_step        the optimizer has changed the weights               averaging, gossip

So a method that exchanges gradients fills in the first two (`GradientAttachment` does it for all of them, with an
exchange of the method's own), a method that exchanges weights fills in `after_step`, and a method that decides itself
what is applied, and when, sets `owns_step` and fills in `step`: a hook of an optimizer cannot keep it from stepping, so
the loop gets a facade there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from geartrain.runtime.buckets import Bucket, GradientBuckets, Layout


@dataclass(frozen=True, eq=False)
class Loop:
    """The loop that a strategy is attached to.

    Attributes:
        model: what is trained; the same on all workers when a strategy sees it.
        optimizer: the loop's own.
        accumulate: how many backwards make a step.
        share: this worker's weight in the mean over the workers, asked once a step, in its last backward.
        skip_unused: a parameter that no worker used keeps None as its gradient.
    """

    model: nn.Module
    optimizer: Optimizer
    accumulate: int
    share: Callable[[], float]
    skip_unused: bool


class Attachment:
    """A strategy inside a loop, on one worker: the base of all, in which nothing happens anywhere.

    All state is made in the constructor, at the same point on all workers.

    Attributes:
        owns_step: the loop gets a facade whose `step()` calls `step`.
    """

    owns_step: ClassVar[bool] = False

    def arrived(self, parameter: nn.Parameter, *, last: bool) -> None:
        """A gradient has been accumulated into `parameter.grad`, in the last backward of a step or an earlier one."""
        return

    def gradients_ready(self) -> None:
        """The last backward of a step is at its end; what is in the `.grad`s afterwards is what the loop sees.

        Called once a step on all workers, also on one whose backward reached no parameter.
        """
        return

    def before_step(self) -> None:
        """The loop steps."""
        return

    def step(self, take: Callable[[], Any]) -> None:
        """In place of the optimizer's step, if `owns_step`; `take()` is the optimizer's own."""
        take()

    def after_step(self) -> None:
        """The loop has stepped."""
        return

    def settle(self) -> None:
        """Bring the model up to date for a look at it between steps; the loop calls it, on all workers alike."""
        return

    def state_dict(self) -> dict[str, Any]:
        """What is needed, beside model and optimizer, to go on as if nothing had happened; between steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return

    def finish(self) -> None:
        """Drain what is in flight. Called when the loop has ended without an error."""
        return

    def close(self) -> None:
        """Leave no trace. Called once, also after an error."""
        return


class Alone(Attachment):
    """One worker, nobody to exchange with: the loop is as it was."""


class BucketExchange(Protocol):
    """Makes flat tensors of gradients global, in place."""

    def start(self, flat: Tensor) -> None:
        """Begin with the next one; must not wait where overlap with backward is wanted."""
        ...

    def wait(self) -> None:
        """Until all that was started is done."""
        ...

    def close(self) -> None: ...


class GradientAttachment(Attachment):
    """Gradients are exchanged bucket by bucket, during the last backward of a step or at its end.

        g <- sum_i share_i * g_i

    The gradients live in the buckets. Where the loop has set them to None, autograd makes new tensors, which are copied
    into the buckets as they come: the one extra copy.

    Args:
        loop: whose gradients.
        layouts: what lies in which bucket.
        exchange: sums a bucket over the workers.
        workers: the group of the workers, for telling each other what was used.
        overlap: start a bucket as soon as its gradients are there.
    """

    def __init__(
        self,
        loop: Loop,
        layouts: Sequence[Layout],
        exchange: BucketExchange,
        workers: dist.ProcessGroup,
        *,
        overlap: bool,
    ) -> None:
        self._share, self._skip_unused = loop.share, loop.skip_unused
        self._exchange, self._workers, self._overlap = exchange, workers, overlap
        self._open, self._weight = False, 1.0
        self._parameters = [parameter for layout in layouts for parameter in layout.parameters]
        before = [parameter.grad for parameter in self._parameters]
        self._buckets = GradientBuckets(layouts, self._start, overlap=False)
        for parameter, gradient in zip(self._parameters, before, strict=True):
            parameter.grad = gradient

    def arrived(self, parameter: nn.Parameter, *, last: bool) -> None:
        self._buckets.adopt(parameter)
        if last and self._overlap:
            self._begin()
            self._buckets.arrived(parameter)

    def gradients_ready(self) -> None:
        self._begin()
        used = [parameter.grad is not None for parameter in self._parameters]
        self._buckets.adopt_all()
        self._buckets.flush()
        if self._skip_unused:
            self._forget_unused(used)
        self._exchange.wait()
        self._open = False

    def _forget_unused(self, used: Sequence[bool]) -> None:
        device = self._parameters[0].device
        anywhere = torch.tensor(used, dtype=torch.uint8, device=device)
        dist.all_reduce(anywhere, dist.ReduceOp.MAX, group=self._workers)
        for parameter, flag in zip(self._parameters, anywhere.tolist(), strict=True):
            if not flag:
                parameter.grad = None

    def _begin(self) -> None:
        if not self._open:
            self._open, self._weight = True, self._share()
            self._buckets.open()

    def _start(self, bucket: Bucket) -> None:
        if self._weight != 1:
            bucket.flat.mul_(self._weight)
        self._exchange.start(bucket.flat)

    def close(self) -> None:
        self._exchange.close()
