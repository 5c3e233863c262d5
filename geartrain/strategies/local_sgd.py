"""LocalSGD: every worker takes steps of its own, and every `period` steps their models are averaged.

    w_i(t+1) = w_i(t) - lr * g_i(t)                          every step, with the task's optimizer
    w_i(t)  <- sum_j p_j * w_j(t)                            every `period` steps after step `switch`
    g_i(t)  <- sum_j p_j * g_j(t)                            in the first `switch` steps: synchronous SGD

With p_j = 1/W it is local SGD, with p_j the share of worker j in the samples it is FedAvg with all clients, and with
`switch` post-local SGD.

Papers: Sebastian U. Stich, 2018, arXiv 1805.09767; Brendan McMahan and others, 2016, arXiv 1602.05629 (FedAvg); Tao Lin
and others, 2018, arXiv 1808.07217 (post-local SGD); all recalled. Limits: period 1 is synchronous SGD where the
optimizer is linear in the gradients (to rounding: models are added in place of gradients); a switch that never comes
is synchronous SGD to the bit; one worker is `single`.
Differs from the papers: all workers take part in every average, where FedAvg draws some of the clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Alone, Attachment, Loop
from geartrain.runtime.averaging import FlatSum, ModelAverage
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.local_worker import LocalWorker
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Task, Worker
from geartrain.schedules.schedule import Every
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import LOCAL_SGD
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Strategy):
    """Workers train apart and average their models every few steps.

        w_i <- w_i - lr * g_i every step,   w_i <- sum_j p_j * w_j every `period` steps after step `switch`

    Args:
        period: steps between two averages, 1 or more.
        switch: post-local SGD: so many steps of synchronous SGD come first; 0 or more.
        weights: "samples": p_j is the share of worker j in the samples since the last average, as in FedAvg; "equal":
            1/W, as in local SGD. They differ where workers take batches of different sizes.

    Costs, per worker and step, for M bytes of parameters: 1/period of an all-reduce, with a ring 2 M (W - 1)/W bytes in
    2 (W - 1) messages. The first `switch` steps cost an all-reduce of the gradients each, after backward. One extra
    copy of the model.

        round = period * t_c + A,    t_c a step, A the all-reduce

    Use it where the wire is slow against a step, as it communicates `period` times less. Not for data that differs much
    between workers with a long period: models drift apart. Batch-norm statistics and the optimizer's state stay local
    to each worker; after the last step the models are averaged once more. All workers must take the same number of
    steps: a loop in which a gradient scaler leaves out a step on one worker alone ends in an error.

    Example:
        >>> str(LocalSGD(period=8, switch=100))
        'local_sgd:period=8,switch=100'

    Source: Stich, 2018, arXiv 1805.09767; McMahan and others, 2016, arXiv 1602.05629; Lin and others, 2018, arXiv
    1808.07217. The default period is chosen.
    """

    name: ClassVar[str] = "local_sgd"
    paper: ClassVar[Paper] = LOCAL_SGD
    needs: ClassVar[Needs] = Needs(attachable=True)

    period: int = 4
    switch: int = 0
    weights: Literal["samples", "equal"] = "samples"

    def __post_init__(self) -> None:
        check_fields(self, period=1, switch=0)

    def __str__(self) -> str:
        return render(self)

    @property
    def cycle(self) -> int:
        return self.period

    def bind(self, ctx: Context, task: Task) -> Worker:
        return LocalWorker(ctx, task, lambda loop: self.attach(ctx, loop))

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        if ctx.num_workers == 1:
            return Alone()
        return _LocalSGD(self, ctx, loop)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(LocalSGD(period=1), "close", Synchronous(), linear=True),
            Limit(LocalSGD(switch=1000), "equals", Synchronous()),
            Limit(LocalSGD(weights="equal"), "equals", LocalSGD()),
            Limit(LocalSGD(), "equals", Single(), num_workers=1),
        )

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        return closed_forms.local_updates(
            workload,
            place,
            closed_forms.slowest(workload, place, batch, model, buckets=False),
            model,
            period=self.period,
            hidden_steps=0,
            # Copy into the flat tensor, weigh, copy back tensor by tensor.
            merge=closed_forms.Merge(passes=6, kernels=2 + len(workload.parameters), copies=self._copies(place)),
            notes=(f"after step {self.switch}",) if self.switch else (),
        )

    def _copies(self, place: Placement) -> int:
        """Of the model's size: models on their way, and gradients as long as the workers step together."""
        return 0 if place.num_workers == 1 else 1 + (self.switch > 0)


class _LocalSGD(Attachment):
    def __init__(self, strategy: LocalSGD, ctx: Context, loop: Loop) -> None:
        if strategy.switch and loop.skip_unused:
            raise StrategyError(
                f"{strategy} gives parameters that nobody used a gradient of zero in its first {strategy.switch} "
                "steps.\n  leave out skip_unused, or switch=0"
            )
        self._loop, self._switch = loop, strategy.switch
        self._equal_share = 1 / ctx.num_workers if strategy.weights == "equal" else None
        self._schedule = Every(period=strategy.period, start=strategy.switch)
        parameters = trainable(loop.model)
        self._average = ModelAverage(ctx, parameters)
        self._gradients = FlatSum(ctx, parameters) if strategy.switch else None
        self._step = 0
        self._apart = False  # whether a worker has taken a step of its own since the models were equal

    def gradients_ready(self) -> None:
        share = self._loop.share() if self._equal_share is None else self._equal_share
        if self._gradients is None:
            self._average.count(share)
            return
        self._gradients.pack_gradients()
        self._gradients.start(share)
        self._gradients.wait()
        self._gradients.unpack_gradients()

    def after_step(self) -> None:
        self._step += 1
        if self._gradients is not None:
            if self._step == self._switch:
                self._gradients = None
            return
        self._apart = True
        if self._schedule.due(self._step):
            self.finish()

    def finish(self) -> None:
        """The models of all workers become their average."""
        if self._apart:
            self._average.start()
            self._average.wait()
            self._average.replace()
            self._apart = False

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "apart": self._apart, "average": self._average.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._step, self._apart = state["step"], state["apart"]
        self._average.load_state_dict(state["average"])
        if self._step >= self._switch:
            self._gradients = None
