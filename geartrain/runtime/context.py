"""`Context`: all that the code of a rank may know of the world, the same on every engine.

A strategy never asks for the default group, its rank, the time, a thread or the environment; it asks its context. An
engine subclasses `Context` once; what can be said in terms of its few primitives (queues, lanes, groups, a clock) is
written here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist

from geartrain.runtime.datagrams import Datagrams
from geartrain.runtime.upkeep import Upkeep

Role = str
"""`"worker"`, or the name of a service, e.g. `"server"`."""


class Clock(Protocol):
    """Seconds since the run began: virtual under the simulated engine, real elsewhere."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Trace(Protocol):
    """What a rank tells about itself; ends up in `steps.jsonl` and `trace.json.gz`."""

    def span(self, name: str) -> AbstractContextManager[None]: ...

    def count(self, name: str, value: float) -> None: ...


class Pending(Protocol):
    """Something that may end later: a queue with something in it, a lane that ends, a receiver with a message."""

    def ready(self) -> bool: ...


class Queue(ABC):
    """First in, first out, between the lanes of one rank. Unbounded."""

    @abstractmethod
    def put(self, item: Any) -> None: ...

    @abstractmethod
    def get(self, deadline: float | None = None) -> Any:
        """Wait for the next item. Raises TimeoutError at `deadline` (a time of `ctx.clock`); nothing is lost then."""

    @abstractmethod
    def ready(self) -> bool: ...


class Lane(ABC):
    """A second activity of a rank. An exception in a lane fails its rank."""

    name: str

    @abstractmethod
    def join(self) -> None:
        """Wait until the lane's function has returned; raises what it raised."""

    @abstractmethod
    def ready(self) -> bool: ...


@dataclass(frozen=True)
class Message:
    """What a receiver hands out: a tensor of its own and the group rank that sent it."""

    source: int
    tensor: torch.Tensor


class Receiver:
    """A posted receive that can be waited for together with other things, and with a deadline.

    gloo's posted receives can be neither polled nor abandoned, so a lane owns them: it blocks in `recv_any` or `recv`
    on a group of its own and puts what came into a queue. The group must not be used for anything else on this rank.
    """

    def __init__(
        self, ctx: Context, like: torch.Tensor, group: dist.ProcessGroup, source: int | None, tag: int
    ) -> None:
        self._queue = ctx.queue()
        self._ctx, self._like, self._group, self._source, self._tag = ctx, like, group, source, tag
        self._lane = ctx.spawn(self._loop, f"receiver-{tag}", daemon=True)

    def _loop(self) -> None:
        while True:
            buffer = torch.empty_like(self._like)
            if self._source is None:
                source = self._ctx.recv_any(buffer, self._group, self._tag)
            else:
                source = self._source
                dist.recv(buffer, group=self._group, group_src=source, tag=self._tag)
            self._queue.put(Message(source, buffer))

    def get(self, deadline: float | None = None) -> Message:
        message: Message = self._queue.get(deadline)
        return message

    def ready(self) -> bool:
        return self._queue.ready()


class Context(ABC):
    """The world as one rank sees it.

    Attributes:
        rank: rank among all participants, 0..world_size-1; workers come first, services after them.
        world_size: number of participants, services included.
        num_workers: number of ranks that train.
        role: "worker" or the name of the service that this rank is.
        device: where tensors of this rank live.
        workers: group of the workers, in rank order; None on a service.
        everyone: group of all participants, in rank order (group rank = `rank`).
        seed: seed of the run, the same on all ranks.
        nodes: the machine of each rank of `everyone`: ranks with the same number share one. As the cluster says, also
            where a real run has them all on one host, so that the same algorithm runs on every engine.
        meta: True when tensors have shapes but no numbers (`device` is then the meta device).
        upkeep: for who looks after the run; strategies leave it alone.
    """

    rank: int
    world_size: int
    num_workers: int
    role: Role
    device: torch.device
    workers: dist.ProcessGroup
    everyone: dist.ProcessGroup
    seed: int
    nodes: tuple[int, ...]
    meta: bool
    clock: Clock
    trace: Trace
    upkeep: Upkeep

    @abstractmethod
    def rng(self, purpose: str) -> torch.Generator:
        """This rank's own random stream for a purpose.

        The same object at each call, seeded from (seed, rank, purpose).
        """

    @abstractmethod
    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """A new group of these ranks (of `everyone`). Call it on all ranks in the same order; None on ranks outside."""

    @abstractmethod
    def spawn(self, fn: Callable[[], None], name: str, *, daemon: bool = False) -> Lane:
        """Start a second activity on this rank. It sees the same groups; give it a group of its own to communicate on.

        A daemon lane may block forever: it ends with its rank.
        """

    @abstractmethod
    def queue(self) -> Queue: ...

    @abstractmethod
    def wait_any(self, pending: Sequence[Pending], deadline: float | None = None) -> int | None:
        """Index of the first that is ready (lowest index wins a tie), None at the deadline; nothing is cancelled."""

    @abstractmethod
    def recv_any(self, buffer: torch.Tensor, group: dist.ProcessGroup, tag: int = 0) -> int:
        """Receive into `buffer` from whoever sends first with this tag; returns the sender's group rank."""

    @abstractmethod
    def datagrams(self, size: int) -> Datagrams:
        """An endpoint for packets of `size` bytes at most. Call it on all ranks, services too, in the same order."""

    @abstractmethod
    def shared(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Memory shared by the lanes of this rank under a name: the first call makes it (a copy of `like`)."""

    @abstractmethod
    def mark_step(self, step: int, phase: Literal["begin", "end"], **values: Any) -> None:
        """Tell the record that a step begins or ends here (loss, samples, ... at its end)."""

    def receiver(
        self, like: torch.Tensor, group: dist.ProcessGroup, source: int | None = None, tag: int = 0
    ) -> Receiver:
        """Post receives of tensors like `like` for good; see `Receiver`."""
        return Receiver(self, like, group, source, tag)
