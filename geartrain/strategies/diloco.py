"""DiLoCo: many local steps, and an outer optimizer that takes what they changed on average for a gradient.

    w_i  <- inner step with g_i                              every step, with the task's optimizer (the paper's: AdamW)
    every `period` steps:
        delta <- theta - sum_j p_j * w_j                     the outer gradient, one all-reduce
        v     <- momentum * v + delta
        theta <- theta - outer_lr * (delta + momentum * v)   Nesterov
        w_i   <- theta

Paper: Arthur Douillard and others, 2023, arXiv 2311.08105, algorithm 1, recalled. Limits: outer_lr 1 without momentum
is `local_sgd` (to rounding).
Differs from the paper: the inner optimizer is the task's, so it is AdamW where the task's is; the model travels, and is
subtracted from theta afterwards, which is the same as the p_j add up to 1; after the last step there is one more outer
step for the inner ones since the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Attachment, Loop
from geartrain.runtime.averaging import ModelAverage
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.local_worker import LocalWorker
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Task, Worker
from geartrain.schedules.schedule import Every
from geartrain.strategies import closed_forms
from geartrain.strategies.local_sgd import LocalSGD
from geartrain.strategies.papers import DILOCO
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class DiLoCo(Strategy):
    """Local steps with an inner optimizer, and an outer Nesterov step with their average.

        delta <- theta - sum_j p_j * w_j,   v <- momentum * v + delta,
        theta <- theta - outer_lr * (delta + momentum * v)

    Args:
        period: inner steps to an outer one, 1 or more; the paper's is 500 (recalled), 20 is chosen for short runs.
        outer_lr: above 0; the paper's is 0.7 (recalled).
        momentum: of the outer optimizer, 0 or more and below 1; the paper's is 0.9 (recalled).

    Costs, per worker and step, for M bytes of parameters: 1/period of an all-reduce, with a ring 2 M (W - 1)/W bytes in
    2 (W - 1) messages. Three extra copies of the model: theta, v and what travels.

        round = period * t_c + A,    t_c a step, A the all-reduce

    Use it over the slowest wires, between sites, with hundreds of steps to a period: the outer momentum makes up for
    averaging so seldom. Not with a period of a few steps, where local_sgd does as well with fewer copies. The inner
    optimizer is the task's or the loop's; its state and batch-norm statistics stay local to each worker. All workers
    must take the same number of steps.

    Example:
        >>> str(DiLoCo(period=500))
        'diloco:period=500'

    Source: Douillard and others, 2023, arXiv 2311.08105, algorithm 1.
    """

    name: ClassVar[str] = "diloco"
    paper: ClassVar[Paper] = DILOCO
    needs: ClassVar[Needs] = Needs(attachable=True)

    period: int = 20
    outer_lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        check_fields(self, period=1, outer_lr=0, momentum=0)
        if not (self.outer_lr > 0 and self.momentum < 1):
            raise StrategyError(
                f"diloco: outer_lr={self.outer_lr!r}, momentum={self.momentum!r} cannot be; "
                "give an outer_lr above 0 and a momentum below 1"
            )

    def __str__(self) -> str:
        return render(self)

    @property
    def cycle(self) -> int:
        return self.period

    def bind(self, ctx: Context, task: Task) -> Worker:
        return LocalWorker(ctx, task, lambda loop: self.attach(ctx, loop))

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        return _DiLoCo(self, ctx, loop)

    def limits(self) -> Sequence[Limit]:
        plain = DiLoCo(period=4, outer_lr=1.0, momentum=0.0)
        return (Limit(plain, "close", LocalSGD(), tolerance=1e-5),)

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        return closed_forms.local_updates(
            workload,
            place,
            closed_forms.slowest(workload, place, batch, model, buckets=False),
            model,
            period=self.period,
            hidden_steps=0,
            # Copy into the flat tensor and weigh; delta, v and theta in seven; copy back tensor by tensor.
            merge=closed_forms.Merge(passes=24, kernels=9 + len(workload.parameters), copies=3),
        )


class _DiLoCo(Attachment):
    def __init__(self, strategy: DiLoCo, ctx: Context, loop: Loop) -> None:
        self._loop, self._lr, self._momentum = loop, strategy.outer_lr, strategy.momentum
        self._schedule = Every(period=strategy.period)
        self._average = ModelAverage(ctx, trainable(loop.model))
        self._theta = self._average.copy_of_parameters()
        self._velocity = [torch.zeros_like(theta) for theta in self._theta]
        self._step = 0
        self._since = 0  # inner steps since the last outer one

    def gradients_ready(self) -> None:
        self._average.count(self._loop.share())

    def after_step(self) -> None:
        self._step += 1
        self._since += 1
        if self._schedule.due(self._step):
            self._outer_step()

    @torch.no_grad()
    def _outer_step(self) -> None:
        self._average.start()
        self._average.wait()
        for theta, velocity, delta in zip(self._theta, self._velocity, self._average.flats, strict=True):
            delta.neg_().add_(theta)
            velocity.mul_(self._momentum).add_(delta)
            theta.add_(delta.add_(velocity, alpha=self._momentum), alpha=-self._lr)
            delta.copy_(theta)
        self._average.replace()
        self._since = 0

    def finish(self) -> None:
        """One more outer step for the inner ones that it has not seen."""
        if self._since:
            self._outer_step()

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self._step,
            "since": self._since,
            "theta": self._theta,
            "velocity": self._velocity,
            "average": self._average.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step, self._since = state["step"], state["since"]
        for mine, saved in zip((*self._theta, *self._velocity), (*state["theta"], *state["velocity"]), strict=True):
            mine.copy_(saved)
        self._average.load_state_dict(state["average"])
