"""`Codec`: what of a flat gradient goes on the wire, in which bytes, and whether these add up.

    encode   x                     -> payload          on every worker, of its own gradient
    decode   payload               -> dense numbers    on every worker, of what came

Pure tensor code: the result depends on (x, state, random streams) alone. What a codec keeps between steps is in its
state, which it may change in place; whoever calls it goes on with the state that comes back. Sizes do not depend on the
numbers, so codecs run on meta tensors, and `wire_bytes` is exact.

A loss that is not finite reaches the other workers in the first element of the first bucket. So that no codec drops
it: where `x[0]` is not finite, the first element of what is decoded is not finite either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

Algebra = Literal["sum", "gather", "pairs"]
"""What may be done with payloads on the way.

"sum": added element by element; "gather": only handed on; "pairs": (values, indices), which merge.
"""

State = dict[str, Any]
"""What a codec keeps of one bucket between steps: tensors by name."""


@dataclass(frozen=True)
class Flat:
    """The shape of a bucket: tensors one after another in a flat one.

    Attributes:
        sizes: elements of each tensor, none of them zero.
        dtype, device: of all of them.
    """

    sizes: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @property
    def numel(self) -> int:
        return sum(self.sizes)

    @property
    def element_size(self) -> int:
        return self.dtype.itemsize

    def spread(self, scales: Tensor) -> Tensor:
        """One number per tensor, repeated for each of its elements."""
        return torch.cat([scale.expand(size) for scale, size in zip(scales, self.sizes, strict=True)])


@dataclass(frozen=True, eq=False)
class Payload:
    """An encoded gradient.

    Attributes:
        sent: what goes on the wire.
        known: what decoding needs and all workers have already.
    """

    sent: tuple[Tensor, ...]
    known: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class Streams:
    """Random numbers of a codec.

    Attributes:
        own: differ from worker to worker.
        shared: the same on all workers, if all draw alike.
    """

    own: torch.Generator
    shared: torch.Generator


class Codec(ABC):
    """A frozen dataclass of settings.

    Attributes:
        name: as on the command line.
        keeps_rest: what was not delivered is kept for the next step, see `restore`.
        most_workers: payloads of more workers than this cannot be summed.
    """

    name: ClassVar[str]
    keeps_rest: ClassVar[bool] = False
    most_workers: ClassVar[int | None] = None

    @property
    @abstractmethod
    def algebra(self) -> Algebra:
        """What may be done with the payloads on the way."""

    def init(self, flat: Flat) -> State:
        """The state of a bucket before the first step."""
        return {}

    def agree(self, x: Tensor, flat: Flat, state: State) -> Tensor | None:
        """Numbers of which all workers need the largest before they encode; None where there are none."""
        return None

    @abstractmethod
    def encode(
        self, x: Tensor, flat: Flat, state: State, streams: Streams, agreed: Tensor | None = None
    ) -> tuple[Payload, State]:
        """What goes on the wire for a gradient.

        Args:
            x: 1-D, as `flat` says; left as it is.
            flat: its shape.
            state: of this bucket.
            streams: random numbers.
            agreed: the maximum over the workers of what `agree` gave.
        """

    @abstractmethod
    def decode(self, payload: Payload, flat: Flat, out: Tensor) -> None:
        """`out` becomes what a payload, or a sum of payloads, stands for."""

    @abstractmethod
    def add(self, payload: Payload, flat: Flat, out: Tensor, alpha: float = 1.0) -> None:
        """`out` grows by alpha times what a payload stands for."""

    def conclude(self, total: Tensor) -> None:
        """Make the global gradient of the sum of what was decoded, in place."""
        return

    def restore(self, undelivered: Payload, flat: Flat, state: State) -> State:
        """Take back the part of an own payload that did not get into the sum; for codecs that `keeps_rest`."""
        return state

    def state_bytes(self, flat: Flat) -> int:
        """Bytes of the state of a bucket."""
        return 0

    @abstractmethod
    def wire_bytes(self, flat: Flat) -> int:
        """Bytes of a payload's `sent`: exact, without looking at data."""


def packed(parts: Sequence[Tensor]) -> Tensor:
    """The bytes of tensors one after another, those of the widest type first."""
    if len(parts) == 1:
        return parts[0].view(torch.uint8)
    return torch.cat([parts[k].view(torch.uint8) for k in _widest_first(parts)])


def unpacked(flat: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors like these ones out of their packed bytes: views, unless the bytes begin where their types cannot."""
    found, begin = dict[int, Tensor](), 0
    for k in _widest_first(like):
        part = flat[begin : begin + like[k].nbytes]
        if part.storage_offset() % like[k].element_size():
            part = part.clone()  # a wide type cannot begin anywhere
        found[k] = part.view(like[k].dtype)
        begin += like[k].nbytes
    return tuple(found[k] for k in range(len(like)))


def _widest_first(parts: Sequence[Tensor]) -> list[int]:
    return sorted(range(len(parts)), key=lambda k: -parts[k].element_size())


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """The type, or fp32 where it is narrower: to draw in, since in a narrow one draws are too coarse to be unbiased."""
    return torch.promote_types(dtype, torch.float32)


def bad_news(x: Tensor) -> Tensor:
    """0, or NaN where some element is not finite; 1-D with one element."""
    total = x.sum().view(1)
    return total - total
