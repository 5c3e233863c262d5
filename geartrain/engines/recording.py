"""`RecordingGroup`: a process group that hands every operation on to another one and writes it into the rank's log.

What is written:

    key        (group, "c", n) for the n-th collective of a group, (group, "p", source, destination, tag, n) for a
               message; sources and destinations are group ranks
    nbytes     what this rank sends by gloo's algorithm of that collective (`GLOO_ALGORITHMS`), payload only
    posted     when the rank entered the operation
    done       when the rank saw that it was complete: exact when it waited for it; otherwise at the next operation
               that it posts to the group, so never too early
    blocked    the time in `wait()`

Inside a backward C++ waits for the future of a work, unseen. So the future is gloo's own, and a callback that the
autograd engine calls before DDP's own waits for the work first and writes down the time. A `wait()` by Python on a
future, rather than on the work, is not seen. gloo cannot say whether a receive has arrived: `is_completed()` is False
until it was waited for. With NCCL, `wait()` only orders streams, so blocked times are those of the host. Receives from
any source and from a certain one must not share a tag: which message was the n-th could not be told.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch.distributed as dist
from torch import Tensor

from geartrain.cost.collectives import plan_collective
from geartrain.engines.recorder import Recorder
from geartrain.record.log import Blocked, Op, RankLog
from geartrain.torch_private import (
    Call,
    Forward,
    ForwardingGroup,
    GroupRequest,
    at_end_of_backward,
    gloo_group,
    in_backward,
    register_backend,
    source_of,
    wrap_new_groups,
)

BACKEND = "geartrain-gloo"

GLOO_ALGORITHMS: dict[str, tuple[tuple[str, str], ...]] = {
    "all_reduce": (("all_reduce", "ring"),),
    "reduce_scatter": (("all_reduce", "ring"),),
    "all_gather": (("all_gather", "ring"),),
    "broadcast": (("broadcast", "tree"),),
    "reduce": (("reduce_scatter", "ring"), ("gather", "linear")),
    "gather": (("gather", "linear"),),
    "scatter": (("scatter", "linear"),),
    "all_to_all": (("all_to_all", "pairwise"),),
    "barrier": (("barrier", "dissemination"),),
}
"""Kind -> the closed forms that make up gloo's way of doing it.

Checked against the bytes on the loopback device for 2, 3 and 4 ranks and buffers of 10 MB (PyTorch 2.13): equal within
0.3 % for all but `reduce`, which sends more than its two parts (2.1, 3.2, 4.1 buffers in all, against 1.5, 2.7, 3.8).
"""


def payload(call: Call, size: int) -> tuple[int, int]:
    """(bytes of a collective among `size` ranks as the cost model counts them, bytes of one element)."""
    total, element = 0, 1
    for item in call.items:
        given, got = _nbytes(item.gives), _nbytes(item.gets)
        element = (item.gives or item.gets)[0].element_size()
        match call.kind:
            case "all_gather":
                total += got
            case "gather":
                total += given * size
            case "scatter":
                total += got * size
            case _:
                total += given
    return total, element


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


@lru_cache(maxsize=1024)
def sent(kind: str, size: int, rank: int, nbytes: int, element: int, root: int) -> tuple[int, int]:
    """(bytes, messages) that a group rank sends by gloo's algorithm."""
    total = messages = 0
    for part, algorithm in GLOO_ALGORITHMS[kind]:
        plan = plan_collective(part, size, nbytes, element=element, root=root, algorithm=algorithm)
        total, messages = total + plan.sent[rank], messages + plan.messages[rank]
    return total, messages


class RecordingGroup(ForwardingGroup):
    """Forwards to `inner`; see the module.

    Args:
        inner: the group that does the work.
        recorder: where operations are written.
        label: name of the group in the log, the same on all its ranks.
        ranks: the global ranks in group order.
    """

    def __init__(self, inner: dist.ProcessGroup, recorder: Recorder, label: str, ranks: Sequence[int]) -> None:
        super().__init__(inner)
        self.recorder, self.label, self.ranks = recorder, label, tuple(ranks)
        self._collectives = itertools.count()
        self._messages: defaultdict[tuple[int, int, int], itertools.count[int]] = defaultdict(itertools.count)
        self._open: list[RecordedWork] = []
        recorder.before_snapshot.append(self.look)

    def launch(self, call: Call, forward: Forward) -> dist.Work:
        recorder = self.recorder
        if not recorder.recording:
            return forward(self.inner)
        recorder.settle()
        size, element = payload(call, self.group_size)
        key = (self.label, "c", next(self._collectives))
        if call.kind == "all_to_all":
            others = [t.nbytes for item in call.items for r, t in enumerate(item.gives) if r != self.group_rank]
            nbytes, messages = sum(others), len(others)
        else:
            nbytes, messages = sent(call.kind, self.group_size, self.group_rank, size, element, call.root)
        if self._open:
            self.look()
        op = Op(key, call.kind, nbytes, messages, recorder.now(), recorder.lane, self.ranks, size)
        recorder.log.ops.append(op)
        # All book-keeping is done before: the threads of gloo need the core as soon as the operation begins.
        work = RecordedWork(self, op)
        work.begin(forward(self.inner))
        self._open.append(work)
        return work

    def post_send(self, tensor: Tensor, destination: int, tag: int) -> dist.Work:
        return self._post("send", tensor, self.group_rank, destination, tag)

    def post_recv(self, tensor: Tensor, source: int | None, tag: int) -> dist.Work:
        return self._post("recv", tensor, source, self.group_rank, tag)

    def _post(self, kind: str, tensor: Tensor, source: int | None, destination: int, tag: int) -> dist.Work:
        recorder, sends = self.recorder, kind == "send"
        recorder.settle()
        op = Op((), kind, 0, int(sends), recorder.now(), recorder.lane, (), tensor.nbytes)
        op.nbytes = op.size if sends else 0
        if source is None:
            op.key, op.peers = (self.label, "p", None, destination, tag, -1), (self.ranks[destination],)
        else:
            self.match(op, source, destination, tag)
        if recorder.recording:
            recorder.log.ops.append(op)
        work = RecordedWork(self, op, any_source=tag if source is None else None)
        if sends:
            work.begin(self.inner.send([tensor], destination, tag))
        elif source is None:
            work.begin(self.inner.recv_anysource([tensor], tag))
        else:
            work.begin(self.inner.recv([tensor], source, tag))
        return work

    def match(self, op: Op, source: int, destination: int, tag: int) -> None:
        """Name a message: the n-th from `source` to `destination` with this tag."""
        n = next(self._messages[source, destination, tag])
        op.key = (self.label, "p", source, destination, tag, n)
        op.peers = (self.ranks[source], self.ranks[destination])

    def look(self) -> None:
        """Note which collectives have ended meanwhile."""
        self._open = [work for work in self._open if not work.is_completed()]


class RecordedWork(dist.Work):
    """A work of the inner group whose waiting is written down. `any_source` is the tag of a receive from any source."""

    _work: dist.Work

    def __init__(self, group: RecordingGroup, op: Op, any_source: int | None = None) -> None:
        super().__init__()
        self._group, self._op, self._any_source = group, op, any_source
        self._is_recv, self._callback = op.kind == "recv", False

    def begin(self, work: dist.Work) -> None:
        """Set the work that the inner group made of the operation."""
        self._work = work

    def wait(self, timeout: timedelta | None = None) -> bool:
        recorder, op = self._group.recorder, self._op
        if op.done >= 0 or not recorder.recording:
            return self._wait(timeout)
        recorder.settle()
        entry = Blocked(recorder.now(), -1.0, op.key, recorder.lane, op.kind)
        recorder.log.blocked.append(entry)
        try:
            done = self._wait(timeout)
        except BaseException as error:
            recorder.lost = recorder.lost or error
            entry.end = recorder.now()
            raise
        finally:
            recorder.resume()
        if self._any_source is not None:
            self._group.match(op, source_of(self._work), self._group.group_rank, self._any_source)
            entry.key = op.key
        op.done = entry.end = recorder.now()
        return done

    def _wait(self, timeout: timedelta | None) -> bool:
        # A timeout of zero, which callers in C++ pass, means none.
        return self._work.wait(timeout) if timeout else self._work.wait()

    def is_completed(self) -> bool:
        if self._op.done >= 0:
            return True
        if self._is_recv or not self._work.is_completed():
            return False
        self._op.done = self._group.recorder.now()
        return True

    def get_future(self) -> Any:
        future = self._work.get_future()
        if in_backward() and not self._callback and self._group.recorder.recording:
            self._callback = True
            at_end_of_backward(self._wait_seen)
        return future

    def _wait_seen(self) -> None:
        # An error is left to whoever waits for the future: it knows what to do.
        try:
            self.wait()
        except RuntimeError:
            return

    def exception(self) -> Any:
        return self._work.exception()

    def is_success(self) -> bool:
        return self._work.is_success()

    def result(self) -> list[Tensor]:
        return self._work.result()

    def synchronize(self) -> None:
        self._work.synchronize()

    def block_current_stream(self) -> None:
        self._work.block_current_stream()

    def source_rank(self) -> int:
        return source_of(self._work)

    _source_rank = source_rank


_recorder: Recorder | None = None


def use_recorder(recorder: Recorder) -> None:
    """Set the process's recorder, and make `init_process_group("geartrain-gloo")` give recording groups."""
    global _recorder
    _recorder = recorder
    register_backend(BACKEND, _make)


def _make(request: GroupRequest) -> dist.ProcessGroup:
    recorder = _recorder or Recorder(RankLog(request.ranks[request.group_rank], "worker"))
    use_recorder(recorder)
    inner = gloo_group(request.store, request.group_rank, request.group_size, request.timeout)
    return RecordingGroup(inner, recorder, request.name, request.ranks)


def record_all_groups(recorder: Recorder) -> None:
    """From now on every group made in this process, by whatever backend, writes into this recorder's log."""
    use_recorder(recorder)
    wrap_new_groups(lambda group, name, ranks: RecordingGroup(group, recorder, name, ranks))
