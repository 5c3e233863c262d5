"""The training loop: binds a strategy to a rank, takes the steps, and ends cleanly whatever happens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from geartrain.errors import NotFinite, TaskError
from geartrain.runtime.backward import is_poisoned, witness_of
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Strategy
from geartrain.runtime.worker import Batches, Service, StepResult, Task, Worker


@dataclass(frozen=True, kw_only=True)
class Training:
    """`main(ctx)` of a training run: what an engine runs on every rank. Pickles, if strategy and task do.

    Args:
        strategy: how the ranks train together.
        task: what is trained.
        steps: training steps.
        batch: samples in a global batch, at least one per worker.
        seed: of the order of the data; the weights come from the seed of the run.
        evaluate: compute the metric on worker 0 at the end, at no virtual cost.

    Returns, on a worker, a dict of
        losses: its mean loss in each step (None under meta tensors).
        final_loss: the last of them.
        samples: how many it used.
        metric: of the task; empty on all workers but 0.
        stopped: the step in which another worker's loss was not finite, else None.

    On a service the dict is empty. The loss of the global batch is the mean of the workers' losses weighted by their
    samples; both stand in the step marks of the logs.

    Raises NotFinite on the worker whose loss became NaN or infinite; the others return what they have.
    """

    strategy: Strategy
    task: Task
    steps: int
    batch: int
    seed: int = 0
    evaluate: bool = True

    def check(self, num_workers: int) -> None:
        """Refuse what cannot run, before anything does."""
        if self.batch < num_workers:
            raise TaskError(
                f"a batch of {self.batch} cannot be dealt to {num_workers} workers: each needs at least one sample.\n"
                f"  use a batch of {num_workers} or more, or fewer workers"
            )
        if self.steps < 1:
            raise TaskError(f"{self.steps} steps train nothing; take at least 1")

    def __call__(self, ctx: Context) -> dict[str, Any]:
        self.check(ctx.num_workers)
        part = self.strategy.bind(ctx, self.task)
        if isinstance(part, Service):
            part.run()
            return {}
        try:
            return self._train(ctx, part)
        finally:
            part.close()

    def _train(self, ctx: Context, worker: Worker) -> dict[str, Any]:
        batches = self.task.batches(ctx.rank, ctx.num_workers, self.batch, self.seed)
        losses: list[float | None] = []
        samples, stopped = 0, None
        witness = witness_of(worker.model)
        for step in range(self.steps):
            result = self._step(ctx, worker, batches, step)
            losses.append(result.loss)
            samples += result.samples
            if not ctx.meta and is_poisoned(witness):
                stopped = step
                break
        metric: dict[str, float] = {}
        if stopped is None:
            worker.finish()
            if self.evaluate and ctx.rank == 0 and not ctx.meta:
                with uncharged():
                    metric = self.task.metric(worker.model)
        return {
            "final_loss": losses[-1],
            "losses": losses,
            "metric": metric,
            "samples": samples,
            "stopped": stopped,
        }

    def _step(self, ctx: Context, worker: Worker, batches: Batches, step: int) -> StepResult:
        ctx.mark_step(step, "begin")
        result = worker.step(batches)
        ctx.mark_step(step, "end", loss=result.loss, samples=result.samples)
        if result.loss is not None and not math.isfinite(result.loss):
            raise NotFinite(
                f"the loss of worker {ctx.rank} became {result.loss} in step {step} ({self.strategy}).\n"
                "  lower the learning rate, look at the samples of that step, or start from another seed",
                rank=ctx.rank,
                step=step,
            )
        return result
