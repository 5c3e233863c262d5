"""DaSGD: local SGD whose averages are merged `delay` steps after they began.

    w_i(t+1) = w_i(t) - lr * g_i(t)                          every step, with the task's optimizer
    at t = m * period:          w_avg <- sum_j p_j * w_j(t)  begins, not waited for
    at t = m * period + delay:  w_i <- kept * w_i + (1 - kept) * w_avg                            merge=blend
                                w_i <- w_i + (1 - kept) * (w_avg - w_i(m * period))               merge=displacement

    mean after a blend = kept * mean before + (1 - kept) * w_avg: of the progress of the hidden steps a share of
    1 - kept is discarded; a displacement keeps all of it.

Paper: Qinggang Zhou and others, 2020, arXiv 2006.00441; the rule is that of the authors' code. Limits: delay 0 and
kept 0 is `local_sgd`, which with period 1 is synchronous SGD; a delay of a whole period with kept 0 and merge
displacement is `cocod_sgd`; kept 1 is workers that train apart.
Differs from the paper: workers weigh in the average by their samples, which is the same where all take as many; with a
delay of 0 all workers are merged, where the authors' code merges the last one only; merge=displacement is no part of
it; after the last step the models are averaged once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

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
from geartrain.strategies.cocod_sgd import CoCoDSGD
from geartrain.strategies.local_sgd import LocalSGD
from geartrain.strategies.papers import DASGD
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class DaSGD(Strategy):
    """Local SGD whose averages travel during the next `delay` steps.

        at m * period + delay:  w_i <- kept * w_i + (1 - kept) * average of the models at m * period

    Args:
        period: steps between two averages, 1 or more; the authors' script has 4.
        delay: steps in which an average travels, 0 to `period`; the authors' script has 1.
        kept: share of its own model that a worker keeps, 0 to 1; the authors' script has 0.25.
        merge: "blend" as in the paper; "displacement" adds what has become of what was sent, and so keeps the steps
            taken since, for comparison.

    Costs, per worker and step, for M bytes of parameters: 1/period of an all-reduce, with a ring 2 M (W - 1)/W bytes in
    2 (W - 1) messages. One extra copy of the model, two with "displacement".

        round = period * t_c + max(0, A - delay * t_c),    t_c a step, A the all-reduce

    Use it where the wire is slow, with delay = ceil(A / t_c), which hides all of it. A blend discards the share
    1 - kept of the progress of the last `delay` steps: keep delay / period small, or raise the learning rate.
    Batch-norm statistics and the optimizer's state stay local to each worker. All workers must take the same number of
    steps. One worker alone blends with its own past.

    Example:
        >>> str(DaSGD(period=8, delay=2))
        'dasgd:period=8,delay=2'

    Source: Zhou and others, 2020, arXiv 2006.00441, defaults of the authors' training script.
    """

    name: ClassVar[str] = "dasgd"
    paper: ClassVar[Paper] = DASGD
    needs: ClassVar[Needs] = Needs(attachable=True)

    period: int = 4
    delay: int = 1
    kept: float = 0.25
    merge: Literal["blend", "displacement"] = "blend"

    def __post_init__(self) -> None:
        check_fields(self, period=1, delay=0, kept=0)
        if self.delay > self.period:
            raise StrategyError(
                f"dasgd: delay={self.delay} is longer than period={self.period}: one average is in flight at most.\n"
                "  give a delay from 0 to the period"
            )
        if not self.kept <= 1:
            raise StrategyError(f"dasgd: kept={self.kept!r} is a share; give a number from 0 to 1")

    def __str__(self) -> str:
        return render(self)

    @property
    def cycle(self) -> int:
        return self.period

    def bind(self, ctx: Context, task: Task) -> Worker:
        return LocalWorker(ctx, task, lambda loop: self.attach(ctx, loop))

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        return _DaSGD(self, ctx, loop)

    def limits(self) -> Sequence[Limit]:
        whole = DaSGD(period=5, delay=5, kept=0.0, merge="displacement")
        return (
            Limit(DaSGD(period=1, delay=0, kept=0.0), "close", Synchronous(), linear=True),
            Limit(DaSGD(delay=0, kept=0.0), "equals", LocalSGD()),
            Limit(DaSGD(period=2, delay=0, kept=0.0), "equals", LocalSGD(period=2)),
            Limit(whole, "equals", CoCoDSGD()),
            Limit(DaSGD(period=1, delay=1, kept=0.0, merge="displacement"), "equals", CoCoDSGD(period=1)),
            Limit(DaSGD(delay=0), "equals", Single(), num_workers=1),
            Limit(DaSGD(merge="displacement"), "equals", Single(), num_workers=1),
        )

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        tensors = len(workload.parameters)
        # Copy into the flat tensor and weigh; then blend tensor by tensor, or keep a copy, subtract it, and add.
        blend = closed_forms.Merge(passes=7, kernels=2 + tensors, copies=1)
        displacement = closed_forms.Merge(passes=12, kernels=4 + tensors, copies=2)
        return closed_forms.local_updates(
            workload,
            place,
            closed_forms.slowest(workload, place, batch, model, buckets=False),
            model,
            period=self.period,
            hidden_steps=self.delay,
            merge=blend if self.merge == "blend" else displacement,
        )


class _DaSGD(Attachment):
    def __init__(self, strategy: DaSGD, ctx: Context, loop: Loop) -> None:
        self._loop, self._kept, self._blends = loop, strategy.kept, strategy.merge == "blend"
        self._schedule = Every(period=strategy.period, delay=strategy.delay)
        self._average = ModelAverage(ctx, trainable(loop.model), keep_sent=not self._blends)
        self._replaces = strategy.delay == 0 and strategy.kept == 0
        self._step = 0
        self._apart = False  # whether the models may differ

    def gradients_ready(self) -> None:
        self._average.count(self._loop.share())

    def after_step(self) -> None:
        self._step += 1
        self._apart = True
        if self._schedule.delay and self._schedule.applied(self._step):
            self._merge()
        if self._schedule.due(self._step):
            self._average.start()
            if not self._schedule.delay:
                self._merge()

    def _merge(self) -> None:
        self._average.wait()
        if self._blends:
            self._average.blend(self._kept)
        else:
            self._average.displace(self._kept)
        self._apart = not self._replaces

    def finish(self) -> None:
        """The models become their average; a blend with what is in flight would only undo progress."""
        if self._apart:
            self._average.drop()
            self._average.start()
            self._average.wait()
            self._average.replace()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "apart": self._apart, "average": self._average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step, self._apart = state["step"], state["apart"]
        self._average.load_state_dict(state["average"])
