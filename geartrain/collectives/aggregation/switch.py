"""The switch's part: adds what workers send, slot by slot, and survives the loss of any packet.

State: pool[2][s][k], count[2][s] = 0, seen[2][s][n] = 0, newest[s][n].

    on p(worker, version, slot, vector):
      p.sequence < newest[slot][worker]: drop                   it comes too late
      if not seen[version][slot][worker]:
        seen[version][slot][worker] = 1,  seen[1 - version][slot][worker] = 0
        count[version][slot] = (count[version][slot] + 1) mod n
        count was 0:  pool[version][slot] = vector              which is how a slot is cleaned
        else:         pool[version][slot] += vector
        count is 0:   send pool[version][slot] to all workers
      else (sent again):
        count[version][slot] = 0:  send pool[version][slot] to this worker

One other pool is enough: a worker sends phase t + 2 of a slot after it got the result of phase t + 1, which all workers
contributed to, so all had the result of phase t, and nobody asks for what is overwritten.

Paper: SwitchML, algorithm 3, recalled; the authors' code agrees. Differs from the paper:
    - `newest`: one bit for a worker does not survive a copy that comes late by two phases. It would be added to a phase
      that it is not from. Wires of one rack do not deliver so late; sockets of a host may, and tests do.
    - exponents: as in the authors' code the largest of all workers is returned.
    - packets are handled many at once. The order within a batch is not kept, as if the network had changed it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from geartrain.collectives.aggregation.packets import (
    EXPONENT,
    HEADER,
    WORKER,
    Indices,
    Rows,
    distinct,
    sequence_slots,
    sequences,
)


@dataclass
class Replies:
    """What a switch sends in answer.

    Attributes:
        to_all: results that were completed, for every worker.
        to_one: (worker, results that were complete already and that it asked for again).
    """

    to_all: list[Rows] = field(default_factory=list)
    to_one: list[tuple[int, Rows]] = field(default_factory=list)


class SwitchState:
    """See the module.

    Args:
        num_workers: n.
        slots: s, of each of the two pools.
        width: k, integers in a packet.
    """

    def __init__(self, num_workers: int, slots: int, width: int) -> None:
        self._num_workers, self._slots = num_workers, slots
        self._pool = np.zeros((2, slots, width), np.int32)
        self._exponent = np.zeros((2, slots), np.int32)
        self._count = np.zeros((2, slots), np.int32)
        self._seen = np.zeros((2, slots, num_workers), np.bool_)
        self._newest = np.full((num_workers, slots), -1, np.int64)

    def on_packets(self, rows: Rows) -> Replies:
        """Take packets of one length; what is sent in answer."""
        replies = Replies()
        for worker, part in _by_worker(rows, self._slots):
            if 0 <= worker < self._num_workers:
                self._take(worker, part, replies)
        return replies

    def missing(self) -> list[int]:
        """The workers that some slot, begun and not complete, still waits for."""
        begun = np.nonzero(self._count)
        return np.flatnonzero(~self._seen[begun].all(axis=0)).tolist() if len(begun[0]) else []

    def _take(self, worker: int, rows: Rows, replies: Replies) -> None:
        """Packets of one worker, each of another slot."""
        sequence = sequences(rows)
        slot, version = self._place(sequence)
        in_time = self._in_time(worker, slot, sequence)
        if not in_time.all():
            rows, sequence, slot, version = rows[in_time], sequence[in_time], slot[in_time], version[in_time]
        self._newest[worker, slot] = sequence
        again = self._seen[version, slot, worker]
        if again.any():
            ready = again & (self._count[version, slot] == 0)
            if ready.any():
                replies.to_one.append((worker, self._result(rows[ready], version[ready], slot[ready])))
            rows, slot, version = rows[~again], slot[~again], version[~again]
        if len(rows):
            self._mark(worker, version, slot)
            self._add(rows, version, slot, replies)

    def _place(self, sequence: Indices) -> tuple[Indices, Indices]:
        return sequence_slots(sequence, self._slots)

    def _in_time(self, worker: int, slot: Indices, sequence: Indices) -> np.ndarray:
        late: np.ndarray = sequence >= self._newest[worker, slot]
        return late

    def _mark(self, worker: int, version: Indices, slot: Indices) -> None:
        self._seen[version, slot, worker] = True
        self._seen[1 - version, slot, worker] = False

    def _add(self, rows: Rows, version: Indices, slot: Indices, replies: Replies) -> None:
        before = self._count[version, slot]
        self._count[version, slot] = after = (before + 1) % self._num_workers
        given = rows[:, EXPONENT]
        self._exponent[version, slot] = np.where(before == 0, given, np.maximum(given, self._exponent[version, slot]))
        if rows.shape[1] > HEADER:
            first = before == 0
            if first.all():
                self._pool[version, slot] = rows[:, HEADER:]
            elif not first.any():
                self._pool[version, slot] += rows[:, HEADER:]
            else:
                self._pool[version[first], slot[first]] = rows[first, HEADER:]
                self._pool[version[~first], slot[~first]] += rows[~first, HEADER:]
        done = after == 0
        if done.any():
            replies.to_all.append(self._result(rows[done], version[done], slot[done]))

    def _result(self, rows: Rows, version: Indices, slot: Indices) -> Rows:
        result = np.empty_like(rows)
        result[:, :HEADER] = rows[:, :HEADER]
        result[:, EXPONENT] = self._exponent[version, slot]
        if rows.shape[1] > HEADER:
            result[:, HEADER:] = self._pool[version, slot]
        return result


def _by_worker(rows: Rows, slots: int) -> Iterator[tuple[int, Rows]]:
    """Packets worker by worker, in parts in which no slot comes twice."""
    workers = rows[:, WORKER]
    for worker in np.unique(workers).tolist():
        part = rows[workers == worker]
        while len(part):
            first = _one_of_each(part, slots)
            if first is None:
                yield worker, part
                break
            rest = np.ones(len(part), np.bool_)
            rest[first] = False
            yield worker, part[first]
            part = part[rest]


def _one_of_each(rows: Rows, slots: int) -> Indices | None:
    """The first packet of each slot; None where no slot comes twice."""
    sequence = sequences(rows)
    if distinct(sequence) is None and sequence[-1] - sequence[0] < slots:
        return None
    first = np.unique(sequence % slots, return_index=True)[1]
    return None if len(first) == len(rows) else first
