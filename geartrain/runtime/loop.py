"""The training loop: binds a strategy to a rank, takes the steps, and ends cleanly whatever happens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from geartrain.errors import ConfigurationError, NotFinite, TaskError
from geartrain.runtime.backward import is_poisoned, witness_of
from geartrain.runtime.charging import charged, uncharged
from geartrain.runtime.checkpoint import Checkpoints, Keeper, read_info
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Strategy, check_shapes
from geartrain.runtime.targets import Targets, Watch, metric_entry, step_entry
from geartrain.runtime.worker import Service, StepResult, Task, Worker


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
        checkpoints: what to save, and from where to go on; see `geartrain.runtime.checkpoint`.
        targets: when to stop early, and what to evaluate on the way; see `geartrain.runtime.targets`.

    Returns, on a worker, a dict of
        losses: its mean loss in each step (None under meta tensors); of a run that went on, of the steps before, too,
            unless another number of workers took them.
        final_loss: the last of them.
        samples: how many it used.
        metric: of the task; empty on all workers but 0.
        stopped: the step in which another worker's loss was not finite, else None.
        resumed: steps that had been taken when the run went on, else None.
        evaluations: [step, metrics] of each evaluation on the way; empty on all workers but 0.
        time_to_target: seconds from the begin of the first step; None while the targets are not reached.

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
    checkpoints: Checkpoints | None = None
    targets: Targets | None = None

    def check(self, num_workers: int, seed: int = 0) -> None:
        """Refuse what cannot run, before anything does."""
        if self.batch < num_workers:
            raise TaskError(
                f"a batch of {self.batch} cannot be dealt to {num_workers} workers: each needs at least one sample.\n"
                f"  use a batch of {num_workers} or more, or fewer workers"
            )
        if self.steps < 1:
            raise TaskError(f"{self.steps} steps train nothing; take at least 1")
        if self.checkpoints and self.checkpoints.resume:
            services = self.strategy.roles(num_workers).services
            saved = read_info(self.checkpoints.resume)
            saved.check(self.identity(seed), self.strategy, num_workers, len(services))

    @property
    def survives_loss(self) -> bool:
        """Whether the run may go on when a worker's process dies."""
        return self.strategy.needs.survives_loss

    def identity(self, seed: int) -> dict[str, Any]:
        """What makes a run with this seed itself: a checkpoint of another one is refused."""
        return {
            "strategy": str(self.strategy),
            "task": self.task.name,
            "batch": self.batch,
            "seed": seed,
            "order of the data": self.seed,
        }

    def __call__(self, ctx: Context) -> dict[str, Any]:
        self.check(ctx.num_workers, ctx.seed)
        if ctx.meta:
            check_shapes(self.strategy)
        part = self.strategy.bind(ctx, self.task)
        keeper = None
        if self.checkpoints:
            keeper = Keeper(self.checkpoints, self.identity(ctx.seed), ctx, self.strategy)
        if isinstance(part, Service):
            if keeper:
                keeper.attend(part)
            part.run()
            return {}
        try:
            return _Run(self, ctx, part, keeper).run()
        finally:
            part.close()


class _Run:
    """The steps of one worker.

    Its time is that of the clock, less the time in which training paused to save or, unless that is charged, evaluate.
    """

    def __init__(self, training: Training, ctx: Context, worker: Worker, keeper: Keeper | None) -> None:
        self._training, self._ctx, self._worker, self._keeper = training, ctx, worker, keeper
        with uncharged():  # data is loaded by whoever needs it first in a process: no part of the run
            share = training.strategy.deal(ctx.rank, ctx.num_workers)
            self._batches = training.task.batches(*share, training.batch, training.seed)
        self._witness = witness_of(worker.model)
        self._losses: list[float | None] = []
        self._samples, self._paused = 0, 0.0
        self._evaluations: list[tuple[int, dict[str, float]]] = []
        targets = training.targets
        if targets and ctx.meta:
            raise ConfigurationError("a run on shapes alone has no loss and no metric to reach; leave out the targets")
        self._watch = Watch(targets, ctx.num_workers) if targets else None
        self._ledger = ctx.upkeep.ledger("targets") if targets else None

    def run(self) -> dict[str, Any]:
        training, ctx, keeper = self._training, self._ctx, self._keeper
        first = self._resume()
        stopped = None
        for step in range(first, training.steps):
            if self._watch and self._watch.stop is not None and step > self._watch.stop:
                break
            begin = self._now()
            result = self._step(step)
            if not ctx.meta and is_poisoned(self._witness):
                stopped = step
                break
            self._tell(step, result, begin)
            if keeper and keeper.due(step + 1) and not self._done(step):
                self._save(keeper, step + 1)
        metric: dict[str, float] = {}
        if stopped is None:
            self._worker.finish()
            if training.evaluate and ctx.rank == 0 and not ctx.meta:
                with uncharged():
                    metric = training.task.metric(self._worker.model)
        return {
            "final_loss": self._losses[-1] if self._losses else None,
            "losses": self._losses,
            "metric": metric,
            "samples": self._samples,
            "stopped": stopped,
            "resumed": first or None,
            "evaluations": self._evaluations,
            "time_to_target": self._watch.time_to_target if self._watch else None,
        }

    def _now(self) -> float:
        return self._ctx.clock.now() - self._paused

    def _step(self, step: int) -> StepResult:
        ctx = self._ctx
        ctx.mark_step(step, "begin")
        result = self._worker.step(self._batches)
        age = {} if result.staleness is None else {"staleness": result.staleness}
        ctx.mark_step(step, "end", loss=result.loss, samples=result.samples, **age, **result.values)
        self._losses.append(result.loss)
        self._samples += result.samples
        if result.loss is not None and not math.isfinite(result.loss):
            raise NotFinite(
                f"the loss of worker {ctx.rank} became {result.loss} in step {step} ({self._training.strategy}).\n"
                "  lower the learning rate, look at the samples of that step, or start from another seed",
                rank=ctx.rank,
                step=step,
            )
        return result

    # --- targets ----------------------------------------------------------------------------------------------------

    def _done(self, step: int) -> bool:
        return self._watch is not None and self._watch.stop == step

    def _tell(self, step: int, result: StepResult, begin: float) -> None:
        """Tell the others of the step, and read what they have told."""
        targets, watch, ledger = self._training.targets, self._watch, self._ledger
        if targets is None or watch is None or ledger is None:
            return
        end = self._now()
        ledger.post(step_entry(step, result.loss, result.samples, begin, end))
        if targets.every and (step + 1) % targets.every == 0:
            with charged() if targets.charge_evaluation else uncharged():
                self._evaluate(step, end, targets)
        watch.feed(ledger.read())

    def _evaluate(self, step: int, end: float, targets: Targets) -> None:
        """Worker 0 evaluates. On a real clock the others pause with it, so that no step of theirs waits for it."""
        watch, ledger, ctx = self._watch, self._ledger, self._ctx
        assert watch is not None and ledger is not None
        before = ctx.clock.now()
        if not ctx.upkeep.virtual:
            self._worker.pause()
        self._worker.settle()
        if ctx.rank == 0:
            metrics = self._training.task.metric(self._worker.model)
            self._evaluations.append((step, metrics))
            moment = self._now() if targets.charge_evaluation else end
            ledger.post(metric_entry(step, self._good(metrics, targets.metric), moment))
        elif not ctx.upkeep.virtual:
            while watch.evaluated < step:
                watch.feed(ledger.wait())
        if not targets.charge_evaluation:
            self._paused += ctx.clock.now() - before

    def _good(self, metrics: dict[str, float], target: float | None) -> bool:
        if target is None:
            return False
        if not metrics:
            raise TaskError(f"task {self._training.task.name!r} has no metric to reach; give a loss as the target")
        name, value = next(iter(metrics.items()))
        return value <= target if name in self._training.task.falling else value >= target

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _save(self, keeper: Keeper, steps: int) -> None:
        before = self._ctx.clock.now()
        self._worker.settle()  # before all come together to save: what is asked for its state then stands still
        self._worker.pause()
        keeper.save(steps, self._state)
        self._paused += self._ctx.clock.now() - before

    def _state(self) -> dict[str, Any]:
        if self._watch and self._ledger:
            self._watch.feed(self._ledger.read())
        return {
            "worker": self._worker.state_dict(),
            "batches": self._batches.state_dict(),
            "watch": self._watch.state_dict() if self._watch else None,
            "losses": self._losses,
            "samples": self._samples,
            "evaluations": self._evaluations,
            "time": self._now(),
        }

    def _resume(self) -> int:
        """Load what was saved; the first step to take."""
        keeper = self._keeper
        state = keeper.load() if keeper else None
        if keeper is None or state is None:
            return 0
        with uncharged():
            self._worker.load_state_dict(state["worker"])
            self._batches.load_state_dict(state["batches"])
        if self._watch and state["watch"]:
            self._watch.load_state_dict(state["watch"])
        if keeper.same_workers:
            self._losses, self._samples = state["losses"], state["samples"]
        if self._ctx.rank == 0:
            self._evaluations = state["evaluations"]
        keeper.go_on(state["random"])
        self._paused = self._ctx.clock.now() - state["time"]
        return keeper.first_step
