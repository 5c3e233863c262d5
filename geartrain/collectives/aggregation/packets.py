"""How a packet of the aggregation protocol lies in memory: a header of four words, then k integers of 32 bits.

    word 0, 1   sequence   number of the packet since the run began, 64 bits; it says slot and version
    word 2      worker     who sent it; in a result, whom it answers
    word 3      exponent   of a chunk, see `geartrain.collectives.aggregation.numbers`

    slot = sequence mod s,   version = (sequence div s) mod 2

So a slot is used with version 0 first, and the version flips each time the slot is used again, from one tensor to the
next as well. Packets are rows of an array; a packet that carries an exponent only has no integers. Words are in the
byte order of the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from geartrain.runtime.datagrams import Packets

Rows = NDArray[np.int32]
"""[number of packets, HEADER or HEADER + k]."""
Indices = NDArray[np.int64]

HEADER = 4
HEADER_SIZE = 4 * HEADER
WORKER, EXPONENT = 2, 3


def sequences(rows: Rows) -> Indices:
    """The numbers of the packets, as a view that can be written to."""
    column: Indices = rows[:, :2].view(np.int64)[:, 0]
    return column


def sequence_slots(sequence: Indices, slots: int) -> tuple[Indices, Indices]:
    """Slot and version of each packet."""
    turn, slot = np.divmod(sequence, slots)
    return slot, turn & 1


def to_rows(packets: Packets) -> Rows:
    """Received bytes as packets."""
    return packets.view(np.int32)


def to_bytes(rows: Rows) -> Packets:
    """Packets as bytes to send."""
    return np.ascontiguousarray(rows).view(np.uint8)


def picked(array: NDArray[Any], index: Indices) -> NDArray[Any]:
    """`array[index]` of ascending indices: a view where they follow each other, else a copy."""
    if len(index) and index[-1] - index[0] + 1 == len(index):
        return array[index[0] : index[-1] + 1]
    return array[index]


def distinct(sequence: Indices) -> Indices | None:
    """Where each number comes first, in ascending order; None where they ascend already, which is the usual case."""
    if len(sequence) < 2 or bool((sequence[1:] > sequence[:-1]).all()):
        return None
    return np.unique(sequence, return_index=True)[1]
