"""CoCoDSGD: the models of one period are averaged while the workers take the steps of the next.

    x_i(t+1) = x_i(t) - lr * g_i(t)                          every step, with the task's optimizer
    at t = m * period:
        x_i <- x_avg + (x_i - s_i)                           once an average is in flight: wait for it
        s_i <- x_i,   x_avg <- sum_j p_j * s_j               begins, and is waited for one period later

    hence, for t >= period and t' = (floor(t / period) - 1) * period,
        x_i(t)         = x_avg(t') - lr * sum of g_i(t') ... g_i(t - 1)
        x_avg(t + 1)   = x_avg(t) - lr * sum_j p_j * g_j(t)

Paper: Shuheng Shen, Linli Xu, Jingchang Liu, Xianfeng Liang, Yifei Cheng, IJCAI 2019, arXiv 1906.12043, equations 9 and
10 of its appendix. Limits: one worker is `single`; it is `dasgd:merge=displacement` with a delay of a whole period.
Period 1 is not synchronous SGD: x_i(t) = x_avg(t-1) - lr * g_i(t-1) is averaging that comes a step late.
Differs from the paper: nothing is sent in the first period, in which all models start equal; after the last step the
models are averaged once more; momentum, which the paper does not analyse, stays local, and so do batch-norm statistics;
samples are rounded by largest remainder.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Alone, Attachment, Loop
from geartrain.runtime.averaging import ModelAverage
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.local_worker import LocalWorker
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batch, Batches, Task, Worker
from geartrain.schedules.schedule import Every
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import COCOD_SGD
from geartrain.strategies.single import Single
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class CoCoDSGD(Strategy):
    """Local SGD whose averages travel during the next period.

        at t = m * period:  x_i <- x_avg + (x_i - s_i),   s_i <- x_i,   x_avg <- sum_j p_j * s_j begins

    Args:
        period: steps between two averages, 1 or more. The paper's values were not seen; 5 is chosen.
        sampling: "equal": workers take equal shares of the global batch; "proportional": after the first period, shares
            in proportion to the samples per second that each reached in it, so that unequal devices end a period
            together. p_j is the worker's share either way.

    Costs, per worker and step, for M bytes of parameters: 1/period of an all-reduce, with a ring 2 M (W - 1)/W bytes in
    2 (W - 1) messages; "proportional" a gather of 16 bytes once. Two extra copies of the model.

        round = max(period * t_c, A),    t_c a step, A the all-reduce

    Use it where an all-reduce takes no longer than a period: then it is hidden, and no step is lost. Models deviate
    from their mean by up to 2 periods of steps, twice as many as with local SGD: not for data that differs much between
    workers. "proportional" deals each worker's samples from its own part of the data, and cannot be attached, as a loop
    takes its own samples. Batch-norm statistics and the optimizer's state stay local to each worker. All workers must
    take the same number of steps.

    Example:
        >>> str(CoCoDSGD(period=8, sampling="proportional"))
        'cocod_sgd:period=8,sampling=proportional'

    Source: Shen and others, IJCAI 2019, arXiv 1906.12043.
    """

    name: ClassVar[str] = "cocod_sgd"
    paper: ClassVar[Paper] = COCOD_SGD
    needs: ClassVar[Needs] = Needs(attachable=True)

    period: int = 5
    sampling: Literal["equal", "proportional"] = "equal"

    def __post_init__(self) -> None:
        check_fields(self, period=1)

    def __str__(self) -> str:
        return render(self)

    @property
    def cycle(self) -> int:
        return self.period

    def bind(self, ctx: Context, task: Task) -> Worker:
        if self.sampling == "equal" or ctx.num_workers == 1:
            return LocalWorker(ctx, task, lambda loop: _attachment(self, ctx, loop))
        if ctx.meta:
            raise StrategyError(
                f"{self} measures how fast workers are and tells them in numbers; shapes alone have none.\n"
                "  use sampling=equal, or a task with data (--task) in place of a workload"
            )
        shares = _Shares(ctx)
        return LocalWorker(ctx, task, lambda loop: _attachment(self, ctx, loop, shares), shares.take)

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        if self.sampling != "equal":
            raise StrategyError(
                f"{self} decides how many samples a worker takes, and a loop takes its own.\n"
                "  use sampling=equal, and tell the share of each worker with attach(..., batch_weight=...)"
            )
        return _attachment(self, ctx, loop)

    def limits(self) -> Sequence[Limit]:
        return (Limit(CoCoDSGD(), "equals", Single(), num_workers=1),)

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        shares = None
        if self.sampling == "proportional":
            shares = proportional(batch, closed_forms.speeds(workload, place, batch, model))
        return closed_forms.local_updates(
            workload,
            place,
            closed_forms.slowest(workload, place, batch, model, buckets=False, shares=shares),
            model,
            period=self.period,
            hidden_steps=self.period,
            # Copy into the flat tensor, keep a copy, weigh; subtract what was sent, add tensor by tensor.
            merge=closed_forms.Merge(passes=12, kernels=4 + len(workload.parameters), copies=2),
        )


def proportional(batch: int, speeds: Sequence[float]) -> list[int]:
    """A batch dealt in proportion to speeds by largest remainder; nobody is left without a sample.

    Example:
        >>> proportional(10, [1.0, 2.0, 1.0])
        [3, 5, 2]
    """
    exact = [batch * speed / sum(speeds) for speed in speeds]
    dealt = [int(part) for part in exact]
    by_remainder = sorted(range(len(speeds)), key=lambda worker: (dealt[worker] - exact[worker], worker))
    for worker in by_remainder[: batch - sum(dealt)]:
        dealt[worker] += 1
    while 0 in dealt:
        dealt[dealt.index(max(dealt))] -= 1
        dealt[dealt.index(0)] += 1
    return dealt


def _attachment(strategy: CoCoDSGD, ctx: Context, loop: Loop, shares: _Shares | None = None) -> Attachment:
    return Alone() if ctx.num_workers == 1 else _CoCoD(strategy, ctx, loop, shares)


class _Shares:
    """How many samples this worker takes in a step: an equal share while the workers' speeds are measured."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._num_samples: int | None = None
        self._begin, self._seconds, self._taken, self._steps = 0.0, 0.0, 0, 0

    def take(self, batches: Batches) -> Batch:
        batch = batches.take(self._num_samples)
        self._begin = self._ctx.clock.now()
        if self._num_samples is None:
            self._taken += batch.num_samples
            self._steps += 1
        return batch

    def stepped(self) -> None:
        """The step has been taken; before the first average a worker waits for nobody in it."""
        if self._num_samples is None:
            self._seconds += self._ctx.clock.now() - self._begin

    def settle(self) -> None:
        """Tell each other samples per second and per step, and deal the global batch anew."""
        speed = self._taken / self._seconds if self._seconds > 0 else math.inf
        mine = torch.tensor([speed, self._taken / self._steps], dtype=torch.float64, device=self._ctx.device)
        found = [torch.empty_like(mine) for _ in range(self._ctx.num_workers)]
        dist.all_gather(found, mine, group=self._ctx.workers)
        speeds, samples = zip(*(there.tolist() for there in found), strict=True)
        if not all(math.isfinite(speed) for speed in speeds):  # where computing takes no time, all are as fast
            speeds = (1.0,) * len(speeds)
        self._num_samples = proportional(round(sum(samples)), speeds)[self._ctx.rank]

    def state_dict(self) -> dict[str, Any]:
        return {
            "num_samples": self._num_samples,
            "seconds": self._seconds,
            "taken": self._taken,
            "steps": self._steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_samples, self._seconds = state["num_samples"], state["seconds"]
        self._taken, self._steps = state["taken"], state["steps"]


class _CoCoD(Attachment):
    def __init__(self, strategy: CoCoDSGD, ctx: Context, loop: Loop, shares: _Shares | None) -> None:
        self._loop, self._shares = loop, shares
        self._schedule = Every(period=strategy.period, delay=strategy.period)
        self._average = ModelAverage(ctx, trainable(loop.model), keep_sent=True)
        self._step = 0

    def gradients_ready(self) -> None:
        self._average.count(self._loop.share())

    def after_step(self) -> None:
        self._step += 1
        if self._shares is not None:
            self._shares.stepped()
        if not self._schedule.due(self._step):
            return
        if self._average.in_flight:
            self._average.wait()
            self._average.displace()
        elif self._shares is not None:
            self._shares.settle()
        self._average.start()

    def finish(self) -> None:
        """The models become their average. What is in flight would not change it: displacements are kept."""
        if self._step == 0:
            return
        self._average.drop()
        self._average.start()
        self._average.wait()
        self._average.replace()

    def state_dict(self) -> dict[str, Any]:
        shares = self._shares.state_dict() if self._shares else None
        return {"step": self._step, "average": self._average.state_dict(), "shares": shares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step = state["step"]
        self._average.load_state_dict(state["average"])
        if self._shares:
            self._shares.load_state_dict(state["shares"])
