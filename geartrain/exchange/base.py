"""`Exchange`: who gets what from whom. It takes payloads of codecs and gives every worker the same sum.

    start    payload -> pending        begins, and does not wait
    wait     pending -> dense sum      the same to the bit on all workers

An exchange is a frozen value; `open` makes the part that runs on one worker. `accepts` names the algebras of the codecs
that fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import Algebra, Codec, Flat, Payload
from geartrain.cost.terms import Traffic
from geartrain.runtime.context import Context
from geartrain.runtime.counting import Price


@dataclass(frozen=True, kw_only=True)
class ExchangeCost:
    """One bucket's exchange in closed form.

    Attributes:
        before: seconds in which a worker computes before it can send.
        wire: seconds from the start on all workers until everything has come, merging on the way included.
        after: seconds in which a worker decodes what came.
        sent: by worker.
        cuts: parts of payloads may stay undelivered.
        held: bytes beside the payload from start to end.
    """

    before: float = 0.0
    wire: float = 0.0
    after: float = 0.0
    sent: tuple[Traffic, ...]
    cuts: bool = False
    held: int = 0


class Pending(ABC):
    """An exchange under way."""

    @abstractmethod
    def wait(self, out: Tensor) -> None:
        """Until it is done; `out` becomes the sum over the workers of what their payloads stand for."""

    def undelivered(self) -> Payload | None:
        """After `wait`: the part of this worker's payload that did not get into the sum; None where all did."""
        return None


class Channel(ABC):
    """A running exchange on one worker. All workers start the same buckets in the same order."""

    @abstractmethod
    def start(self, payload: Payload, codec: Codec, flat: Flat) -> Pending: ...

    def close(self) -> None:
        """Leave no trace. Called once, also after an error."""
        return


class Exchange(ABC):
    """A frozen dataclass of settings.

    Attributes:
        name: as on the command line.
        accepts: algebras of the codecs that fit.
    """

    name: ClassVar[str]
    accepts: ClassVar[frozenset[Algebra]]

    @abstractmethod
    def open(self, ctx: Context, *, overlap: bool) -> Channel:
        """Make this worker's part. All workers call it at the same point.

        Args:
            ctx: of the worker.
            overlap: what is started runs beside what the worker computes.
        """

    @abstractmethod
    def cost(self, payload: Payload, codec: Codec, flat: Flat, place: Placement, price: Price) -> ExchangeCost:
        """The closed form for one bucket; bytes and messages are exact.

        Args:
            payload: of this bucket, on the meta device.
            codec, flat: what it was encoded by and from.
            place: where the workers are.
            price: seconds of pieces of work on the slowest worker.
        """
