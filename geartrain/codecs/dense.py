"""Dense: every number, as it is or in a narrower type.

    none   x            fp16, bf16   x rounded to the type; sums are made in it, too

fp16 holds whole numbers up to 2048 exactly and ends at 65504, beyond which a sum is infinite and the run stops; bf16
holds them up to 256 and ends where fp32 does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams


@dataclass(frozen=True, kw_only=True)
class Dense(Codec):
    """The numbers themselves; nothing is copied."""

    name: ClassVar[str] = "none"
    algebra: ClassVar[Algebra] = "sum"

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        return Payload((x,)), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        if payload.sent[0] is not out:
            out.copy_(payload.sent[0])

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(payload.sent[0], alpha=alpha)

    def wire_bytes(self, flat: Flat) -> int:
        return flat.numel * flat.element_size


@dataclass(frozen=True, kw_only=True)
class Cast(Codec):
    """The numbers in another type.

    Costs half the bytes of fp32, and a pass over the gradient on either side.

    Args:
        dtype: float16 or bfloat16.
    """

    algebra: ClassVar[Algebra] = "sum"

    dtype: torch.dtype

    @property
    def name(self) -> str:  # type: ignore[override]  # one class, two names
        return "fp16" if self.dtype is torch.float16 else "bf16"

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        return Payload((x.to(self.dtype, copy=True),)), state  # x is left as it is, also if it has the type

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.copy_(payload.sent[0])

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        out.add_(payload.sent[0], alpha=alpha)

    def wire_bytes(self, flat: Flat) -> int:
        return flat.numel * self.dtype.itemsize
