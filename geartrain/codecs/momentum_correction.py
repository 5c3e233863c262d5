"""Momentum correction with factor masking: each worker's momentum is applied before it chooses what to send.

    v <- m v + x,   u <- u + v,   send u_S,   u_S <- 0,   v_S <- 0

Source: Lin, Han, Mao, Wang, Dally, 2018 (Deep Gradient Compression), as recalled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams


@dataclass(frozen=True, kw_only=True)
class MomentumCorrection(Codec):
    """Error feedback for sparse codecs that keeps momentum right: a number that is sent late has its momentum with it.

    Takes the place of the optimizer's momentum, which would count it twice.

    Costs two copies of the gradient as memory.

    Args:
        inner: a codec of (values, places).
        momentum: m, in (0, 1).
    """

    keeps_rest: ClassVar[bool] = True

    inner: Codec
    momentum: float

    @property
    def name(self) -> str:  # type: ignore[override]  # that of what it wraps
        return f"momentum_correction({self.inner.name})"

    @property
    def algebra(self) -> Algebra:
        return self.inner.algebra

    def init(self, flat: Flat) -> State:
        zeros = torch.zeros(flat.numel, dtype=flat.dtype, device=flat.device)
        return {"velocity": zeros, "residual": zeros.clone(), "inner": self.inner.init(flat)}

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        velocity = state["velocity"].mul_(self.momentum).add_(x)
        residual = state["residual"].add_(velocity)
        payload, inner = self.inner.encode(residual, flat, state["inner"], streams, agreed)
        places = payload.sent[1]
        residual.index_fill_(0, places.long(), 0)
        velocity.index_fill_(0, places.long(), 0)
        return payload, {"velocity": velocity, "residual": residual, "inner": inner}

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        self.inner.decode(payload, flat, out)

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        self.inner.add(payload, flat, out, alpha)

    def restore(self, undelivered: Payload, flat: Flat, state: State) -> State:
        self.inner.add(undelivered, flat, state["residual"])
        return state

    def state_bytes(self, flat: Flat) -> int:
        return 2 * flat.numel * flat.element_size + self.inner.state_bytes(flat)

    def wire_bytes(self, flat: Flat) -> int:
        return self.inner.wire_bytes(flat)
