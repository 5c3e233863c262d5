"""`Datagrams`: packets between ranks that may be lost, for methods whose protocol stands below messages.

A packet may be lost, come twice, or come after one that was sent later; no sender waits until its packet is received.
Packets travel in batches, rows of an array of bytes, so that a protocol works on many at once. Who sent a packet is
for its protocol to write into it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

Packets = NDArray[np.uint8]
"""[number of packets, bytes of each]: packets that are equally long; the rows themselves lie without gaps."""


class Datagrams(ABC):
    """One rank's endpoint among all ranks of a run.

    Attributes:
        room: bytes of packets that any rank can be sent without reading them; what is more may be lost.
        reliable: nothing is lost, comes twice or overtakes here.
    """

    room: int
    reliable: bool

    @abstractmethod
    def send(self, targets: Sequence[int], packets: Packets) -> None:
        """Send all packets to each of these ranks (of `Context.everyone`), as they are at the moment of the call."""

    @abstractmethod
    def receive(self, deadline: float | None = None, enough: int = 1) -> list[Packets]:
        """Wait until there are packets; all that are there, those of one length together.

        They are the caller's until the next call. An empty list at `deadline`, a time of `ctx.clock`, or before.

        Args:
            enough: where packets come fast and each call costs time, a moment may be waited for as many.
        """

    @abstractmethod
    def operation(self, kind: str, size: int, ranks: Sequence[int]) -> AbstractContextManager[None]:
        """What is sent inside is one operation of the record.

        Args:
            kind: e.g. "all_reduce".
            size: bytes of the operation as its user sees it.
            ranks: who makes it; they make the same ones in the same order.
        """

    def close(self) -> None:
        """Give back what the endpoint holds. Packets that still come are lost."""
        return
