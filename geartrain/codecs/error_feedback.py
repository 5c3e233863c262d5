"""Error feedback: what a codec leaves out is added to the next gradient.

u = x + e,   send C(u),   e <- u - C(u)          so that  sent + new e = x + old e
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams


@dataclass(frozen=True, kw_only=True)
class ErrorFeedback(Codec):
    """A codec that forgets nothing.

    Costs a copy of the gradient as memory, and two passes over it. The equation above holds to the bit where the codec
    sends numbers as they are or rounds them once (top-k, random-k, fp16, bf16), and to rounding elsewhere.

    Args:
        inner: the codec that leaves something out.
    """

    keeps_rest: ClassVar[bool] = True

    inner: Codec

    @property
    def name(self) -> str:  # type: ignore[override]  # that of what it wraps
        return f"error_feedback({self.inner.name})"

    @property
    def algebra(self) -> Algebra:
        return self.inner.algebra

    def init(self, flat: Flat) -> State:
        residual = torch.zeros(flat.numel, dtype=flat.dtype, device=flat.device)
        return {"residual": residual, "inner": self.inner.init(flat)}

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        residual = state["residual"].add_(x)
        payload, inner = self.inner.encode(residual, flat, state["inner"], streams, agreed)
        self.inner.add(payload, flat, residual, -1.0)
        return payload, {"residual": residual, "inner": inner}

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        self.inner.decode(payload, flat, out)

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        self.inner.add(payload, flat, out, alpha)

    def conclude(self, total: Tensor) -> None:
        self.inner.conclude(total)

    def restore(self, undelivered: Payload, flat: Flat, state: State) -> State:
        self.inner.add(undelivered, flat, state["residual"])
        return state

    def state_bytes(self, flat: Flat) -> int:
        return flat.numel * flat.element_size + self.inner.state_bytes(flat)

    def wire_bytes(self, flat: Flat) -> int:
        return self.inner.wire_bytes(flat)
