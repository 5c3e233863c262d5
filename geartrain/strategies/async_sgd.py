"""AsyncSGD: a server applies gradients as they come; nobody waits for all workers.

    worker i:   g <- gradient at w_i;  push g;  w_i <- w
    server:     once `gather` = K gradients are there, the k-th computed tau_k updates ago:
                    w <- w - alpha_t * (1/K) sum_k g_k          the task's optimizer, its rate times alpha_t / alpha_0

    step = "constant"     alpha_t = alpha_0
           "static"       alpha_t = alpha_0 / (1 + kappa tau_max)                    the default
           "decaying"     alpha_t = alpha_0 / (t (1 + kappa tau_max))
           "per_update"   alpha_t = alpha_0 / max(1, max_k tau_k)

tau_max is max_staleness or, without a bound, what K gradients of W workers in turn come to: ceil(W / K) - 1. With K = 1
every update makes the W - 1 other gradients one update older, so the mean of tau is W - 1, whatever the speeds.

Paper: Jayanth Regatti and others, 2019, arXiv 1909.13391, of which the abstract was read. Limits: gather=none is
`synchronous`; one worker is `single`.
Differs from the paper: its algorithm was not seen. The form with K, all four rules for the step and both ways to keep
the bound are chosen: readings of an abstract in which gradients are aggregated, delays bounded, and the learning rate
is reduced as more of them is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.buckets import Layout
from geartrain.runtime.context import Context
from geartrain.runtime.shards import ShardUpdate
from geartrain.runtime.strategy import Limit, Needs, Paper, Roles, Strategy
from geartrain.runtime.worker import Service, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import GEN_ASYNC
from geartrain.strategies.serving import Late, PushingWorker, Server, Serving, check_gather, flat_model, one_server
from geartrain.strategies.serving_cost import serving_cost
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class AsyncSGD(Strategy):
    """A server applies the workers' gradients as they come.

        w <- w - alpha_t * (1/K) sum_k g_k,   g_k computed tau_k updates ago

    Args:
        gather: gradients in an update, K; none: those of all workers, which is synchronous.
        max_staleness: bound on tau, in updates, 0 or more; none: there is none. With late = "block", K times one more
            than it must be at least the number of workers.
        late: what keeps the bound: "drop" uses no gradient that is older; "block" lets the workers ahead wait. With
            gather = K and max_staleness = 0, "drop" is synchronous training with W - K backup workers.
        step: how the rate answers to staleness, see the module. "constant" does not.
        kappa: weight of the staleness in "static" and "decaying", 0 or more.

    Costs, per step, for M bytes of parameters: a worker sends M in one message, the server W M in W messages; dropped
    gradients, too, are sent and answered. At the end of a run, outside steps, a worker sends two elements and gets M.

        step = max(t_c + 2 (alpha + M/B) + t_apply,  W M/B,  W t_apply)     for K = 1;  the server holds (2 W + 2) M

    Use it where workers differ in speed, or one may fail. Not with a large rate and many workers: the rate that is
    stable falls like 1/tau, and momentum makes it worse. One server carries W M each way; with fast wires and equal
    workers `synchronous` is the better choice.

    Example:
        >>> str(AsyncSGD(gather=2, max_staleness=4, step="per_update"))
        'async_sgd:gather=2,max_staleness=4,step=per_update'

    Source: Regatti and others, 2019, arXiv 1909.13391, abstract; the closed forms and the mean staleness are derived.
    """

    name: ClassVar[str] = "async_sgd"
    paper: ClassVar[Paper] = GEN_ASYNC
    needs: ClassVar[Needs] = Needs(lanes=True, survives_loss=True)

    gather: int | None = 1
    max_staleness: int | None = None
    late: Late = "drop"
    step: Literal["constant", "static", "decaying", "per_update"] = "static"
    kappa: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, gather=1, max_staleness=0)
        if not self.kappa >= 0:
            raise StrategyError(f"async_sgd: kappa={self.kappa!r} would raise the rate; give 0 or more")
        if self.late == "block" and self.max_staleness is None:
            raise StrategyError("async_sgd: late=block keeps a bound, and there is none; give max_staleness")

    def __str__(self) -> str:
        return render(self)

    def roles(self, num_workers: int) -> Roles:
        self._serving(num_workers)
        return one_server()

    def bind(self, ctx: Context, task: Task) -> Worker | Service:
        serving = self._serving(ctx.num_workers)
        if ctx.role == "worker":
            return PushingWorker(ctx, task, serving.gather)
        _, layout, flat = flat_model(ctx, task)
        return Server(serving, ctx, flat, _TaskUpdate(self, task, layout, flat, self._longest(ctx.num_workers)))

    def _serving(self, num_workers: int) -> Serving:
        gather, bound = self.gather or num_workers, self.max_staleness
        check_gather(self.name, gather, num_workers)
        if self.late == "block" and bound is not None and gather * (bound + 1) < num_workers:
            least = -(-num_workers // gather) - 1
            raise StrategyError(
                f"{self}: the first gradients of {num_workers} workers, {gather} in an update, are up to {least} "
                f"updates old, so no waiting keeps a bound of {bound}.\n  use max_staleness={least}, or late=drop"
            )
        return Serving(gather=gather, max_staleness=bound, late=self.late, blocking=False)

    def _longest(self, num_workers: int) -> int:
        """tau_max."""
        return -(-num_workers // (self.gather or num_workers)) - 1 if self.max_staleness is None else self.max_staleness

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(AsyncSGD(gather=None), "equals", Synchronous()),
            Limit(AsyncSGD(), "equals", Single(), num_workers=1),
            Limit(AsyncSGD(step="constant"), "equals", Single(), num_workers=1),
            Limit(AsyncSGD(gather=2, max_staleness=0, step="per_update"), "equals", Synchronous(), num_workers=2),
        )

    @property
    def cycle(self) -> int:
        return self.gather or 1  # steps in which updates of `gather` gradients use those of all workers up

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        numel, tensors = workload.num_parameters, len(workload.parameters)
        updating = closed_forms.update_time(place, place.num_workers, numel, tensors, workload, model)
        state = round(workload.gradient_bytes * workload.optimizer_state)
        return serving_cost(self._serving(place.num_workers), updating, workload, place, batch, model, state=state)


class _TaskUpdate:
    """The task's optimizer, with a rate that answers to staleness."""

    def __init__(self, strategy: AsyncSGD, task: Task, layout: Layout, flat: Tensor, longest: int) -> None:
        self._strategy, self._longest, self._updates = strategy, longest, 0
        self.gradient = torch.zeros_like(flat)
        self._update = ShardUpdate(task, flat, self.gradient, [parameter.shape for parameter in layout.parameters])
        self._rates: list[Any] = [group.get("lr") for group in self._update.optimizer.param_groups]

    def apply(self, staleness: Sequence[int]) -> None:
        self._updates += 1
        if self._strategy.step != "constant":
            factor = self._factor(max(staleness))
            for group, rate in zip(self._update.optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        self._update.apply()

    def _factor(self, oldest: int) -> float:
        """alpha_t / alpha_0."""
        if self._strategy.step == "per_update":
            return 1 / max(1, oldest)
        static = 1 / (1 + self._strategy.kappa * self._longest)
        return static / self._updates if self._strategy.step == "decaying" else static

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._update.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._update.load_state_dict(state["optimizer"])
        self._updates = state["updates"]
