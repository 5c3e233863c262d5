"""Signs: one bit per number. Zero counts as positive, since a bit has no third value.

sign          sgn(x_i);   the votes of all workers are counted:  sgn(sum of signs), 0 where they are even
scaled_sign   (||x||_1 / n) sgn(x_i)  per tensor
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs import bits
from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams


@dataclass(frozen=True, kw_only=True)
class Sign(Codec):
    """A vote per number: the result is the sign that most workers have.

    Costs one bit per number, and one that says whether the first one is finite.
    """

    name: ClassVar[str] = "sign"
    algebra: ClassVar[Algebra] = "gather"

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        votes = torch.cat([x >= 0, ~x[:1].isfinite()]).to(torch.uint8)
        return Payload((bits.pack(votes, 1),)), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.copy_(self._values(payload, flat))

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(self._values(payload, flat), alpha=alpha)

    def conclude(self, total: Tensor) -> None:
        news = total[:1] - total[:1]
        total.sign_()
        total[:1].add_(news)  # the sign of NaN is 0

    def wire_bytes(self, flat: Flat) -> int:
        return bits.packed_size(flat.numel + 1, 1)

    def _values(self, payload: Payload, flat: Flat) -> Tensor:
        votes = bits.unpack(payload.sent[0], flat.numel + 1, 1).to(flat.dtype)
        signs = votes[:-1].mul_(2).sub_(1)
        signs[:1].div_(1 - votes[-1:])  # infinite where the last bit says so
        return signs


@dataclass(frozen=True, kw_only=True)
class ScaledSign(Codec):
    """The signs and the mean size of each tensor; made for error feedback.

    Costs one bit per number and one number per tensor.
    """

    name: ClassVar[str] = "scaled_sign"
    algebra: ClassVar[Algebra] = "gather"

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        scales = torch.stack([part.mean() for part in x.abs().split(list(flat.sizes))])
        return Payload((scales, bits.pack((x >= 0).to(torch.uint8), 1))), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.copy_(self._values(payload, flat))

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(self._values(payload, flat), alpha=alpha)

    def wire_bytes(self, flat: Flat) -> int:
        return len(flat.sizes) * flat.element_size + bits.packed_size(flat.numel, 1)

    def _values(self, payload: Payload, flat: Flat) -> Tensor:
        scales, data = payload.sent
        signs = bits.unpack(data, flat.numel, 1).to(flat.dtype).mul_(2).sub_(1)
        return signs.mul_(flat.spread(scales))
