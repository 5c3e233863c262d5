"""How ranks meet: collectives that begin when the last rank has entered, messages that begin when both ends are posted.

A collective begins when its last rank has entered it and the collectives of its group that were complete before it have
ended; it is one fluid activity over all links of its algorithm, after the algorithm's latency terms. A message begins
when both its send and its receive are posted (gloo's sends wait for the receiver too) and the messages of that pair
that were matched before it have left; the sender is done when the last byte has left, the receiver one latency later.
The numbers move at the moment the operation ends.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch import Tensor

from geartrain.errors import CollectiveMismatch
from geartrain.record.log import Op
from geartrain.sim import numerics
from geartrain.sim.fabric import Fabric, Plan, ranks_text
from geartrain.sim.kernel import Event
from geartrain.torch_private import Call, without_dispatch
from geartrain.units import format_size

_ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})


def signature(call: Call) -> tuple[Any, ...]:
    """What all ranks must give alike: kind, reduction, root, and per item elements and type.

    `call.op` is the reduction's name here (`SimulatedGroup.launch` sees to it).
    """
    kind = call.kind
    root = call.root if kind in _ROOTED else None
    items: tuple[Any, ...]
    if kind == "all_to_all":
        items = tuple([item.gives[0].dtype if item.gives else None for item in call.items])
    elif kind == "scatter":
        items = tuple([(item.gets[0].numel(), item.gets[0].dtype) for item in call.items])
    else:
        items = tuple([(item.gives[0].numel(), item.gives[0].dtype) for item in call.items])
    return (kind, call.op, root, items)


def signature_text(given: tuple[Any, ...]) -> str:
    """A signature in words, e.g. `all_reduce op=sum [4 x float32]`."""
    kind, op, root, items = given
    words = [kind]
    if op is not None:
        words.append(f"op={op}")
    if root is not None:
        words.append(f"root={root}")
    shown = [f"{i[0]} x {_dtype(i[1])}" if isinstance(i, tuple) else _dtype(i) for i in items[:4]]
    if shown:
        words.append("[" + ", ".join(shown) + (", ..." if len(items) > 4 else "") + "]")
    return " ".join(words)


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class Meeting:
    """One collective, from its first rank's entry to its end."""

    __slots__ = ("calls", "channel", "done", "entrants", "ops", "plan", "sequence", "signature")

    def __init__(self, channel: Channel, sequence: int, given: tuple[Any, ...], size: int) -> None:
        self.channel, self.sequence, self.signature = channel, sequence, given
        self.calls: list[Call | None] = [None] * channel.size
        self.ops: list[Op] = []
        self.entrants: list[int] = []  # group ranks, in the order of `ops`
        self.plan = channel.plan(given, size)
        self.done = Event(self._describe)

    def entered(self) -> list[int]:
        """Global ranks that have entered."""
        return [rank for rank, call in zip(self.channel.ranks, self.calls, strict=True) if call is not None]

    def missing(self) -> list[int]:
        """Global ranks that have not."""
        return [rank for rank, call in zip(self.channel.ranks, self.calls, strict=True) if call is None]

    def _describe(self) -> str:
        text = f"{self.signature[0]} #{self.sequence} of group {self.channel.name} ({format_size(self.ops[0].size)})"
        missing = self.missing()
        if missing:
            return f"{text}, entered by {ranks_text(self.entered())}, not by {ranks_text(missing)}"
        return f"{text}, entered by all, under way"


class Message:
    """A posted send or receive. Ranks are group ranks; `peer` is None for a receive from any rank."""

    __slots__ = ("channel", "done", "matched", "me", "op", "peer", "sends", "tag", "tensor")

    def __init__(
        self, channel: Channel, tensor: Tensor, sends: bool, me: int, peer: int | None, tag: int, op: Op
    ) -> None:
        self.channel, self.tensor, self.sends = channel, tensor, sends
        self.me, self.peer, self.tag, self.op = me, peer, tag, op
        self.matched = False
        self.done = Event(self._describe)

    def _describe(self) -> str:
        what = "send to" if self.sends else "recv from"
        who = "any rank" if self.peer is None else f"rank {self.channel.ranks[self.peer]}"
        state = "under way" if self.matched else f"no matching {'recv' if self.sends else 'send'} is posted"
        return f"{what} {who}, tag {self.tag}, group {self.channel.name} ({format_size(self.op.size)}), {state}"


class Channel:
    """What the ranks of one group share: the collectives under way and the messages posted."""

    def __init__(self, fabric: Fabric, name: str, ranks: tuple[int, ...]) -> None:
        self.fabric, self.name, self.ranks, self.size = fabric, name, ranks, len(ranks)
        self.meetings: dict[int, Meeting] = {}
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._running: deque[Meeting] = deque()
        self._sends: dict[tuple[int, int], list[Message]] = {}
        self._recvs: dict[tuple[int, int], list[Message]] = {}
        self._lines: dict[tuple[int, int], deque[tuple[Message, Message]]] = {}

    # --- collectives ------------------------------------------------------------------------------------------------

    def enter(self, group_rank: int, sequence: int, call: Call, op: Op) -> Meeting:
        """A rank enters its next collective.

        Raises CollectiveMismatch when it is not the one that the others entered.
        """
        given = signature(call)
        meeting = self.meetings.get(sequence)
        if meeting is None:
            meeting = self.meetings[sequence] = Meeting(self, sequence, given, op.size)
        elif given != meeting.signature:
            raise CollectiveMismatch(self._mismatch(meeting, group_rank, given), rank=self.ranks[group_rank])
        meeting.calls[group_rank] = call
        meeting.ops.append(op)
        meeting.entrants.append(group_rank)
        if len(meeting.ops) == self.size:
            del self.meetings[sequence]
            if call.kind == "all_to_all":
                self._exchange(meeting, group_rank)
            last = max(op.posted for op in meeting.ops)
            self.fabric.kernel.at(last, lambda: self._complete(meeting))
        return meeting

    def _complete(self, meeting: Meeting) -> None:
        """The last rank has entered, by the virtual clock."""
        self._running.append(meeting)
        if len(self._running) == 1:
            self._begin(meeting)

    def plan(self, given: tuple[Any, ...], size: int) -> Plan:
        """How a collective with this signature loads the network."""
        key = (given, size)
        plan = self._plans.get(key)
        if plan is None:
            kind, _, root, items = given
            dtype = (items[0][1] if isinstance(items[0], tuple) else items[0]) if items else None
            plan = self.fabric.plan(kind, self.ranks, size, dtype.itemsize if dtype else 1, root or 0)
            self._plans[key] = plan
        return plan

    def _begin(self, meeting: Meeting) -> None:
        kernel, plan = self.fabric.kernel, meeting.plan

        def transfer() -> None:
            if plan.busiest > 0.0:
                kernel.network.start(kernel.now, 1.0, plan.usage, lambda now: self._end(meeting))
            else:
                self._end(meeting)

        if plan.latency > 0.0:
            kernel.at(kernel.now + plan.latency, transfer)
        else:
            transfer()

    def _end(self, meeting: Meeting) -> None:
        kernel = self.fabric.kernel
        numerics.perform([call for call in meeting.calls if call is not None])
        for op in meeting.ops:
            op.done = kernel.now
        kernel.fire(meeting.done)
        self._running.popleft()
        if self._running:
            self._begin(self._running[0])

    def _exchange(self, meeting: Meeting, last: int) -> None:
        """In a complete exchange every pair of ranks has a size of its own, known once all have entered."""
        calls = [call for call in meeting.calls if call is not None]
        self._check_shares(meeting, calls, last)
        shares = [
            [sum(item.gives[receiver].nbytes for item in call.items) for receiver in range(self.size)] for call in calls
        ]
        if len({share for row in shares for share in row}) > 1:
            meeting.plan = self.fabric.exchange_plan(self.ranks, shares)
            for op, group_rank in zip(meeting.ops, meeting.entrants, strict=True):
                op.nbytes, op.messages = meeting.plan.sent[group_rank]

    def _check_shares(self, meeting: Meeting, calls: list[Call], last: int) -> None:
        for receiver, call in enumerate(calls):
            for position, item in enumerate(call.items):
                for sender, (got, other) in enumerate(zip(item.gets, calls, strict=True)):
                    given = other.items[position].gives[receiver]
                    if given.numel() != got.numel():
                        raise CollectiveMismatch(
                            f"all_to_all #{meeting.sequence} of group {self.name}: the shares do not fit\n"
                            f"  rank {self.ranks[sender]} sends {given.numel()} elements to rank "
                            f"{self.ranks[receiver]}, which makes room for {got.numel()}\n"
                            "  expected: what a rank sends to another is as long as the other's part for it",
                            rank=self.ranks[last],
                        )

    def _mismatch(self, meeting: Meeting, group_rank: int, given: tuple[Any, ...]) -> str:
        return (
            f"collective #{meeting.sequence} of group {self.name} is not the same call on all ranks\n"
            f"  {ranks_text(meeting.entered())} entered: {signature_text(meeting.signature)}\n"
            f"  rank {self.ranks[group_rank]} entered: {signature_text(given)}\n"
            "  expected: the same call, reduction, root, number of elements and type on every rank, in the same order"
        )

    # --- messages ---------------------------------------------------------------------------------------------------

    def post(self, message: Message) -> None:
        """Post a send or receive; starts the transfer when its other end is there (first posted, first matched)."""
        here, there = (self._sends, self._recvs) if message.sends else (self._recvs, self._sends)
        place = (message.peer if message.sends and message.peer is not None else message.me, message.tag)
        waiting = there.get(place)
        for position, other in enumerate(waiting or ()):
            if _fits(message, other):
                assert waiting is not None
                del waiting[position]
                self._match(*((message, other) if message.sends else (other, message)))
                return
        here.setdefault(place, []).append(message)

    def _match(self, send: Message, recv: Message) -> None:
        if send.tensor.numel() != recv.tensor.numel() or send.tensor.dtype != recv.tensor.dtype:
            raise CollectiveMismatch(
                f"a message does not fit the buffer it is received into (group {self.name}, tag {send.tag})\n"
                f"  rank {self.ranks[send.me]} sends {send.tensor.numel()} x {_dtype(send.tensor.dtype)}\n"
                f"  rank {self.ranks[recv.me]} receives into {recv.tensor.numel()} x {_dtype(recv.tensor.dtype)}\n"
                "  expected: the same number of elements and type at both ends",
                rank=self.ranks[recv.me],
            )
        fabric = self.fabric
        fabric.num_messages += 1
        send.matched = recv.matched = True
        recv.peer = send.me
        key = (self.name, "p", fabric.num_messages)
        peers = (self.ranks[send.me], self.ranks[recv.me])
        for message in (send, recv):
            message.op.key, message.op.peers = key, peers
        line = self._lines.setdefault((send.me, recv.me), deque())
        line.append((send, recv))
        if len(line) == 1:
            self._transfer(line)

    def _transfer(self, line: deque[tuple[Message, Message]]) -> None:
        send, recv = line[0]
        kernel = self.fabric.kernel
        route = self.fabric.placement.route(self.ranks[send.me], self.ranks[recv.me])

        def left(now: float) -> None:
            send.op.done = kernel.now
            kernel.fire(send.done)
            data = send.tensor if route.latency <= 0.0 else _snapshot(send.tensor)
            kernel.at(kernel.now + route.latency, lambda: self._arrive(recv, data))
            line.popleft()
            if line:
                self._transfer(line)

        kernel.network.start(kernel.now, float(send.op.size), route.links, left)

    def _arrive(self, recv: Message, data: Tensor) -> None:
        kernel = self.fabric.kernel
        with torch.no_grad(), without_dispatch():
            numerics.copy(recv.tensor, data)
        recv.op.done = kernel.now
        kernel.fire(recv.done)


def _fits(message: Message, other: Message) -> bool:
    """Whether two posted ends (same destination and tag) are of one message."""
    if message.sends:
        return other.peer is None or other.peer == message.me
    return message.peer is None or message.peer == other.me


def _snapshot(tensor: Tensor) -> Tensor:
    """The data as it is now: the sender may change its tensor once the send is done."""
    if tensor.is_meta:
        return tensor
    with torch.no_grad(), without_dispatch():
        return tensor.data.clone()
