"""Two gears that run free: `FreeBottom` and `FreeTop`, one worker each, a mailbox between them.

    bottom A:   while fewer than Q micro-batches are in flight:  send (number, u_A, h)
                an answer with a gradient:  backward, at the stashed w_A or at the current one;  update if its quota is
                there                       an answer without:  the micro-batch is lost
    top B:      the newest unseen message; while there is none, up to `replay` times: a random buffered one, unanswered
                u_A(now) - u_A(message) > tau:  answer without a gradient;   else train, answer (number, u_B, g)

u counts updates. Each message is answered once, so that its credit comes back: with credits the mailbox never holds
more than Q, and nothing needs to be dropped for want of room. u_A(now) is the newest version that B has seen.

The governor keeps u_B/u_A within [R/2, 2R], R = s_B/s_A: B replays no more once another update would pass 2R. Nothing
is to be done for R/2: each update of A takes answers, and an answer with a gradient was training in B.

A step is a revolution of each gear by itself: m messages sent by A; m answered by B. B meets what A sent in later steps
ahead of its own. A number travels in front of each message, 24 bytes; all messages are as long as the longest.

Saving lets A take the answers in flight first, and apply them: a saved run goes on like one that is resumed from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import post_send, wait_all
from geartrain.runtime.backward import on_device
from geartrain.runtime.context import Context, Receiver
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies.gear_mesh import Pass, Wheel
from geartrain.strategies.gear_turns import Beat, Machine, Station, beats_of

_HEADER = 24  # bytes: three whole numbers
_LOST, _TRAINED = 0, 1


@dataclass(frozen=True, kw_only=True)
class Freedom:
    """What bounds the free gears.

    Attributes:
        staleness: tau, in updates of A.
        capacity: Q, micro-batches in flight and buffered ones for replay.
        replay: between two messages.
    """

    staleness: int
    capacity: int
    replay: int


class _Post:
    """Messages of one size to and from the other gear, each way on a group of its own.

    Args:
        up, down: groups of the two workers.
        rows: in a message at most.
    """

    def __init__(self, station: Station, up: dist.ProcessGroup, down: dist.ProcessGroup, rows: int) -> None:
        ctx, gear = station.ctx, 0
        self._shape = (rows, *station.machine.shape(gear))
        self._dtype = station.machine.dtype
        self._like = torch.empty(self._shape, dtype=self._dtype, device=ctx.device)
        size = _HEADER + self._like.numel() * self._like.element_size()
        self._out, incoming = (up, down) if station.bottom else (down, up)
        self._other = 1 if station.bottom else 0
        buffer = torch.empty(size, dtype=torch.uint8, device=ctx.device)
        self._receiver: Receiver = ctx.receiver(buffer, incoming, self._other)
        self._works: list[dist.Work] = []

    def send(self, number: int, version: int, word: int, rows: Tensor | None) -> None:
        """Send rows, padded, or none, with three numbers in front."""
        body = torch.zeros_like(self._like)
        if rows is not None:
            body[: len(rows)] = rows
        header = torch.tensor([number, version, word], dtype=torch.int64, device=body.device)
        message = torch.cat([header.view(torch.uint8), body.view(-1).view(torch.uint8)])
        self._works += post_send(message, self._other, self._out)

    def ready(self) -> bool:
        return self._receiver.ready()

    def get(self) -> tuple[int, int, int, Tensor]:
        """Wait for a message: its number, version, word, and its rows with the padding."""
        tensor = self._receiver.get().tensor
        number, version, word = tensor[:_HEADER].view(torch.int64).tolist()
        # A copy: what stands behind the header need not lie where its type may lie.
        return number, version, word, tensor[_HEADER:].clone().view(self._dtype).view(self._shape)

    def settle(self) -> None:
        """Wait until all has left."""
        wait_all(self._works)
        self._works.clear()


class _Clock:
    """When a gear is due that updates `speed` times in a revolution: after micro-batches floor(u * beats / speed).

    Attributes:
        begun: what the micro-batches since the last update weigh together.
    """

    def __init__(self, speed: int) -> None:
        self._speed, self._beats, self._largest = speed, 1, 1
        self.count, self.turns, self.begun = 0, 0, 0.0

    def set(self, beats: Sequence[Beat]) -> None:
        """The micro-batches of a revolution."""
        self._beats, self._largest = len(beats), beats[0].count

    def weight(self, samples: int) -> float:
        """Of a micro-batch in the mean that is an update: 1 for the largest ones."""
        return samples / self._largest

    def tick(self, samples: int) -> bool:
        """One more micro-batch; whether an update is due."""
        self.count, self.begun = self.count + 1, self.begun + self.weight(samples)
        speed = min(self._speed, self._beats)
        due = speed > 0 and (self.turns + 1) * self._beats // speed <= self.count
        self.turns += due
        return due

    def state_dict(self) -> tuple[int, int, float]:
        return self.count, self.turns, self.begun

    def load_state_dict(self, state: tuple[int, int, float]) -> None:
        self.count, self.turns, self.begun = state


class FreeBottom(Worker):
    """Gear A; see the module."""

    def __init__(self, ctx: Context, task: Task, machine: Machine, freedom: Freedom) -> None:
        self._station, self._freedom, self._groups = Station(ctx, task, machine), freedom, _groups(ctx)
        self.model, (self._wheel,) = self._station.model, self._station.wheels
        self._clock = _Clock(machine.plan.speeds[0])
        self._post: _Post | None = None
        self._flying: dict[int, tuple[Pass, int, int]] = {}
        self._number, self._poisoned, self._ages, self._lost = 0, False, list[int](), 0

    def step(self, batches: Batches) -> StepResult:
        station = self._station
        batch = on_device(batches.take(), station.ctx.device)
        beats, before = beats_of(batch.num_samples, station), self._wheel.version
        self._clock.set(beats)
        post = self._post = self._post or _Post(station, *self._groups, beats[0].count)
        self._ages, self._lost = [], 0
        for beat in beats:
            while not self._poisoned and (len(self._flying) >= self._freedom.capacity or post.ready()):
                self._answer(post)
            if self._poisoned:  # the other gear ends, and answers no more
                break
            self._send(post, beat.of(batch.inputs))
        station.mark()
        staleness = sum(self._ages) / len(self._ages) if self._ages else None
        return StepResult(None, 0, self._wheel.version - before, staleness, {"lost": float(self._lost)})

    def _send(self, post: _Post, inputs: Tensor) -> None:
        turn = self._wheel.through(inputs, want_entry=False, stash=self._station.machine.stash)
        if not self._station.machine.stash:  # it will go through again, so nothing but the inputs is kept
            turn, exit = Pass(inputs, inputs, ()), turn.exit.detach()
        else:
            exit = turn.exit.detach()
        post.send(self._number, self._wheel.version, _TRAINED, exit)
        self._flying[self._number] = (turn, self._wheel.version, len(inputs))
        self._number += 1

    def _answer(self, post: _Post) -> None:
        number, _, word, gradient = post.get()
        turn, version, count = self._flying.pop(number)
        edge = gradient.view(-1)[0]
        self._wheel.taint(edge - edge)
        self._poisoned = self._poisoned or not bool(edge.isfinite())
        if word == _LOST:
            self._lost += 1
            return
        if not self._station.machine.stash:
            turn = self._wheel.through(turn.entry, want_entry=False)
        self._ages.append(self._wheel.version - version)
        self._wheel.back(turn, gradient[:count] * self._clock.weight(count))
        if self._clock.tick(count) or self._poisoned:
            _update(self._wheel, self._clock)

    def pause(self) -> None:
        while self._post and self._flying and not self._poisoned:
            self._answer(self._post)

    def settle(self) -> None:
        self._station.gather()

    def finish(self) -> None:
        self.pause()
        if self._clock.begun:
            _update(self._wheel, self._clock)
        if self._post:
            self._post.settle()
        self._station.gather()

    def state_dict(self) -> dict[str, Any]:
        self.pause()
        return {**self._station.state_dict(), "number": self._number, "clock": self._clock.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._station.load_state_dict(state)
        self._clock.load_state_dict(state["clock"])
        self._number = state["number"]

    def close(self) -> None:
        self._wheel.close()


@dataclass(frozen=True)
class _Message:
    number: int
    version: int
    rows: Tensor


class FreeTop(Worker):
    """Gear B; see the module."""

    def __init__(self, ctx: Context, task: Task, machine: Machine, freedom: Freedom) -> None:
        self._station, self._freedom, self._groups = Station(ctx, task, machine), freedom, _groups(ctx)
        self.model, (self._wheel,) = self._station.model, self._station.wheels
        self._clock = _Clock(machine.plan.speeds[1])
        self._rng = ctx.rng("replay")
        self._post: _Post | None = None
        self._beats: list[Beat] = []
        self._targets: dict[int, Tensor] = {}
        self._mailbox: list[_Message] = []
        self._buffer: deque[tuple[Tensor, Tensor]] = deque(maxlen=freedom.capacity)
        self._batches_taken, self._newest = 0, 0

    def step(self, batches: Batches) -> StepResult:
        before, losses, ages, spins = self._wheel.version, list[Tensor](), list[int](), 0
        if self._post is None:
            self._fetch(batches)
            self._post = _Post(self._station, *self._groups, self._beats[0].count)
        samples = 0
        for _ in self._beats:
            message, replays = self._next(self._post)
            spins += replays
            while message.number // len(self._beats) >= self._batches_taken:
                self._fetch(batches)
            age, targets = self._newest - message.version, self._targets.pop(message.number)
            if age > self._freedom.staleness:
                self._post.send(message.number, self._wheel.version, _LOST, None)
                continue
            losses.append(self._train(message, targets, self._post))
            ages.append(age)
            samples += len(targets)
        values = {"replays": float(spins), "lost": float(len(self._beats) - len(losses))}
        mean = sum(one.item() for one in losses) / len(losses) if losses else None
        staleness = sum(ages) / len(ages) if ages else None
        return StepResult(mean, samples, self._wheel.version - before, staleness, values)

    def _fetch(self, batches: Batches) -> None:
        """Take the next global batch: the targets of its micro-batches, by number."""
        batch = on_device(batches.take(), self._station.ctx.device)
        self._beats = beats_of(batch.num_samples, self._station)
        self._clock.set(self._beats)
        first = self._batches_taken * len(self._beats)
        self._targets.update({first + k: beat.of(batch.targets) for k, beat in enumerate(self._beats)})
        self._batches_taken += 1

    def _next(self, post: _Post) -> tuple[_Message, int]:
        """The newest unseen message, and how many replays passed the time until there was one."""
        replays = 0
        while True:
            while post.ready():
                self._collect(post)
            if self._mailbox:
                return self._mailbox.pop(), replays
            if replays < self._freedom.replay and self._buffer and self._may_spin():
                self._replay()
                replays += 1
            else:
                self._collect(post)

    def _collect(self, post: _Post) -> None:
        number, version, _, rows = post.get()
        self._mailbox.append(_Message(number, version, rows))
        self._newest = max(self._newest, version)

    def _may_spin(self) -> bool:
        """The governor: u_B + 1 <= 2 R max(1, u_A)."""
        slow, fast = self._station.plan.speeds
        return not slow or (self._wheel.version + 1) * slow <= 2 * fast * max(1, self._newest)

    def _train(self, message: _Message, targets: Tensor, post: _Post) -> Tensor:
        rows = message.rows[: len(targets)]
        loss, gradient = self._turn(rows, targets, self._station.wants[1])
        if gradient is not None:
            gradient.view(-1)[0] += loss - loss
        post.send(message.number, self._wheel.version, _TRAINED, gradient)
        self._update(len(targets))
        self._buffer.append((rows, targets))
        return loss

    def _replay(self) -> None:
        chosen = int(torch.randint(len(self._buffer), (), generator=self._rng, device=self._rng.device))
        rows, targets = self._buffer[chosen]
        self._turn(rows, targets, False)
        self._update(len(targets))

    def _turn(self, rows: Tensor, targets: Tensor, want_entry: bool) -> tuple[Tensor, Tensor | None]:
        """The loss, and the gradient of the micro-batch's rows if it is wanted."""
        weight, compute = self._clock.weight(len(targets)), partial(self._station.loss, targets=targets)
        turn = self._wheel.through(rows, want_entry=want_entry, compute=compute)
        loss = turn.exit.detach()
        gradient = self._wheel.back(turn, torch.full_like(loss, weight))
        self._wheel.taint(loss - loss)
        return loss, gradient if gradient is None or weight == 1 else gradient / weight

    def _update(self, samples: int) -> None:
        if self._clock.tick(samples):
            _update(self._wheel, self._clock)

    def settle(self) -> None:
        self._station.gather()

    def finish(self) -> None:
        if self._clock.begun:
            _update(self._wheel, self._clock)
        if self._post:
            self._post.settle()
        self._station.gather()

    def state_dict(self) -> dict[str, Any]:
        return {
            **self._station.state_dict(),
            "clock": self._clock.state_dict(),
            "buffer": list(self._buffer),
            "batches": self._batches_taken,
            "newest": self._newest,
            "replay": self._rng.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._station.load_state_dict(state)
        self._clock.load_state_dict(state["clock"])
        self._buffer.extend(state["buffer"])
        self._batches_taken, self._newest = state["batches"], state["newest"]
        self._rng.set_state(state["replay"])

    def close(self) -> None:
        self._wheel.close()


def _groups(ctx: Context) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """One for what goes up and one for what comes down: each is received in a lane of its own."""
    up, down = ctx.group(range(ctx.num_workers)), ctx.group(range(ctx.num_workers))
    assert up is not None and down is not None, "both workers are in them"
    return up, down


def _update(wheel: Wheel, clock: _Clock) -> None:
    """With the mean over the samples since the last one, however many they are."""
    if clock.begun != 1:
        wheel.rescale(1 / clock.begun)
    clock.begun = 0.0
    wheel.update()
