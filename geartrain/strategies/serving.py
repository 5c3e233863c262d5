"""What asynchronous methods with one server share: workers that push and pull, and a server that never waits for all.

    worker i:   g <- gradient at w_i;  push g;  w_i <- what the server replies
    server:     on a gradient of worker i, computed at version v_i:  tau = v - v_i
                once `gather` gradients wait (as many as train, if those are fewer):
                    w <- update(w, mean of these gradients);  v <- v + 1;  reply w to their workers, v_i <- v

A worker waits for its reply and for nobody else. The server knows v_i, since it sent it: no number travels with a
gradient. Gradients are `weight_i * W / gather * g_i`, so that those of equal shares are meant.

    tau > max_staleness     the gradient is dropped and its worker gets w               (late = "drop")
    before an update        the oldest gradients come first, and an update waits as long as some gradient that is still
                            being computed could become older than max_staleness        (late = "block")

With v_i + max_staleness the deadline of worker i and `gather` gradients in each update, all deadlines can be kept after
an update at version v exactly if, for every version d, at most gather * (d - v) of the others have a deadline up to d.

Pauses and ends. A worker that pauses (to save) or has finished is not waited for. When all have finished, the server
sends its last model to them, so that all have the same. A saved run is consistent since all workers pause after the
same step: each has its reply, no gradient is under way, and the server, which has heard of the pauses, holds nothing
but its model, its optimizer and the versions. A worker whose process dies is not waited for either; what it had pushed
completely still counts.

A step of the server, in its log, is W answers: as many as all workers take in a step of theirs. It tells the ages of
the gradients that it used (staleness) and of those that it did not (dropped).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import ServicePlace
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.errors import StrategyError
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, Layout, flat_parameters
from geartrain.runtime.context import Context
from geartrain.runtime.shards import shard_layout
from geartrain.runtime.strategy import Roles
from geartrain.runtime.worker import Batch, Batches, Service, StepResult, Task, Worker

_PUSH, _PULL, _WORD, _HEARD, _END = 1, 2, 3, 4, 5

_ARRIVED, _PAUSES, _FINISHES, _LEAVES, _LOST = 0, 1, 2, 3, 4
"""What the server hears of a worker: a gradient, one of three words that the worker says, or that it is gone."""

Late = Literal["drop", "block"]
Post = Callable[[Tensor, int, dist.ProcessGroup, int], list[dist.Work]]


@dataclass(frozen=True, kw_only=True)
class Serving:
    """When the server updates, and how it replies.

    Attributes:
        gather: gradients in an update.
        max_staleness: bound on tau, in updates; None: there is none.
        late: what keeps the bound.
        blocking: a reply has left before the server goes on; otherwise it is copied, and travels beside later updates.
            Either way one reply after another leaves: sent at once they would share the wire, and their workers, held
            up alike, would push at once again and again.
    """

    gather: int
    max_staleness: int | None
    late: Late
    blocking: bool


class ServerUpdate(Protocol):
    """The optimizer on the server; it changes the model in place.

    Attributes:
        gradient: where the next gradient is put, 1-D.
    """

    gradient: Tensor

    def apply(self, staleness: Sequence[int]) -> None:
        """One update with what is in `gradient`, which is the mean of gradients of these ages."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Past(Protocol):
    """Models that were: where a gradient is to be computed, if not at the last reply."""

    def rewind(self, flat: Tensor) -> int:
        """Put an older model into `flat`; its age in updates."""

    def keep(self, flat: Tensor) -> None:
        """A new model has come."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def one_server() -> Roles:
    """The server, on a node of its own."""
    return Roles((ServicePlace("server"),))


def check_gather(name: str, gather: int, num_workers: int) -> None:
    """Refuse to wait for more gradients than there are workers."""
    if gather > num_workers:
        raise StrategyError(
            f"{name}: gather={gather} waits for more gradients than {num_workers} worker(s) have under way.\n"
            f"  use gather={num_workers} or less, or gather=none for all"
        )


def flat_model(ctx: Context, task: Task) -> tuple[torch.nn.Module, Layout, Tensor]:
    """The task's model, its layout in one bucket, and the flat tensor that its parameters are views of."""
    model = task.model(ctx.seed).to(ctx.device)
    layout = shard_layout(model, 1, "even")
    return model, layout, flat_parameters(layout)


class PushingWorker(Worker):
    """See the module.

    Args:
        gather: gradients in an update.
        past: chooses an older model for each gradient, if there is one.
    """

    def __init__(self, ctx: Context, task: Task, gather: int, past: Past | None = None) -> None:
        self._ctx, self._task, self._past = ctx, task, past
        self.model, layout, self._flat = flat_model(ctx, task)
        self._witness = witness_of(self.model)
        self._buckets = GradientBuckets([layout], lambda bucket: None, overlap=False)
        self._scale, self._server = ctx.num_workers / gather, ctx.num_workers
        self._words, self._ends = _word_group(ctx), _word_group(ctx)
        self._finished = False
        if past is not None:
            past.keep(self._flat)

    def step(self, batches: Batches) -> StepResult:
        ctx = self._ctx
        batch = on_device(batches.take(), ctx.device)
        age = None if self._past is None else self._past.rewind(self._flat)
        scaled = Batch(batch.inputs, batch.targets, batch.weight * self._scale)
        loss = backward(self._task, self.model, scaled, self._buckets, self._witness)
        wait_all(post_send(self._buckets.flats[0], self._server, ctx.everyone, _PUSH))
        wait_all(post_recv(self._flat, self._server, ctx.everyone, _PULL))
        if self._past is not None:
            self._past.keep(self._flat)
        return StepResult(None if ctx.meta else loss.item(), batch.num_samples, staleness=age)

    def pause(self) -> None:
        self._say(_PAUSES)
        wait_all(post_recv(_word(self._ctx), self._server, self._words, _HEARD))

    def finish(self) -> None:
        """Take the server's last model, when all have finished."""
        self._say(_FINISHES)
        wait_all(post_recv(self._flat, self._server, self._ctx.everyone, _PULL))
        self._finished = True

    def close(self) -> None:
        self._buckets.close()
        if not self._finished:
            self._say(_LEAVES)
        wait_all(post_send(_word(self._ctx), self._server, self._ends, _END))

    def _say(self, word: int) -> None:
        wait_all(post_send(_word(self._ctx, word), self._server, self._words, _WORD))

    def state_dict(self) -> dict[str, Any]:
        past = None if self._past is None else self._past.state_dict()
        return {"model": self.model.state_dict(), "past": past}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        if self._past is not None:
            self._past.load_state_dict(state["past"])


class Server(Service):
    """See the module.

    It listens to each worker in lanes of their own, which is also how it learns that one is gone; another one serves.

    Args:
        flat: the model, 1-D.
        update: changes it.
    """

    def __init__(self, serving: Serving, ctx: Context, flat: Tensor, update: ServerUpdate) -> None:
        self._serving, self._ctx, self._flat, self._update = serving, ctx, flat, update
        workers = range(ctx.num_workers)
        self._pushed = [torch.empty_like(flat) for _ in workers]
        self._replies = [flat if serving.blocking else torch.empty_like(flat) for _ in workers]
        self._version, self._step, self._in_step = 0, 0, False
        self._used, self._dropped = list[int](), list[int]()
        self._versions = [0 for _ in workers]
        self._training, self._waiting = set(workers), list[int]()
        self._finishing, self._gone = set[int](), set[int]()
        self._words, self._ends = _word_group(ctx), _word_group(ctx)
        self._heard, self._outgoing = ctx.queue(), ctx.queue()

    def run(self) -> None:
        """Serve in a lane until every worker has said that it ends, or is gone."""
        ctx = self._ctx
        for worker in range(ctx.num_workers):
            ctx.spawn(partial(self._hear_pushes, worker), f"pushes-{worker}", daemon=True)
            ctx.spawn(partial(self._hear_words, worker), f"words-{worker}", daemon=True)
        ctx.spawn(self._serve, "serve", daemon=True)
        if not self._serving.blocking:
            ctx.spawn(self._send_replies, "replies", daemon=True)
        words = [_word(ctx) for _ in range(ctx.num_workers)]
        for end in [post_recv(word, worker, self._ends, _END) for worker, word in enumerate(words)]:
            _wait_if_there(end)

    def _hear_pushes(self, worker: int) -> None:
        gradient, group = self._pushed[worker], self._ctx.everyone
        while _wait_if_there(_post_if_there(post_recv, gradient, worker, group, _PUSH)):
            self._heard.put((worker, _ARRIVED))
        self._heard.put((worker, _LOST))

    def _hear_words(self, worker: int) -> None:
        word = _word(self._ctx)
        while _wait_if_there(_post_if_there(post_recv, word, worker, self._words, _WORD)):
            self._heard.put((worker, int(word.item())))

    def _serve(self) -> None:
        while True:
            worker, what = self._heard.get()
            if what == _ARRIVED:
                self._training.add(worker)
                self._waiting.append(worker)
                self._drop_stale()
            else:
                self._rest(worker, what)
            while group := self._next_group():
                self._update_with(group)
                self._drop_stale()
            if not self._training:
                self._end()
                everybody = set(range(self._ctx.num_workers))
                self._training = everybody - self._finishing - self._gone  # a pause of all is over
            if what == _PAUSES:
                _wait_if_there(_post_if_there(post_send, _word(self._ctx), worker, self._words, _HEARD))
            if len(self._finishing | self._gone) == self._ctx.num_workers:
                for finished in sorted(self._finishing):
                    self._reply(finished)
                self._finishing.clear()

    def _rest(self, worker: int, why: int) -> None:
        """A worker will not push for a while, or no more."""
        self._training.discard(worker)
        if why == _FINISHES:
            self._finishing.add(worker)
        elif why in (_LEAVES, _LOST):
            self._gone.add(worker)
            self._finishing.discard(worker)
            if worker in self._waiting and why == _LOST:
                self._training.add(worker)  # what it pushed still counts; its reply goes nowhere

    def _age(self, worker: int) -> int:
        return self._version - self._versions[worker]

    def _drop_stale(self) -> None:
        """Gradients beyond the bound are not used. Where the server blocks, only a pause makes one so old."""
        bound = self._serving.max_staleness
        for worker in [] if bound is None else [w for w in self._waiting if self._age(w) > bound]:
            self._answer(worker, self._dropped, self._age(worker))

    def _next_group(self) -> list[int]:
        """The workers whose gradients make the next update, in rank order; nobody while it must wait."""
        size = min(self._serving.gather, len(self._training))
        if not size or len(self._waiting) < size:
            return []
        oldest = sorted(self._waiting, key=lambda worker: self._versions[worker])[:size]
        return sorted(oldest) if self._keeps_bound(oldest) else []

    def _keeps_bound(self, group: Sequence[int]) -> bool:
        """Whether all others can still be in time after an update with this group; see the module."""
        serving = self._serving
        everybody_waits = len(self._waiting) == len(self._training)
        if serving.late != "block" or serving.max_staleness is None or everybody_waits:
            return True
        left = sorted(serving.max_staleness - self._age(worker) for worker in self._training.difference(group))
        in_time = [updates for updates in left if updates >= 0]
        return all(place < serving.gather * updates for place, updates in enumerate(in_time))

    def _update_with(self, group: Sequence[int]) -> None:
        self._begin()
        ages = [self._age(worker) for worker in group]
        gradient = self._update.gradient
        gradient.copy_(self._pushed[group[0]])
        for worker in group[1:]:
            gradient.add_(self._pushed[worker])
        if len(group) < self._serving.gather:
            gradient.mul_(self._serving.gather / len(group))
        self._update.apply(ages)
        self._version += 1
        for worker, age in zip(group, ages, strict=True):
            self._answer(worker, self._used, age)

    def _answer(self, worker: int, into: list[int], age: int) -> None:
        """Reply to a worker that waits."""
        self._begin()
        into.append(age)
        self._waiting.remove(worker)
        self._versions[worker] = self._version  # before the worker hears of it: then the state is that after the step
        if worker in self._gone:
            self._training.discard(worker)
        else:
            self._reply(worker)

    def _reply(self, worker: int) -> None:
        """Send the model."""
        if self._serving.blocking:
            self._send(worker)
        else:
            self._replies[worker].copy_(self._flat)
            self._outgoing.put(worker)

    def _send_replies(self) -> None:
        while True:
            self._send(self._outgoing.get())

    def _send(self, worker: int) -> None:
        # That a worker is gone is heard elsewhere.
        _wait_if_there(_post_if_there(post_send, self._replies[worker], worker, self._ctx.everyone, _PULL))

    def _begin(self) -> None:
        """Be in a step that has an answer left."""
        if len(self._used) + len(self._dropped) == self._ctx.num_workers:
            self._end()
        if not self._in_step:
            self._ctx.mark_step(self._step, "begin")
            self._in_step = True

    def _end(self) -> None:
        if not self._in_step:
            return
        dropped = {"dropped": self._dropped} if self._dropped else {}
        self._ctx.mark_step(self._step, "end", staleness=self._used, **dropped)
        self._used, self._dropped, self._in_step = [], [], False
        self._step += 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "flat": self._flat,
            "update": self._update.state_dict(),
            "version": self._version,
            "versions": list(self._versions),
            "step": self._step,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._flat.copy_(state["flat"])
        self._update.load_state_dict(state["update"])
        self._version, self._versions, self._step = state["version"], list(state["versions"]), state["step"]


def _post_if_there(post: Post, tensor: Tensor, worker: int, group: dist.ProcessGroup, tag: int) -> list[dist.Work]:
    """Post a message; nothing if the worker is gone already."""
    try:
        return post(tensor, worker, group, tag)
    except RuntimeError:
        return []


def _wait_if_there(works: Sequence[dist.Work]) -> bool:
    """Wait; False if there is nothing, or the worker goes. Simulated ranks are never gone: their errors are others."""
    try:
        wait_all(works)
    except RuntimeError:
        return False
    return bool(works)


def _word(ctx: Context, word: int = 0) -> Tensor:
    """One element. It holds a number where the model has none, too: words decide who is waited for."""
    return torch.full((1,), float(word), device="cpu" if ctx.meta else ctx.device)


def _word_group(ctx: Context) -> dist.ProcessGroup:
    """For one kind of word: lanes that listen for different ones have groups of their own."""
    group = ctx.group(range(ctx.world_size))
    assert group is not None, "every rank is in it"
    return group
