"""What turns in a gear, and what passes through the mesh between two: `Wheel`, `Mesh`.

Micro-batch j of a revolution has n_j samples. Every gear divides them among its own workers, in order; where two gears
have different numbers of workers, each pair whose shares overlap exchanges just the rows that both have. Upwards go
activations, downwards d L_j/d h, L_j the mean loss of the micro-batch. Targets do not travel: the top gear takes them
from the data itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Task

_UP, _DOWN = 0, 1


Compute = Callable[[nn.Module, Tensor], Tensor]
"""From a gear's parts and what goes in to what comes out."""


@dataclass(frozen=True)
class Pass:
    """One micro-batch that has gone through a gear.

    Attributes:
        entry: what went in.
        exit: what came out, or the loss, with its graph.
        leaves: the parameters in that graph: the gear's own or, stashed, copies of the version that it went through.
    """

    entry: Tensor
    exit: Tensor
    leaves: Sequence[Tensor]


class Wheel:
    """The parts of one gear on one of its workers, with its own optimizer and its own clock.

    Args:
        module: its parts, one after another; they are the model's own.
        speed: updates per revolution; with 0 its parameters are constants.
        group: of its workers, if they are several.
        scale: its learning rate is the task's times this.

    Attributes:
        version: updates that it has made.
    """

    def __init__(
        self, task: Task, module: nn.Module, *, speed: int, group: dist.ProcessGroup | None, scale: float
    ) -> None:
        self.module, self.version = module, 0
        self._names = {id(p): name for name, p in module.named_parameters()}
        self.parameters = trainable(module) if speed else []
        self._group = group
        self._optimizer = task.optimizer(self.parameters) if self.parameters else None
        if self._optimizer is not None and scale != 1:
            for settings in self._optimizer.param_groups:
                settings["lr"] = settings["lr"] * scale
        self._stash: list[Tensor] | None = None
        self._witness = next((p for p in reversed(self.parameters) if p.numel()), None)

    def through(
        self, entry: Tensor, *, want_entry: bool, stash: bool = False, compute: Compute = lambda module, x: module(x)
    ) -> Pass:
        """Run a micro-batch through the gear.

        Args:
            want_entry: the gradient must go on to the gear below.
            stash: at copies of the parameters, so that backward may come after an update. One copy serves a version.
            compute: what is computed with the parts.
        """
        entry = entry.detach().requires_grad_(want_entry)
        if not (stash and self.parameters):
            return Pass(entry, compute(self.module, entry), self.parameters)
        if self._stash is None:
            self._stash = [p.detach().clone().requires_grad_() for p in self.parameters]
        copies = {self._names[id(p)]: copy for p, copy in zip(self.parameters, self._stash, strict=True)}
        return Pass(entry, functional_call(self.module, copies, (entry,)), self._stash)

    def back(self, turn: Pass, gradient: Tensor) -> Tensor | None:
        """Add the gradient of the parameters to what is there; returns that of the entry, if it is wanted."""
        wanted = [*turn.leaves, turn.entry] if turn.entry.requires_grad else list(turn.leaves)
        if not wanted or not turn.exit.requires_grad:
            return None
        torch.autograd.backward(turn.exit, gradient, inputs=wanted)
        if turn.leaves is not self.parameters:
            for p, copy in zip(self.parameters, turn.leaves, strict=True):
                if copy.grad is not None:
                    p.grad = copy.grad if p.grad is None else p.grad.add_(copy.grad)
                    copy.grad = None
        if not turn.entry.requires_grad:
            return None
        return torch.zeros_like(turn.entry) if turn.entry.grad is None else turn.entry.grad

    def taint(self, poison: Tensor) -> None:
        """Add 0 or NaN to one element, so that a loss that is not finite reaches all workers of the gear."""
        witness = self._witness
        if witness is None:
            return
        if witness.grad is None:
            if poison.is_meta or not poison.isnan():
                return  # what gets no gradient stays as it is
            witness.grad = torch.zeros_like(witness)
        witness.grad.view(-1)[0] += poison

    @torch.no_grad()
    def update(self) -> None:
        """One update with the gradients added since the last one."""
        if self._optimizer is None:
            return
        if self._group is not None:
            self._sum_up(self._group)
        self._optimizer.step()
        for p in self.parameters:
            p.grad = None
        self._stash = None
        self.version += 1

    def _sum_up(self, group: dist.ProcessGroup) -> None:
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self.parameters])
        dist.all_reduce(flat, group=group)
        for p, piece in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
            p.grad = piece.view_as(p)

    @torch.no_grad()
    def rescale(self, factor: float) -> None:
        """Multiply what was added since the last update."""
        for p in self.parameters:
            if p.grad is not None:
                p.grad.mul_(factor)

    @property
    def poison(self) -> Tensor | None:
        """0, or NaN after an update with a loss that was not finite; None where nothing is trained."""
        if self._witness is None:
            return None
        element = self._witness.detach().view(-1)[0]
        return element - element

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
            "version": self.version,
            "gradients": [None if p.grad is None else p.grad.clone() for p in self.parameters],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])
        self.version, self._stash = state["version"], None
        for p, gradient in zip(self.parameters, state["gradients"], strict=True):
            p.grad = None if gradient is None else gradient.to(p.device)

    def close(self) -> None:
        """Leave no gradients behind."""
        for p in self.parameters:
            p.grad = None


class Mesh:
    """The buffers between this worker and the gear above or below it.

    Args:
        mine, theirs: the workers of this gear and of the other one.
        shape: of what passes for one sample.
        below: the other gear is below this one.
    """

    def __init__(
        self, ctx: Context, mine: range, theirs: range, shape: tuple[int, ...], dtype: torch.dtype, *, below: bool
    ) -> None:
        self._ctx, self._mine, self._theirs, self._shape, self._dtype = ctx, mine, theirs, shape, dtype
        self._gives, self._takes = (_DOWN, _UP) if below else (_UP, _DOWN)
        self._before: list[dist.Work] = []
        self._sent: list[dist.Work] = []
        self._posted: dict[int, tuple[Tensor, list[Tensor], list[dist.Work]]] = {}

    def give(self, beat: int, rows: Tensor, count: int) -> None:
        """Send this worker's rows of micro-batch `beat`, which has `count` samples, to whoever has them too."""
        rows = rows.contiguous()
        for other, part in overlaps(count, self._mine, self._theirs, self._ctx.rank):
            self._sent += post_send(rows[part], other, self._ctx.workers, 2 * beat + self._gives)

    def expect(self, beat: int, count: int) -> None:
        """Post the receives of a micro-batch."""
        rows = len(rows_of(count, self._mine, self._ctx.rank))
        whole = torch.empty((rows, *self._shape), dtype=self._dtype, device=self._ctx.device)
        pieces, works = [], []
        for other, part in overlaps(count, self._mine, self._theirs, self._ctx.rank):
            piece = whole[part]  # rows side by side, so contiguous
            pieces.append(piece)
            works += post_recv(piece, other, self._ctx.workers, 2 * beat + self._takes)
        self._posted[beat] = (whole, pieces, works)

    def take(self, beat: int) -> tuple[Tensor, list[Tensor]]:
        """Wait for a micro-batch: this worker's rows, and one element of each piece that came, where NaN is marked."""
        whole, pieces, works = self._posted.pop(beat)
        wait_all(works)
        return whole, [piece.view(-1)[0] for piece in pieces if piece.numel()]

    def turn(self) -> None:
        """A revolution is over: wait until what was sent in the one before it has left."""
        wait_all(self._before)
        self._before, self._sent = self._sent, []

    def settle(self) -> None:
        """Wait until all that was sent has left."""
        self.turn()
        self.turn()


def rows_of(count: int, workers: range, rank: int) -> range:
    """The samples of `count` that a worker of a gear takes; the first ones have one more."""
    size, extra = divmod(count, len(workers))
    place = rank - workers.start
    begin = place * size + min(place, extra)
    return range(begin, begin + size + (place < extra))


def overlaps(count: int, mine: range, theirs: range, rank: int) -> list[tuple[int, slice]]:
    """For a worker of `mine`: the workers of `theirs` that have some of its samples, and which of its rows they are."""
    own, found = rows_of(count, mine, rank), []
    for other in theirs:
        rows = rows_of(count, theirs, other)
        begin, end = max(own.start, rows.start), min(own.stop, rows.stop)
        if begin < end:
            found.append((other, slice(begin - own.start, end - own.start)))
    return found
