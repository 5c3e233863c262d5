"""Top-k: the k numbers that are largest in size, with their places.

k = max(1, floor(density * n)),   S = places of the k largest |x|,   payload (x_S, S)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams, bad_news

INDEX = torch.int32
"""Type of a place on the wire: enough for buckets of two thousand million elements."""


@dataclass(frozen=True, kw_only=True)
class TopK(Codec):
    """The largest numbers of a bucket and where they stand.

    Costs k (element + 4) bytes: for fp32 twice what the values alone take. Choosing reads the bucket several times, and
    on accelerators takes about as long as sorting it.

    Args:
        density: share of the elements that is sent, in (0, 1]. 0.001 is typical in the survey's code, 0.01 is chosen.
    """

    name: ClassVar[str] = "top_k"
    algebra: ClassVar[Algebra] = "pairs"

    density: float = 0.01

    def count(self, flat: Flat) -> int:
        """How many elements are sent."""
        return max(1, int(self.density * flat.numel))

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        places = x.abs().topk(self.count(flat), sorted=False).indices
        values = x[places].add_(bad_news(x[:1]))
        return Payload((values, places.to(INDEX))), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.zero_()
        self.add(payload, flat, out)

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        values, places = payload.sent
        out.index_add_(0, places, values, alpha=alpha)
        out[:1].add_(bad_news(values))

    def wire_bytes(self, flat: Flat) -> int:
        return self.count(flat) * (flat.element_size + INDEX.itemsize)
