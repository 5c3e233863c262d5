"""QSGD: each number rounded at random to one of s levels of its block's norm.

    Q(x_i) = ||x|| sgn(x_i) xi_i / s,   xi_i = l + 1 with probability r_i - l, else l,   r_i = s |x_i| / ||x||,  l = floor(r_i)

The mean over draws is x; the variance is at most min(d/s^2, sqrt(d)/s) ||x||^2 in a block of d.
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs import bits
from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams, at_least_single


@dataclass(frozen=True, kw_only=True)
class QSGD(Codec):
    """A sign and a level per number, a norm per block.

    Costs 1 + ceil(log2(s + 1)) bits per number and one number per block, without entropy coding.

    Args:
        levels: s, 1 to 127; 7 makes 4 bits. Chosen.
        block: numbers under one norm, d. Chosen: larger blocks send fewer norms and have more variance.
    """

    name: ClassVar[str] = "qsgd"
    algebra: ClassVar[Algebra] = "gather"

    levels: int = 7
    block: int = 512

    @property
    def width(self) -> int:
        """Bits per number."""
        return 1 + self.levels.bit_length()

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        norms = torch.linalg.vector_norm(self._blocks(x), dim=1)
        wide = at_least_single(x.dtype)
        steps = (norms.to(wide) / self.levels).clamp_(min=torch.finfo(wide).tiny)  # a block of zeros has none
        ratio = x.abs().to(wide).div_(self._spread(steps, flat))
        ratio.add_(torch.rand(flat.numel, dtype=wide, generator=streams.own, device=x.device))
        levels = ratio.floor_().clamp_(max=self.levels).to(torch.uint8)  # rounding can lift a ratio above s
        codes = levels + (x < 0).to(torch.uint8) * 2 ** (self.width - 1)
        return Payload((norms, bits.pack(codes, self.width))), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.copy_(self._values(payload, flat))

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(self._values(payload, flat), alpha=alpha)

    def wire_bytes(self, flat: Flat) -> int:
        norms = -(-flat.numel // self.block)
        return norms * flat.element_size + bits.packed_size(flat.numel, self.width)

    def _values(self, payload: Payload, flat: Flat) -> Tensor:
        norms, data = payload.sent
        codes = bits.unpack(data, flat.numel, self.width)
        values: Tensor = (codes & (2 ** (self.width - 1) - 1)).to(flat.dtype)
        values.mul_(self._spread(norms / self.levels, flat))
        return values.mul_(1 - 2 * (codes >> (self.width - 1)).to(flat.dtype))

    def _blocks(self, x: Tensor) -> Tensor:
        missing = -x.numel() % self.block
        return (torch.cat([x, x.new_zeros(missing)]) if missing else x).view(-1, self.block)

    def _spread(self, numbers: Tensor, flat: Flat) -> Tensor:
        """A number per block, repeated for each of its elements."""
        return numbers.unsqueeze(1).expand(-1, self.block).reshape(-1)[: flat.numel]
