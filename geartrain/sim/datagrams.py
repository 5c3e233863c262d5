"""Datagrams in virtual time: a batch of packets is one transfer that nobody needs to wait for.

    sent      the batches from one rank to another leave one after another, each as one flow over the route's links;
              a batch to several ranks is a flow to each of them, as a switch has a port for each
    arrived   one latency after the last byte has left, all packets of the batch together, into an unbounded inbox

So a packet is as long under way as its batch: a protocol that wants the times of single packets sends them singly.
Nothing is lost here; whoever wants losses draws them from a seed where packets are received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from geartrain.record.log import Op
from geartrain.runtime.datagrams import Datagrams, Packets
from geartrain.sim.fabric import Fabric
from geartrain.sim.kernel import Event

_ROOM = 1 << 62  # an inbox has no end


@dataclass(slots=True)
class _Batch:
    packets: Packets
    op: Op
    last: bool  # of those that were sent together: with it the operation is done


@dataclass(eq=False)
class Post:
    """What the endpoints of one name share: inboxes, and the batches on their way between two ranks."""

    inboxes: dict[int, deque[Packets]] = field(default_factory=dict)
    came: dict[int, Event] = field(default_factory=dict)
    lines: dict[tuple[int, int], deque[_Batch]] = field(default_factory=dict)


class SimulatedDatagrams(Datagrams):
    """See `Datagrams` and the module.

    Args:
        fabric: of the run.
        name: the same on all ranks, of this endpoint only.
        rank: whose.
    """

    room = _ROOM
    reliable = True

    def __init__(self, fabric: Fabric, name: str, rank: int) -> None:
        self._fabric, self._name, self._rank = fabric, name, rank
        self._post = fabric.posts.setdefault(name, Post())
        self._post.inboxes.setdefault(rank, deque())
        self._operation: Op | None = None
        self._num_operations = self._num_sends = 0

    def send(self, targets: Sequence[int], packets: Packets) -> None:
        if not len(packets) or not targets:
            return
        activity = self._fabric.kernel.sync()
        op = self._operation
        if op is None:
            key = (self._name, "d", self._rank, self._num_sends)
            op = Op(key, "send", 0, 0, activity.now, activity.name, (self._rank,), packets.nbytes)
            activity.state.rank.log.ops.append(op)
            self._num_sends += 1
        op.nbytes += packets.nbytes * len(targets)
        op.messages += len(packets) * len(targets)
        taken = packets.copy()
        for target in targets:
            line = self._post.lines.setdefault((self._rank, target), deque())
            line.append(_Batch(taken, op, op is not self._operation and target == targets[-1]))
            if len(line) == 1:
                self._transfer(target, line)

    def _transfer(self, target: int, line: deque[_Batch]) -> None:
        fabric, kernel, batch = self._fabric, self._fabric.kernel, line[0]
        route = fabric.placement.route(self._rank, target)

        def left(now: float) -> None:
            if batch.last:
                batch.op.done = kernel.now
            kernel.at(kernel.now + route.latency, lambda: self._arrive(target, batch.packets))
            line.popleft()
            if line:
                self._transfer(target, line)

        kernel.network.start(kernel.now, float(batch.packets.nbytes), route.links, left)

    def _arrive(self, target: int, packets: Packets) -> None:
        self._post.inboxes.setdefault(target, deque()).append(packets)
        event = self._post.came.pop(target, None)
        if event is not None:
            self._fabric.kernel.fire(event)

    def receive(self, deadline: float | None = None, enough: int = 1) -> list[Packets]:
        fabric, inbox = self._fabric, self._post.inboxes[self._rank]
        fabric.kernel.sync()
        while not inbox:
            event = self._post.came.setdefault(self._rank, Event(f"packets of {self._name}"))
            key = self._operation.key if self._operation is not None else None
            if not fabric.wait(event, key, "datagrams", deadline) and not inbox:
                return []
        widths: dict[int, list[Packets]] = {}
        for packets in inbox:
            widths.setdefault(packets.shape[1], []).append(packets)
        inbox.clear()
        return [np.concatenate(batches) if len(batches) > 1 else batches[0] for batches in widths.values()]

    @contextmanager
    def operation(self, kind: str, size: int, ranks: Sequence[int]) -> Iterator[None]:
        activity = self._fabric.kernel.sync()
        key = (self._name, "c", self._num_operations)
        self._num_operations += 1
        op = Op(key, kind, 0, 0, activity.now, activity.name, tuple(ranks), size)
        activity.state.rank.log.ops.append(op)
        self._operation = op
        yield
        self._operation = None
        op.done = activity.now
