"""A worker of `spp`: its stage of the model, trained by the interpreter of schedule tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.errors import StrategyError
from geartrain.parallel.interpreter import Interpreter
from geartrain.parallel.partition import Plan
from geartrain.parallel.schedule_table import ScheduleTable
from geartrain.runtime.backward import on_device, witness_of
from geartrain.runtime.buckets import trainable
from geartrain.runtime.chain import part_module
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.tracing import task_parts
from geartrain.runtime.worker import Batches, StepResult, Task, Worker


class PipelineWorker(Worker):
    """Trains one stage; `model` is whole, with the weights of the other stages as they were when they last came.

    Args:
        ctx, task: as in `bind`.
        plan_for: the plan for a model of so many parts.
        table: the order of blocks.
    """

    def __init__(self, ctx: Context, task: Task, plan_for: Callable[[int], Plan], table: ScheduleTable) -> None:
        self._ctx = ctx
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        with uncharged():
            parts = task_parts(task, self.model)
        self._plan = plan = plan_for(len(parts))
        pieces = [part_module(self.model, [name for k in span for name in parts[k].modules]) for span in plan.pieces]
        self._pieces = pieces
        self._stage = plan.stage_of(ctx.rank)
        self._idle = plan.idle(ctx.num_workers)
        messages = ctx.group(range(ctx.num_workers)) if ctx.num_workers > 1 else ctx.workers
        assert messages is not None, "every worker is in it"
        self._messages = messages
        groups = [ctx.group(stage.ranks) if len(stage.ranks) > 1 else None for stage in plan.stages]
        self._replicas = None if self._stage is None else groups[self._stage]
        self._own = [] if self._stage is None else [p for piece in self._mine() for p in trainable(piece)]
        self._optimizer = task.optimizer(self._own) if self._own else None
        self._check_types()
        self._interpreter: Interpreter | None = None
        if self._stage is not None:
            mine = {piece: pieces[piece] for piece in range(self._stage, len(pieces), len(plan.stages))}
            handed_on = [parts[span[-1]] for span in plan.pieces]
            self._interpreter = Interpreter(ctx, plan, table, mine, handed_on, task.loss, messages)

    def _mine(self) -> list[nn.Module]:
        assert self._stage is not None, "only a worker with a stage has pieces"
        return self._pieces[self._stage :: len(self._plan.stages)]

    def _check_types(self) -> None:
        if self._replicas is not None and len({p.dtype for p in self._own}) > 1:
            raise StrategyError("replicas of a stage sum gradients of one type; here are several.\n  replicate=false")

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(batches.take(), self._ctx.device)
        if self._interpreter is None:
            self._poison(self._hear())
            return StepResult(None, 0)
        if self._optimizer is not None:
            self._optimizer.zero_grad()
        outcome = self._interpreter.run(batch)
        taint = outcome.loss - outcome.loss  # 0, or NaN where the loss is NaN or infinite
        if self._replicas is not None:
            taint = self._sum(taint, self._replicas)
        if self._optimizer is not None:
            self._optimizer.step()
        self._tell(taint)
        self._interpreter.drain()
        self._poison(taint)
        return StepResult(None if self._ctx.meta else outcome.loss.item(), outcome.samples)

    def _sum(self, taint: Tensor, group: dist.ProcessGroup) -> Tensor:
        """Sum the gradients over the replicas; with them goes whether some loss was not finite."""
        kind = self._own[0].dtype if self._own else taint.dtype
        pieces = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._own]
        flat = torch.cat([*pieces, taint.view(1).to(kind)])
        dist.all_reduce(flat, group=group)
        begin = 0
        for p in self._own:
            if p.grad is not None:
                p.grad.copy_(flat[begin : begin + p.numel()].view_as(p))
            begin += p.numel()
        return flat[-1]

    def _tell(self, taint: Tensor) -> None:
        """The first worker of the pipeline tells those without a stage that the step is over."""
        if self._idle and self._ctx.rank == self._plan.stages[0].ranks[0]:
            word = taint.to(self._witness.dtype).view(1)
            wait_all(work for rank in self._idle for work in post_send(word, rank, self._messages, tag=_OVER))

    def _hear(self) -> Tensor:
        word = torch.empty(1, dtype=self._witness.dtype, device=self._ctx.device)
        wait_all(post_recv(word, self._plan.stages[0].ranks[0], self._messages, tag=_OVER))
        return word[0]

    @torch.no_grad()
    def _poison(self, taint: Tensor) -> None:
        """The element of the model that tells the loop of a loss that is not finite, whichever stage has it."""
        self._witness.view(-1)[:1].add_(taint)

    # --- the whole model --------------------------------------------------------------------------------------------

    def settle(self) -> None:
        self._bring_together()

    def finish(self) -> None:
        self._bring_together()

    def _bring_together(self) -> None:
        """Every stage's first worker gives what it has trained to all."""
        if self._ctx.num_workers == 1:
            return
        with uncharged(), torch.no_grad():
            for piece, module in enumerate(self._pieces):
                for tensor in _changing(module):
                    dist.broadcast(tensor, group=self._ctx.workers, group_src=self._plan.ranks_of(piece)[0])

    def state_dict(self) -> dict[str, Any]:
        state = {} if self._optimizer is None else self._optimizer.state_dict()
        return {"model": self.model.state_dict(), "optimizer": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        for parameter in self._own:
            parameter.grad = None


_OVER = 2**20
"""Tag of the word that a step is over: above those of micro-batches."""


def _changing(module: nn.Module) -> Iterator[Tensor]:
    """What training changes in a piece: each tensor once."""
    yield from (p.detach() for p in trainable(module))
    yield from module.buffers()
