"""A worker's part: streams a tensor through the slots of the switch, and sends again what got no answer.

    packets 0 .. min(s, P) - 1 at once                 P chunks; at most s packets are under way
    on the result of packet j:   keep it;  send packet j + s      the result proves that all workers have used the slot
    on a timeout:                send the same packet again
    a result that is here already: nothing

With block floating point a chunk's exponent travels one window ahead, so that all know E before its integers are sent:

    w = min(s, P)
    packet j, of P + w:   the exponent of chunk j  (j < P),  the integers of chunk j - w  (j >= w; else none)
    packet j + w needs the result of packet j, too

Numbers of packets go on from one tensor to the next, and with them slots and versions.

Paper: SwitchML, algorithm 4, recalled; the authors' code agrees, also on the extra batch of w packets.
"""

from __future__ import annotations

import math

import numpy as np

from geartrain.collectives.aggregation.numbers import NOTHING, Chunks, Numbers
from geartrain.collectives.aggregation.packets import (
    EXPONENT,
    HEADER,
    WORKER,
    Indices,
    Rows,
    distinct,
    picked,
    sequences,
)
from geartrain.collectives.aggregation.timer import RetransmissionTimer


def extra_packets(num_chunks: int, slots: int, *, ahead: bool) -> int:
    """Packets without integers, of a tensor of so many chunks."""
    return min(slots, num_chunks) if ahead else 0


def burst_size(num_chunks: int, burst: int) -> int:
    """Packets that go out together: an eighth of the tensor at most, so that packets go up while results come down."""
    return max(1, min(burst, -(-num_chunks // 8)))


class WorkerStream:
    """One tensor on one worker.

    Args:
        worker: its number.
        chunks: the tensor, padded to whole chunks; the sums come into their place. One that cannot be written to is
            sent, and the sums are dropped.
        numbers: how it is made of integers.
        slots: s.
        first: number of its first packet: of the packets of all tensors before.
        timer: of this worker, for all tensors.
    """

    def __init__(
        self, worker: int, chunks: Chunks, numbers: Numbers, slots: int, first: int, timer: RetransmissionTimer
    ) -> None:
        self._worker, self._chunks, self._numbers = worker, chunks, numbers
        self._slots, self._first, self._timer = slots, first, timer
        self._num_chunks = len(chunks)
        self._extra = extra_packets(len(chunks), slots, ahead=numbers.ahead)
        self.num_packets = len(chunks) + self._extra
        self._left = self.num_packets
        self._agreed = np.full(len(chunks), NOTHING, np.int32)
        self._issued = np.zeros(self.num_packets, np.bool_)
        self._received = np.zeros(self.num_packets, np.bool_)
        # By slot: what is under way, since when, and whether it was sent again.
        self._under_way = np.empty((slots, HEADER + chunks.shape[1]), np.int32)
        self._short = np.zeros(slots, np.bool_)
        self._since = np.full(slots, math.inf)
        self._repeated = np.zeros(slots, np.bool_)

    @property
    def done(self) -> bool:
        """Whether all sums are here."""
        return self._left == 0

    @property
    def outstanding(self) -> int:
        """Packets under way."""
        return int(np.isfinite(self._since).sum())

    @property
    def deadline(self) -> float:
        """When `on_timeout` has something to do."""
        return float(self._since.min()) + self._timer.timeout

    def start(self, now: float) -> list[Rows]:
        """The first packets."""
        return self._send(np.arange(min(self._extra or self._slots, self.num_packets)), now)

    def on_packets(self, rows: Rows, now: float) -> list[Rows]:
        """Results have come, of one length; what is sent now."""
        where = distinct(sequences(rows))
        rows = rows if where is None else rows[where]
        index = sequences(rows) - self._first
        fresh = (index >= 0) & (index < self.num_packets)
        fresh[fresh] = ~self._received[index[fresh]]
        if not fresh.all():
            index, rows = index[fresh], rows[fresh]
        if not len(index):
            return []
        self._account(index, now)
        early = index < self._num_chunks
        self._agreed[index[early]] = rows[early, EXPONENT]
        if rows.shape[1] > HEADER and self._chunks.flags.writeable:
            chunk = index - self._extra
            exponents = self._agreed[chunk] if self._numbers.ahead else rows[:, EXPONENT]
            self._chunks[chunk] = self._numbers.restore(rows[:, HEADER:], exponents)
        return self._send(self._following(index), now)

    def on_timeout(self, now: float) -> list[Rows]:
        """Send again what has waited too long."""
        late = np.flatnonzero(self._since + self._timer.timeout <= now)
        if not len(late):
            return []
        self._timer.expired()
        self._since[late], self._repeated[late] = now, True
        return self._outgoing(late)

    def _account(self, index: Indices, now: float) -> None:
        slot = (self._first + index) % self._slots
        once = ~self._repeated[slot]
        if once.any():
            self._timer.answered(float(now - self._since[slot[once]].min()))
        self._since[slot] = math.inf
        self._received[index] = True
        self._left -= len(index)

    def _following(self, index: Indices) -> Indices:
        """The packets that the results of these let go."""
        extra, slots = self._extra, self._slots
        steps = {slots, extra} - {0}
        following = index + slots
        if len(steps) > 1:
            following = np.unique(np.concatenate([following, index + extra]))
        following = following[following < self.num_packets]
        free = ~self._issued[following]
        for step in steps:
            free &= (following < step) | self._received[np.maximum(following - step, 0)]
        return following[free]

    def _send(self, index: Indices, now: float) -> list[Rows]:
        """New packets, in order."""
        if not len(index):
            return []
        self._issued[index] = True
        slot = (self._first + index) % self._slots
        self._since[slot], self._repeated[slot], self._short[slot] = now, False, index < self._extra
        rows = np.empty((len(index), self._under_way.shape[1]), np.int32)
        sequences(rows)[:] = self._first + index
        rows[:, WORKER], rows[:, EXPONENT] = self._worker, NOTHING
        known = int(np.searchsorted(index, self._num_chunks))
        rows[:known, EXPONENT] = own = self._numbers.exponents(picked(self._chunks, index[:known]))
        begin = int(np.searchsorted(index, self._extra))
        chunk = index[begin:] - self._extra
        if len(chunk):
            exponents = self._agreed[chunk] if self._numbers.ahead else own
            rows[begin:, HEADER:] = self._numbers.quantise(picked(self._chunks, chunk), exponents)
        self._under_way[slot] = rows
        return [part for part in (rows[:begin, :HEADER], rows[begin:]) if len(part)]

    def _outgoing(self, slot: Indices) -> list[Rows]:
        short = self._short[slot]
        parts = self._under_way[slot[short], :HEADER], self._under_way[slot[~short]]
        return [part for part in parts if len(part)]
