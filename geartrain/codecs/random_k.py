"""Random-k: the numbers at k places that all workers draw alike.

k = max(1, floor(density * n)),   S = k places from a seed that all workers share,   payload x_S, or n/k x_S
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from geartrain.codecs.base import Algebra, Codec, Flat, Payload, State, Streams, bad_news


@dataclass(frozen=True, kw_only=True)
class RandomK(Codec):
    """Values without places: everybody knows these, so payloads add up and can be all-reduced.

    Costs k elements. Drawing the places is a permutation of the bucket.

    Args:
        density: share of the elements that is sent, in (0, 1].
        unbiased: scale by n/k, so that the mean over many draws is x. Not with error feedback, which sends the rest
            later.
    """

    name: ClassVar[str] = "random_k"
    algebra: ClassVar[Algebra] = "sum"

    density: float = 0.01
    unbiased: bool = True

    def count(self, flat: Flat) -> int:
        """How many elements are sent."""
        return max(1, int(self.density * flat.numel))

    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        count = self.count(flat)
        places = torch.randperm(flat.numel, generator=streams.shared, device=x.device)[:count]
        values = x[places].add_(bad_news(x[:1]))
        if self.unbiased and count < flat.numel:
            values.mul_(flat.numel / count)
        return Payload((values,), (places,)), state

    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        out.zero_()
        self.add(payload, flat, out)

    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        values = payload.sent[0]
        out.index_add_(0, payload.known[0], values, alpha=alpha)
        out[:1].add_(bad_news(values))

    def wire_bytes(self, flat: Flat) -> int:
        return self.count(flat) * flat.element_size
