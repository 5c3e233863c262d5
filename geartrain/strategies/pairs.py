"""The two sides of AD-PSGD's averaging: an active learner asks one other after another, a passive one answers.

    active     s <- x;  send s;  receive y;  x <- x + (y - s)/2
    passive    receive s;  y <- x;  x <- x + (s - y)/2;  send y

Each is a lane of its rank, on a group that nothing else uses; see `geartrain.strategies.adpsgd`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.collectives.survivors import BROKEN
from geartrain.runtime.context import Context, Lane
from geartrain.runtime.motion import copy
from geartrain.strategies import mixing

_REQUEST, _REPLY = 1, 2
_STOP, _PAUSE = "stop", "pause"
ALONE = "alone"
"""Said once nobody is left to average with."""


class SharedModel:
    """The model that a learner's two lanes change, one at a time."""

    def __init__(self, ctx: Context, flat: Tensor) -> None:
        self.flat = flat
        self._free = ctx.queue()
        self._free.put(None)

    @contextmanager
    def held(self) -> Iterator[Tensor]:
        """Nobody else changes it meanwhile."""
        self._free.get()
        try:
            with torch.no_grad():
                yield self.flat
        finally:
            self._free.put(None)


class Side(ABC):
    """A learner's averaging lane. It begins with the first step, as state may be loaded until then.

    Attributes:
        count: exchanges that it has begun.
        averaged: gets an item for each exchange that has ended, `ALONE` once nobody is left to average with; filled
            only if somebody waits for it.
    """

    def __init__(self, ctx: Context, shared: SharedModel, group: dist.ProcessGroup, *, tells: bool) -> None:
        self._ctx, self._shared, self._group, self._tells = ctx, shared, group, tells
        self._mine, self._other = torch.empty_like(shared.flat), torch.empty_like(shared.flat)
        self._lane: Lane | None = None
        self.averaged, self.count = ctx.queue(), 0

    @abstractmethod
    def allow(self, exchanges: float) -> None:
        """From now on as many exchanges as that, instead of what was left."""

    @abstractmethod
    def pause(self) -> None:
        """Until the exchange that it began has ended; it begins none before the next `allow`."""

    @abstractmethod
    def stop(self) -> None:
        """End the lane."""

    def _begin(self, loop: Callable[[], None]) -> None:
        if self._lane is None:
            self._lane = self._ctx.spawn(loop, "averaging", daemon=True)

    def _tell(self, item: str | None = None) -> None:
        if self._tells:
            self.averaged.put(item)


class Passive(Side):
    """Answers whoever asks, until the rank ends."""

    def __init__(
        self,
        ctx: Context,
        shared: SharedModel,
        group: dist.ProcessGroup,
        *,
        watching: dist.ProcessGroup | None,
        askers: Sequence[int],
    ) -> None:
        super().__init__(ctx, shared, group, tells=watching is not None)
        self._watching, self._askers = watching, askers

    def allow(self, exchanges: float) -> None:
        if self._lane is None and self._watching is not None:
            self._ctx.spawn(self._watch, "watching", daemon=True)
        self._begin(self._loop)

    def pause(self) -> None:
        return

    def stop(self) -> None:
        return

    def _loop(self) -> None:
        with suppress(*BROKEN):
            while True:
                source = self._ctx.recv_any(self._other, self._group, _REQUEST)
                self._answer(source, self._mine, self._other)
        # Somebody has died whose request was announced: gloo receives from anybody no more, see "Receives from any
        # source" in docs/decisions.md. From each of the others then, with room for each.
        for asker in self._askers:
            self._ctx.spawn(partial(self._serve, asker), f"averaging-{asker}", daemon=True)

    def _serve(self, asker: int) -> None:
        mine, other = torch.empty_like(self._mine), torch.empty_like(self._other)
        with suppress(*BROKEN):
            while True:
                wait_all(post_recv(other, asker, self._group, _REQUEST))
                self._answer(asker, mine, other)

    def _answer(self, source: int, mine: Tensor, other: Tensor) -> None:
        with self._shared.held() as flat:
            copy(mine, flat)
            flat.add_(other.sub_(mine), alpha=0.5)
        with suppress(*BROKEN):  # it may have died since; half of what it has sent is in the model
            wait_all(post_send(mine, source, self._group, _REPLY))
        self._tell()

    def _watch(self) -> None:
        """Nobody sends anything here: a receive ends when the other's process has died."""
        assert self._watching is not None
        for asker in self._askers:
            with suppress(*BROKEN):
                wait_all(post_recv(torch.empty(1, device=self._ctx.device), asker, self._watching))
        self._tell(ALONE)


class Active(Side):
    """Averages with one random neighbour after another, as far as it may.

    Its lane takes orders: numbers, which say how many exchanges may follow, or words.
    """

    def __init__(
        self,
        ctx: Context,
        shared: SharedModel,
        group: dist.ProcessGroup,
        *,
        tells: bool,
        partners: Sequence[int],
        index: int,
    ) -> None:
        super().__init__(ctx, shared, group, tells=tells)
        self._partners, self._index, self._idle = list(partners), index, True
        self._orders, self._paused = ctx.queue(), ctx.queue()

    def allow(self, exchanges: float) -> None:
        self._begin(self._loop)
        self._orders.put(exchanges)
        self._idle = False

    def pause(self) -> None:
        if not self._idle:
            self._orders.put(_PAUSE)
            self._paused.get()
            self._idle = True

    def stop(self) -> None:
        """It is not waited for where it may be in an exchange, whose other end may be gone."""
        self._orders.put(_STOP)
        if self._lane is not None and self._idle:
            self._lane.join()

    def _loop(self) -> None:
        left: float = 0
        while True:
            while not (left and self._partners) or self._orders.ready():
                order = self._orders.get()
                if order == _STOP:
                    return
                left = 0 if order == _PAUSE else order
                if order == _PAUSE:
                    self._paused.put(None)
            self._exchange()
            left -= 1

    def _exchange(self) -> None:
        partner = mixing.draw(self._partners, self._ctx.seed, self._index, self.count)
        self.count += 1
        with self._shared.held() as flat:
            copy(self._mine, flat)
        try:
            works = post_recv(self._other, partner, self._group, _REPLY)
            wait_all([*post_send(self._mine, partner, self._group, _REQUEST), *works])
        except BROKEN:
            self._partners.remove(partner)
            if not self._partners:
                self._tell(ALONE)
            return
        with self._shared.held() as flat:
            flat.add_(self._other.sub_(self._mine), alpha=0.5)
        self._ctx.trace.count("exchanges", 1)
        self._tell()
