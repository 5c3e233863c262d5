"""Runs a schedule table on one worker: pieces of the model, micro-batches, and messages to whoever is next.

    F(p, m)   y = piece p of x,  x the samples of micro-batch m or what piece p - 1 handed on;  y goes to piece p + 1;
              on the last piece y is the mean loss
    B(p, m)   x.grad from y.grad, which piece p + 1 handed back, or from the loss times its share of the global batch;
              x.grad goes to piece p - 1, gradients of parameters add up over the micro-batches

Replicas of a stage share every micro-batch in stretches, so each pair of workers whose stretches overlap exchanges one
message each way. All receives of a step are posted at its beginning and sends are waited for at its end, so that a
table which can be run cannot get stuck in messages; it takes memory for what all micro-batches hand over.

With its gradient a micro-batch hands back one number more, its loss: so every worker knows the loss of its samples, and
one that is not finite is known everywhere in the same step.

torch.distributed.pipelining runs such tables too, and tests compare with it. It has one rank per stage, so no replicas
which share a micro-batch unevenly; it finds out shapes by messages of its own and needs numbers; and its stages report
no loss to the others. So strategies use this interpreter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.parallel.partition import Delivery, Plan, deliveries, shares
from geartrain.parallel.schedule_table import Block, ScheduleTable
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch
from geartrain.workload.spec import Part

Loss = Callable[[nn.Module, Batch], Tensor]
"""(the last piece, its samples) -> mean loss over them, as `Task.loss`."""


@dataclass(frozen=True)
class Outcome:
    """What a step came to on one worker.

    Attributes:
        loss: mean over the samples that it used, without a graph.
        samples: how many.
    """

    loss: Tensor
    samples: int


class Interpreter:
    """One worker's part of a pipeline; it leaves the sum of the weighted gradients in its parameters.

    Args:
        ctx: of a worker that has a stage.
        plan, table: what to run.
        pieces: the pieces of this worker's stage, by number.
        handed_on: what each piece hands on, in the order of the model.
        loss: of the last piece.
        group: of all workers, used by nothing else.
    """

    def __init__(
        self,
        ctx: Context,
        plan: Plan,
        table: ScheduleTable,
        pieces: Mapping[int, nn.Module],
        handed_on: Sequence[Part],
        loss: Loss,
        group: dist.ProcessGroup,
    ) -> None:
        stage = plan.stage_of(ctx.rank)
        assert stage is not None, "a worker without a stage runs nothing"
        self.ctx, self.plan, self.pieces, self.handed_on, self.loss = ctx, plan, pieces, handed_on, loss
        self.group, self.count = group, table.num_micro_batches
        self.row = table.rows[stage]
        self.place = plan.stages[stage].ranks.index(ctx.rank)
        self.replicas = len(plan.stages[stage].ranks)
        self._step: _Step | None = None

    def run(self, batch: Batch) -> Outcome:
        """One step on a global batch, up to `drain`; all workers are given the same."""
        step = _Step(self, batch)
        for block in self.row:
            (step.forward if block.kind == "F" else step.backward)(block)
        self._step = step
        return step.outcome()

    def drain(self) -> None:
        """Wait until all that the step has sent has left. Sums over replicas need not wait for it."""
        if self._step is not None:
            wait_all(self._step.sends)
        self._step = None


class _Step:
    """The messages and activations of one step."""

    def __init__(self, owner: Interpreter, batch: Batch) -> None:
        self._owner, self._batch = owner, batch
        self._spans = shares(batch.num_samples, owner.count)
        self._mine = [shares(len(span), owner.replicas)[owner.place] for span in self._spans]
        self._inputs: dict[tuple[int, int], Tensor] = {}
        self._outputs: dict[tuple[int, int], Tensor] = {}
        self._gradients: dict[tuple[int, int], list[tuple[Delivery, Tensor]]] = {}
        self._works: dict[Block, list[dist.Work]] = {}
        self._losses: list[Tensor] = []
        self._kept: list[Tensor] = []
        self.sends: list[dist.Work] = []
        for block in owner.row:
            (self._expect_activations if block.kind == "F" else self._expect_gradients)(block)

    # --- what comes and goes ----------------------------------------------------------------------------------------

    def _deliveries(self, piece: int, micro_batch: int) -> tuple[Delivery, ...]:
        """Between a piece and the next one."""
        senders, receivers = self._owner.plan.ranks_of(piece), self._owner.plan.ranks_of(piece + 1)
        return deliveries(len(self._spans[micro_batch]), len(senders), len(receivers))

    def _tag(self, kind: str, piece: int, micro_batch: int) -> int:
        """Of the message that block (kind, piece, micro-batch) waits for."""
        return (2 * piece + (kind == "B")) * self._owner.count + micro_batch

    def _empty(self, piece: int, samples: int) -> Tensor:
        """Room for what a piece hands on."""
        part = self._owner.handed_on[piece]
        return torch.empty((samples, *part.shape), dtype=getattr(torch, part.dtype), device=self._owner.ctx.device)

    def _expect_activations(self, block: Block) -> None:
        _, piece, micro_batch = block
        if not piece:
            return
        owner, mine = self._owner, self._mine[micro_batch]
        buffer = self._inputs[piece, micro_batch] = self._empty(piece - 1, len(mine))
        works: list[dist.Work] = []
        for one in self._deliveries(piece - 1, micro_batch):
            if one.receiver == owner.place:
                source = owner.plan.ranks_of(piece - 1)[one.sender]
                room = buffer[one.begin - mine.start : one.end - mine.start]
                works += post_recv(room, source, owner.group, self._tag("F", piece, micro_batch))
        self._works[block] = works

    def _expect_gradients(self, block: Block) -> None:
        _, piece, micro_batch = block
        owner = self._owner
        if piece == owner.plan.num_pieces - 1:
            return
        found, works, device = [], list[dist.Work](), owner.ctx.device
        for one in self._deliveries(piece, micro_batch):
            if one.sender == owner.place:
                source = owner.plan.ranks_of(piece + 1)[one.receiver]
                part = owner.handed_on[piece]
                room = torch.empty(one.samples * part.numel + 1, dtype=getattr(torch, part.dtype), device=device)
                works += post_recv(room, source, owner.group, self._tag("B", piece, micro_batch))
                found.append((one, room))
        self._gradients[piece, micro_batch], self._works[block] = found, works

    def _send(self, tensor: Tensor, to: int, tag: int) -> None:
        self._kept.append(tensor)  # until it has left
        self.sends += post_send(tensor, to, self._owner.group, tag)

    # --- blocks -----------------------------------------------------------------------------------------------------

    def forward(self, block: Block) -> None:
        _, piece, micro_batch = block
        owner, mine, span = self._owner, self._mine[micro_batch], self._spans[micro_batch]
        wait_all(self._works.get(block, ()))
        here = slice(span.start + mine.start, span.start + mine.stop)
        if piece:
            inputs = self._inputs[piece, micro_batch].requires_grad_()
        else:
            inputs = self._batch.inputs[here]
        if piece == owner.plan.num_pieces - 1:
            share = Batch(inputs, self._batch.targets[here], self._batch.weight * len(mine) / self._batch.num_samples)
            output = owner.loss(owner.pieces[piece], share)
        else:
            output = owner.pieces[piece](inputs)
            leaving = output.detach().contiguous()
            for one in self._deliveries(piece, micro_batch):
                if one.sender == owner.place:
                    part = leaving[one.begin - mine.start : one.end - mine.start]
                    to = owner.plan.ranks_of(piece + 1)[one.receiver]
                    self._send(part, to, self._tag("F", piece + 1, micro_batch))
        self._inputs[piece, micro_batch], self._outputs[piece, micro_batch] = inputs, output

    def backward(self, block: Block) -> None:
        _, piece, micro_batch = block
        owner = self._owner
        inputs, output = self._inputs.pop((piece, micro_batch)), self._outputs.pop((piece, micro_batch))
        wait_all(self._works.get(block, ()))
        if piece == owner.plan.num_pieces - 1:
            weight = self._batch.weight * len(self._mine[micro_batch]) / self._batch.num_samples
            gradient, loss = torch.full_like(output, weight), output.detach()
        else:
            gradient, loss = self._handed_back(piece, micro_batch)
        if output.requires_grad:
            output.backward(gradient)
        if piece:
            self._hand_back(piece, micro_batch, inputs, loss)
        if piece == owner.row[-1].piece:
            self._losses.append(loss)

    def _handed_back(self, piece: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        """The gradient of what this worker handed on, and the mean loss of its samples."""
        parts = self._gradients.pop((piece, micro_batch))
        shape = self._owner.handed_on[piece].shape
        tensors = [room[:-1].view(one.samples, *shape) for one, room in parts]
        if len(parts) == 1:
            return tensors[0], parts[0][1][-1]
        samples = sum(one.samples for one, _ in parts)
        losses = [room[-1] * (one.samples / samples) for one, room in parts]
        return torch.cat(tensors), torch.stack(losses).sum()

    def _hand_back(self, piece: int, micro_batch: int, inputs: Tensor, loss: Tensor) -> None:
        owner, mine = self._owner, self._mine[micro_batch]
        gradient = torch.zeros_like(inputs) if inputs.grad is None else inputs.grad
        last = loss.to(gradient.dtype).view(1)
        for one in self._deliveries(piece - 1, micro_batch):
            if one.receiver == owner.place:
                part = gradient[one.begin - mine.start : one.end - mine.start].reshape(-1)
                to = owner.plan.ranks_of(piece - 1)[one.sender]
                self._send(torch.cat([part, last]), to, self._tag("B", piece - 1, micro_batch))

    def outcome(self) -> Outcome:
        samples = sum(len(mine) for mine in self._mine)
        # Of the piece whose backward comes last, in the order of its micro-batches.
        order = [block.micro_batch for block in self._owner.row if block[:2] == ("B", self._owner.row[-1].piece)]
        weights = [len(self._mine[micro_batch]) / samples for micro_batch in order]
        losses = [loss * weight for loss, weight in zip(self._losses, weights, strict=True)]
        return Outcome(torch.stack(losses).sum(), samples)
