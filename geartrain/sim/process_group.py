"""`SimulatedGroup`: the process group of ranks that are threads. Tensors are real, time is computed.

How operations meet and how long they take is in `geartrain.sim.meeting`; here they are posted, waited for and written
down.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from geartrain.errors import CollectiveMismatch
from geartrain.record.log import Op
from geartrain.sim import numerics
from geartrain.sim.fabric import ActivityState, Fabric
from geartrain.sim.kernel import Event, current_activity
from geartrain.sim.meeting import Channel, Message
from geartrain.torch_private import (
    Call,
    Forward,
    GroupRequest,
    PythonGroup,
    at_end_of_backward,
    in_backward,
    reduce_op_name,
    register_backend,
)

BACKEND = "geartrain-simulated"


class SimulatedWork(dist.Work):
    """A collective or message under way, as one rank sees it."""

    def __init__(self, fabric: Fabric, done: Event, op: Op, result: list[Tensor], message: Message | None) -> None:
        super().__init__()
        self._fabric, self._done, self._op, self._result, self._message = fabric, done, op, result, message
        self._future: Any = None

    def wait(self, timeout: Any = None) -> bool:
        """Stand still, on the virtual clock, until the operation is done."""
        fabric = self._fabric
        if not self._done.done:
            activity = fabric.kernel.me()
            begin = activity.now
            deadline = None if not timeout else begin + timeout.total_seconds()
            happened = fabric.kernel.wait(self._done, deadline)
            fabric.note_blocked(activity, begin, self._op.key, self._op.kind)
            if not happened:
                raise TimeoutError(f"timed out after {timeout} of virtual time: {self._done}")
        return True

    def is_completed(self) -> bool:
        return self._fabric.kernel.poll(self._done)

    def is_success(self) -> bool:
        if not self._done.done:
            self._fabric.kernel.look(f"looks at {self._done}")
        return self._done.done

    def exception(self) -> None:
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[Tensor]:
        return self._result

    def source_rank(self) -> int:
        """Group rank that a receive got its message from."""
        assert self._message is not None and self._message.peer is not None
        return self._message.peer

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future of the result. Inside backward it stays unresolved until the end of backward (DDP waits there)."""
        if self._future is None:
            self._future = Future()
            if in_backward():
                at_end_of_backward(self._resolve)
            else:
                self._resolve()
        return self._future

    def _resolve(self) -> None:
        self.wait()
        self._future.set_result(self._result)


class SimulatedGroup(PythonGroup):
    """One rank's handle on a simulated group.

    Args:
        channel: what the ranks of the group share.
        group_rank: this rank's place in it.
    """

    def __init__(self, channel: Channel, group_rank: int) -> None:
        super().__init__(group_rank, channel.size)
        self.channel = channel
        self._sequence = 0

    def launch(self, call: Call, forward: Forward) -> dist.Work:
        channel = self.channel
        fabric = channel.fabric
        if call.op is not None:
            call.op = reduce_op_name(call.op)
            if call.op not in numerics.REDUCTIONS:
                raise CollectiveMismatch(f"the reduction {call.op} of {call.kind} is not simulated, nor is it in gloo")
        activity = (
            fabric.kernel.me()
        )  # its clock may be ahead: the meeting begins at the latest entry, whoever comes first
        size = _size(call, channel.size)
        sequence, self._sequence = self._sequence, self._sequence + 1
        op = Op((channel.name, "c", sequence), call.kind, 0, 0, activity.now, activity.name, channel.ranks, size)
        activity.state.rank.log.ops.append(op)
        meeting = channel.enter(self.group_rank, sequence, call, op)
        op.nbytes, op.messages = meeting.plan.sent[self.group_rank]
        return SimulatedWork(fabric, meeting.done, op, [t for item in call.items for t in item.gets], None)

    def post_send(self, tensor: Tensor, destination: int, tag: int) -> dist.Work:
        return self._post(tensor, True, destination, tag)

    def post_recv(self, tensor: Tensor, source: int | None, tag: int) -> dist.Work:
        return self._post(tensor, False, source, tag)

    def _post(self, tensor: Tensor, sends: bool, peer: int | None, tag: int) -> SimulatedWork:
        channel = self.channel
        fabric = channel.fabric
        activity = fabric.kernel.sync()
        me = channel.ranks[self.group_rank]
        size = tensor.numel() * tensor.element_size()
        sent = (size, 1) if sends and (peer is None or peer != self.group_rank) else (0, 0)
        kind = "send" if sends else "recv"
        key = (channel.name, "unmatched", me, len(activity.state.rank.log.ops))
        op = Op(key, kind, *sent, activity.now, activity.name, (me,), size)
        activity.state.rank.log.ops.append(op)
        message = Message(channel, tensor, sends, self.group_rank, peer, tag, op)
        channel.post(message)
        return SimulatedWork(fabric, message.done, op, [tensor], message)


def _size(call: Call, group_size: int) -> int:
    """Bytes of a collective as its closed form counts them.

    The whole tensor before it is dealt out or after it is gathered.
    """
    total = 0
    for item in call.items:
        match call.kind:
            case "all_gather" | "gather":
                total += group_size * _nbytes(item.gives[0])
            case "scatter":
                total += group_size * _nbytes(item.gets[0])
            case "reduce_scatter" | "all_to_all":
                total += sum(_nbytes(tensor) for tensor in item.gives)
            case _:
                total += _nbytes(item.gives[0])
    return total


def _nbytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def create(request: GroupRequest) -> SimulatedGroup:
    """Make the calling rank's handle on a group; the ranks that ask for the same name and ranks share a channel."""
    activity = current_activity()
    if activity is None:
        raise RuntimeError(f"the {BACKEND} backend exists only inside a simulated run")
    state: ActivityState = activity.state
    return make_group(state.fabric, request.name, request.ranks, request.group_rank)


def make_group(fabric: Fabric, name: str, ranks: tuple[int, ...], group_rank: int) -> SimulatedGroup:
    """One rank's handle on the group of this name and these global ranks."""
    channel = fabric.channels.get((name, ranks))
    if channel is None:
        channel = fabric.channels[name, ranks] = Channel(fabric, name, ranks)
    return SimulatedGroup(channel, group_rank)


register_backend(BACKEND, create)
