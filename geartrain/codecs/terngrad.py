"""TernGrad: each number becomes -s, 0 or s at random, s the largest of its tensor.

    s = max |x|  per tensor,    t_i = sgn(x_i) Bernoulli(|x_i| / s),    x_i ~ s t_i

The mean over draws is x. With one s for all workers the t add up to whole numbers in [-W, W].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs import bits
from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams, at_least_single


@dataclass(frozen=True, kw_only=True)
class TernGrad(Codec):
    """Each worker has scales of its own.

    Costs 2 bits per number and one number per tensor.
    """

    name: ClassVar[str] = "terngrad"
    algebra: ClassVar[Algebra] = "gather"

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        scales = largest(x, flat)
        codes = _ternary(x, flat.spread(scales), streams).add_(1).to(torch.uint8)
        return Payload((scales, bits.pack(codes, 2))), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.copy_(self._values(payload, flat))

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(self._values(payload, flat), alpha=alpha)

    def wire_bytes(self, flat: Flat) -> int:
        return len(flat.sizes) * flat.element_size + bits.packed_size(flat.numel, 2)

    def _values(self, payload: Payload, flat: Flat) -> Tensor:
        scales, data = payload.sent
        signs = bits.unpack(data, flat.numel, 2).to(flat.dtype).sub_(1)
        return signs.mul_(flat.spread(scales))


@dataclass(frozen=True, kw_only=True)
class SharedTernGrad(Codec):
    """All workers use the largest of their scales, so that payloads add up.

    Costs a byte per number, because sums must fit, and an all-reduce of one number per tensor before.
    """

    name: ClassVar[str] = "terngrad_shared"
    algebra: ClassVar[Algebra] = "sum"
    most_workers: ClassVar[int | None] = 127

    def agree(self, x: Tensor, flat: Flat, state: State) -> Tensor | None:
        # Not every backend's maximum hands NaN on; infinity it must.
        return largest(x, flat).nan_to_num_(nan=torch.inf, posinf=torch.inf)

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        assert agreed is not None, "it asks for an agreement"
        signs = _ternary(x, flat.spread(agreed), streams).to(torch.int8)
        return Payload((signs,), (agreed,)), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.copy_(payload.sent[0]).mul_(flat.spread(payload.known[0]))

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(payload.sent[0] * flat.spread(payload.known[0]), alpha=alpha)

    def wire_bytes(self, flat: Flat) -> int:
        return flat.numel


def largest(x: Tensor, flat: Flat) -> Tensor:
    """The largest size in each tensor."""
    return torch.stack([part.max() for part in x.abs().split(list(flat.sizes))])


def _ternary(x: Tensor, scales: Tensor, streams: Streams) -> Tensor:
    """-1, 0 or 1, in the type of x."""
    drawn = torch.rand(x.numel(), dtype=at_least_single(x.dtype), generator=streams.own, device=x.device)
    return x.sign().mul_(drawn.mul_(scales) < x.abs())
