"""The weighted average of the workers' models, begun after one step and waited for after another.

    s_i   <- x_i                            what is sent
    x_avg <- sum_j p_j * s_j                one non-blocking all-reduce of p_i * s_i per data type and device
    p_i    = mean of worker i's shares of the global batches since the average before

What is sent lies in flat tensors of its own, so the model may be trained on while they travel. Local updates, with or
without delay, differ in when they start one, when they wait for it, and how they merge it:

    replace     x_i <- x_avg
    blend       x_i <- kept * x_i + (1 - kept) * x_avg
    displace    x_i <- x_i + (1 - kept) * (x_avg - s_i)      keeps the steps taken since

Only trainable parameters are averaged. Batch-norm statistics and other buffers stay local to each worker, and so does
the optimizer's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.runtime.buckets import deal
from geartrain.runtime.context import Context


@dataclass(frozen=True, eq=False)
class _Kind:
    """The parameters of one data type and device, and room for all of them."""

    parameters: tuple[nn.Parameter, ...]
    flat: Tensor

    def pairs(self, flat: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its part of a flat tensor, in its shape."""
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            yield parameter, part.view(parameter.shape)


class FlatSum:
    """Tensors like the parameters, summed over the workers in flat tensors.

    Args:
        ctx: of the rank.
        parameters: whose shapes, data types and devices they have.

    Attributes:
        flats: what was put in, and after `wait` the sum; one per data type and device.
    """

    def __init__(self, ctx: Context, parameters: Sequence[nn.Parameter]) -> None:
        self._ctx = ctx
        self._kinds: list[_Kind] = []
        self._works: list[dist.Work] = []
        for indices in deal([p.nbytes for p in parameters], [(p.dtype, p.device) for p in parameters], None):
            group = tuple(parameters[index] for index in indices)
            flat = torch.zeros(sum(p.numel() for p in group), dtype=group[0].dtype, device=group[0].device)
            self._kinds.append(_Kind(group, flat))

    @property
    def flats(self) -> list[Tensor]:
        return [kind.flat for kind in self._kinds]

    @torch.no_grad()
    def pack_parameters(self) -> None:
        """Put the parameters in."""
        for kind in self._kinds:
            torch.cat([parameter.detach().reshape(-1) for parameter in kind.parameters], out=kind.flat)

    @torch.no_grad()
    def pack_gradients(self) -> None:
        """Put the gradients in; zero where there is none."""
        for kind in self._kinds:
            for parameter, part in kind.pairs(kind.flat):
                if parameter.grad is None:
                    part.zero_()
                else:
                    part.copy_(parameter.grad)

    @torch.no_grad()
    def unpack_gradients(self) -> None:
        """The sums become the gradients, of all parameters."""
        for parameter, part in self.pairs():
            if parameter.grad is None:
                parameter.grad = part.clone()
            else:
                parameter.grad.copy_(part)

    @torch.no_grad()
    def start(self, share: float) -> None:
        """Begin to sum share * what was put in."""
        if self._ctx.num_workers == 1:
            return
        for kind in self._kinds:
            work = dist.all_reduce(kind.flat.mul_(share), group=self._ctx.workers, async_op=True)
            assert work is not None, "every worker is in the group"
            self._works.append(work)

    def wait(self) -> None:
        """Until the sum is there."""
        for work in self._works:
            work.wait()
        self._works.clear()

    def pairs(self, flats: Sequence[Tensor] | None = None) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Each parameter with its part of the sum, or of other flat tensors of this layout."""
        for kind, flat in zip(self._kinds, self.flats if flats is None else flats, strict=True):
            yield from kind.pairs(flat)


class ModelAverage:
    """The average of the workers' models; one is in flight at most.

    A step counts its share with `count`; `start` begins, `wait` ends, and one of `replace`, `blend` and `displace`
    merges it.

    Args:
        ctx: of the rank.
        parameters: what is averaged.
        keep_sent: remember what was sent, for `displace`: one more copy of the model.

    Example:
        average = ModelAverage(ctx, trainable(model))
        average.count(batch.weight)
        average.start()
        ...  # train on
        average.wait()
        average.blend(kept=0.25)
    """

    def __init__(self, ctx: Context, parameters: Sequence[nn.Parameter], *, keep_sent: bool = False) -> None:
        self._sum = FlatSum(ctx, parameters)
        self._sent = [torch.zeros_like(flat) for flat in self._sum.flats] if keep_sent else []
        self._shares, self._counted, self._share = 0.0, 0, 0.0
        self.in_flight = False

    @property
    def flats(self) -> list[Tensor]:
        """After `wait`, the average: one flat tensor per data type and device."""
        return self._sum.flats

    def copy_of_parameters(self) -> list[Tensor]:
        """The parameters now, in flat tensors of their own, laid out like `flats`."""
        self._sum.pack_parameters()
        return [flat.clone() for flat in self._sum.flats]

    def count(self, share: float) -> None:
        """A step with this share of the global batch was taken; the shares of all workers add up to 1."""
        self._shares += share
        self._counted += 1

    @torch.no_grad()
    def start(self) -> None:
        """Copy the model and begin to average the copies."""
        self._sum.pack_parameters()
        for sent, flat in zip(self._sent, self._sum.flats, strict=bool(self._sent)):
            sent.copy_(flat)
        if self._counted:  # else no step was taken since the last average, and its shares hold
            self._share = self._shares / self._counted
        self._sum.start(self._share)
        self._shares, self._counted = 0.0, 0
        self.in_flight = True

    def wait(self) -> None:
        """Until the average is there. It stays in flight until it is merged or dropped."""
        self._sum.wait()

    def drop(self) -> None:
        """Wait for what is in flight, and forget it."""
        self._sum.wait()
        self.in_flight = False

    @torch.no_grad()
    def replace(self) -> None:
        """x_i <- x_avg"""
        for parameter, part in self._sum.pairs():
            parameter.copy_(part)
        self.in_flight = False

    @torch.no_grad()
    def blend(self, kept: float) -> None:
        """x_i <- kept * x_i + (1 - kept) * x_avg"""
        for parameter, part in self._sum.pairs():
            parameter.lerp_(part, 1.0 - kept)
        self.in_flight = False

    @torch.no_grad()
    def displace(self, kept: float = 0.0) -> None:
        """x_i <- x_i + (1 - kept) * (x_avg - s_i)

        That is x_avg + (x_i - s_i) for kept = 0, rounded so that a worker alone keeps its model to the bit.
        """
        for flat, sent in zip(self._sum.flats, self._sent, strict=True):
            flat.sub_(sent)
        for parameter, part in self._sum.pairs():
            parameter.add_(part, alpha=1.0 - kept)
        self.in_flight = False

    def state_dict(self) -> dict[str, Any]:
        """What has been counted, and what is in flight, once it has come."""
        self._sum.wait()
        return {
            "shares": self._shares,
            "counted": self._counted,
            "share": self._share,
            "average": self._sum.flats if self.in_flight else None,
            "sent": self._sent if self.in_flight else None,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shares, self._counted, self._share = state["shares"], state["counted"], state["share"]
        self.in_flight = state["average"] is not None
        if self.in_flight:
            for name, flats in (("average", self._sum.flats), ("sent", self._sent)):
                for flat, saved in zip(flats, state[name], strict=True):
                    flat.copy_(saved)
