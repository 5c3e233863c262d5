"""Gear: the model is split into gears, each of which is trained at a speed of its own.

    meshed, two gears, R micro-batches x_1 .. x_R to a revolution, speeds 1-R:
      bottom A:  for j = 1..R:  h_j = f_A(x_j; w_A),  send h_j
      top B:     for j = 1..R:  L_j = loss(f_B(h_j; w_B), y_j);  send g_j = dL_j/dh_j;  w_B <- opt_B(w_B, dL_j/dw_B)
      bottom A:  G_A = (1/R) sum_j (dh_j/dw_A)^T g_j;  w_A <- opt_A(w_A, G_A)
    speeds R-1, the reverse:  A updates after each g_j; B once, with the mean of its R gradients
    K gears:     gear k updates after micro-batches floor(u * R / s_k), u = 1 .. s_k, R = max_k s_k; s_k = 0: never
    replay:      the top gear goes `replay` times more over the R activations that it has; nothing is sent for it
    free:        no gear waits for the end of a revolution; see `geartrain.strategies.gear_free`

Each g_j is taken at w_B before its own update. A sees no staleness with speed 1, and B at R successive versions. A step
is a revolution, whose R micro-batches are the global batch, cut into R: so a step has as many samples as any other
method's. Means over micro-batches count samples where these differ in size.

Paper: Hao Dong and others, 2018, arXiv 1806.03925, of which the abstract was read. All that it says of the method is
that the model is split and its parts are trained separately, at different speeds. Everything else here is chosen by us:
what a speed is, both ways of meshing, replay, stash, the bound on staleness, the mailbox, the choice of speed and cut.
Limits: speeds 1-1, meshed, without replay are `single`, bit for bit on as many workers as gears.
Differs from the paper: unknown. In `gear_speed` and `Plan` another reading of speeds finds its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.chain import parts_of
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Roles, Strategy
from geartrain.runtime.tracing import on_meta
from geartrain.runtime.worker import Task, Worker
from geartrain.strategies import gear_speed
from geartrain.strategies.gear_cost import GearCost
from geartrain.strategies.gear_free import FreeBottom, Freedom, FreeTop
from geartrain.strategies.gear_turns import Machine, MeshedWorker
from geartrain.strategies.papers import GEAR_TRAINING
from geartrain.strategies.single import Single
from geartrain.strategies.text import check_fields, check_most, render
from geartrain.workload.spec import Part, Workload


@dataclass(frozen=True, kw_only=True)
class Gear(Strategy):
    """The model in gears that turn at speeds of their own.

        w_k <- opt_k(w_k, mean of gradients since its last update),   s_k times in a revolution

    Args:
        gears: K, 2 to 1024.
        cuts: "even": as many parts of the task's `cuts()` to each gear, the lower ones one more; "measured": where the
            busiest gear has least to do; or the first part of each gear but the bottom one: `hidden`, `body+head`.
        speeds: updates in a revolution of each gear, bottom first, like `1-4`, `4-1` (the reverse), `1-2-4`; none: all
            1. `0-1` trains a head on fixed features. "measured": 1 but for the top gear, whose speed and replay balance
            the gears.
        workers: of each gear, like `3-1`; "even"; "measured": what balances the gears. The workers of a gear divide
            each micro-batch and sum their gradients. With fewer workers than gears ("even"), neighbours share one.
        mode: "meshed", in step; "free" for two gears with one worker each (one worker alone runs meshed).
        replay: passes of the top gear over what it has buffered: meshed, over all activations of a revolution; free,
            over a random one at a time, at most so many between two messages.
        stash: a gear below the top one keeps its parameters as they were for micro-batches in flight while it updates.
            Off: meshed, it lets nothing through until an update is made; free, it goes forward again at the current
            parameters when a gradient comes.
        staleness: tau: free, the top gear discards activations that are more updates old.
        capacity: Q: free, micro-batches in flight and buffered ones for replay; none: two revolutions.
        max_scale: a gear's learning rate is the task's times the micro-batches in its update, at most this; 1: off.

    Costs, per revolution, for h bytes of a micro-batch's activations at a cut: R h up and R h down in R messages each
    way, if gears have one worker each; targets and parameters do not travel. Where nothing below a cut is trained,
    nothing comes down. A gear of n workers makes s_k all-reduces of its own parameters. At the end each is broadcast.

        T = period of: A forward R times, then backward as gradients come; B forward and backward as activations come
          <= a_f + max(R (a_f + a_b), R b) + a_b,   a_f, a_b of A and b of B for a micro-batch;  A holds R graphs

    Use it where parameters are large and activations small, R 2 h < 2 M, or where the parts of a model want different
    rates of learning. Not with large R times the top gear's learning rate: early gradients do not fit the later top,
    and the bottom becomes unstable. Clip gradients in each gear, if at all; Adam counts the steps of its own gear.

    Example:
        >>> str(Gear(cuts="hidden", speeds="1-4", replay=1))
        'gear:cuts=hidden,speeds=1-4,replay=1'

    Source: Dong and others, 2018, arXiv 1806.03925, abstract; the definition of the method and all formulas are ours.
    """

    name: ClassVar[str] = "gear"
    paper: ClassVar[Paper] = GEAR_TRAINING
    needs: ClassVar[Needs] = Needs(lanes=True, ordered_model=True)

    gears: int = 2
    cuts: str = "even"
    speeds: str | None = None
    workers: str = "even"
    mode: Literal["meshed", "free"] = "meshed"
    replay: int = 0
    stash: bool = True
    staleness: int = 4
    capacity: int | None = None
    max_scale: int = 1

    def __post_init__(self) -> None:
        check_fields(self, gears=2, replay=0, staleness=0, capacity=1, max_scale=1)
        check_most(self, gears=1024)  # what follows lists them
        gear_speed.check(self._settings)
        if self.mode == "free" and self.gears != 2:
            raise StrategyError(
                f"gear: mode=free is defined for two gears, not {self.gears}; use gears=2 or mode=meshed"
            )

    def __str__(self) -> str:
        return render(self)

    @property
    def _settings(self) -> gear_speed.Settings:
        speeds = self.speeds or "-".join(["1"] * self.gears)
        return gear_speed.Settings(
            gears=self.gears, cuts=self.cuts, speeds=speeds, workers=self.workers, replay=self.replay
        )

    def roles(self, num_workers: int) -> Roles:
        gear_speed.check_workers(self._settings, num_workers)
        if self.mode == "free" and num_workers > 2:
            raise StrategyError(
                f"gear: mode=free has one worker for each of its two gears, and there are {num_workers}.\n"
                "  use 2 workers, or mode=meshed"
            )
        return Roles()

    def deal(self, rank: int, num_workers: int) -> tuple[int, int]:
        return 0, 1

    def bind(self, ctx: Context, task: Task) -> Worker:
        with uncharged():
            model = task.model(ctx.seed)
            example = task.batches(rank=0, num_workers=1, batch=2, seed=0).take().inputs
            inputs = torch.empty((2, *example.shape[1:]), dtype=example.dtype, device="meta")
            parts = parts_of(task, on_meta(model), inputs)
        self._check_parts(parts, task.name)
        dtype = next(p.dtype for p in model.parameters() if p.requires_grad)
        self.roles(ctx.num_workers)
        plan = gear_speed.plan_of(
            self._settings, parts, ctx.num_workers, lambda: gear_speed.measure(ctx, task, parts, dtype)
        )
        machine = Machine(plan=plan, parts=parts, dtype=dtype, stash=self.stash, max_scale=self.max_scale)
        if self.mode == "meshed" or ctx.num_workers == 1:
            return MeshedWorker(ctx, task, machine)
        if ctx.meta:
            raise StrategyError("what free gears do depends on when messages come, which shapes alone do not carry")
        freedom = Freedom(staleness=self.staleness, capacity=self.capacity or 2 * plan.beats, replay=plan.replay)
        return (FreeBottom if ctx.rank == 0 else FreeTop)(ctx, task, machine, freedom)

    def _check_parts(self, parts: Sequence[Part], name: str) -> None:
        if not parts:
            raise StrategyError(
                f"gear splits a model that is an ordered list of parts, and {name!r} does not say that it is.\n"
                "  give the task's `cuts()`: the names of its submodules in order"
            )

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(Gear(), "equals", Single(), num_workers=1),
            Limit(Gear(speeds="1-1", stash=False), "equals", Gear(), num_workers=2),
            Limit(Gear(mode="free", staleness=0, capacity=1), "equals", Gear(), num_workers=2),
        )

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        self._check_parts(workload.parts, workload.name)
        self.roles(place.num_workers)
        parts = GearCost(workload, place, batch, model)
        plan = gear_speed.plan_of(self._settings, workload.parts, place.num_workers, parts.times)
        notes = []
        if self._settings.measured:
            notes.append(f"chosen by these times: {describe(plan, workload.parts)}; a run measures its own")
        free = self.mode == "free" and place.num_workers == 2
        return parts.cost(plan, stash=self.stash, free=self.capacity or 2 * plan.beats if free else 0, notes=notes)


def describe(plan: gear_speed.Plan, parts: Sequence[Part]) -> str:
    """A plan in words."""
    names = ["+".join(name for index in own for name in parts[index].modules) for own in plan.parts]
    gears = [
        f"{name} at speed {speed} on {len(workers)} worker(s)"
        for name, speed, workers in zip(names, plan.speeds, plan.workers, strict=True)
    ]
    return f"{', '.join(gears)}, replay {plan.replay}"
