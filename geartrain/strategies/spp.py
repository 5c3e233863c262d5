"""SPP: a planned pipeline of stages with replicas, on devices in an order of fast wires, blocks by list ordering.

    order = RDO(devices)                                        recursive minimum cuts   parallel/ordering.py
    for N = 1 .. min(devices, parts):                           unless `stages` says how many
        plan_N = PRM(N, order)     least M C + A                dynamic programming      parallel/planning.py
        T_N    = PE(plan_N)        furthest block first         event loop               parallel/list_order.py
    plan  = the plan_N of least T_N + update

    step of M micro-batches, F and B in PE's order:             one interpreter          parallel/interpreter.py
        F(n, m)  stage n computes micro-batch m of what stage n - 1 handed on
        B(n, m)  gradients go back, those of parameters add up: g_n <- g_n + weight * d(loss)/dw_n
        when its last B is done:  g_n <- sum of g_n over the stage's replicas
        w_n <- w_n - lr * g_n                                   the task's optimizer

So the gradient is that of the mean over the whole batch, as in one process, up to the order of sums.

Paper: Luo and others, INFOCOM 2022, arXiv 2204.10562. Limits: one stage of one micro-batch on all workers is
`synchronous` with one bucket after backward; one worker is `single`.
Differs from the paper: only its abstract was read; the algorithms are recalled and completed by choice. Parts of the
    model are those of `Task.cuts()`. Work of a replica is priced for its own samples (the largest share counts), links
    of a cluster carry both directions at a time, and the messages of replicas share their wires. GPipe, 1F1B and
    interleaved orders run from the same tables. With each gradient that goes back one number more travels, the loss.
    The model stands whole on every worker, which trains its stage of it; all that was trained is brought together for
    an evaluation and at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.parallel.list_order import Timeline, Times, list_order, replay
from geartrain.parallel.ordering import min_cut_order
from geartrain.parallel.partition import Plan, Stage, parse_plan
from geartrain.parallel.planning import even_pieces, partition
from geartrain.parallel.schedule_table import ScheduleTable, from_words, gpipe, interleaved, one_f_one_b
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Roles, Strategy
from geartrain.runtime.worker import Task, Worker
from geartrain.strategies import spp_cost
from geartrain.strategies.papers import SPP as PAPER
from geartrain.strategies.single import Single
from geartrain.strategies.spp_cost import PipelinePrices
from geartrain.strategies.spp_worker import PipelineWorker
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload

Schedule = Literal["list", "gpipe", "1f1b", "interleaved"]
Ordering = Literal["min_cut", "given"]


@dataclass(frozen=True, kw_only=True)
class SPP(Strategy):
    """A pipeline of stages, planned for the model and the cluster.

        plan = argmin over N of PE(PRM(N, RDO(devices))),    M C <= T <= (M + 4N - 4) C + max A

    Args:
        stages: how many; none: as many as are fastest.
        micro_batches: M, into which the global batch is cut.
        schedule: the order of blocks. "list": list ordering, the paper's; "gpipe": all forward, then all backward;
            "1f1b": one forward, one backward; "interleaved": the same with several pieces per stage.
        chunks: pieces per stage; 2 or more with "interleaved", else 1.
        replicate: several workers may share a stage.
        idle: workers may stay without a stage where that is faster.
        ordering: of the devices; "min_cut": by recursive minimum cuts, the paper's; "given": as ranks are numbered.
        plan: partition and mapping, as `parts@workers` of each stage: "2@0/1@1+2". None: `planned` finds it.
        order: of the blocks with schedule=list: F and B of each stage, as in "F2BFB/FBFB". None: `planned` finds it.

    Costs, per micro-batch of b samples and boundary between stages: activations of b samples forward, their gradients
    and one number per message back, one message for each pair of replicas with samples in common; per step and stage of
    r replicas a native all-reduce of its gradients and one number; per worker without a stage one number.

        T = max over stages of (end of the last B + A_n + update),  by an event loop; uniform stages: (M + N - 1)(F + B)

    Use it where gradients are large and activations at some cuts small, on wires that are too slow for all-reduces, or
    of unlike speed. Not where all-reduces hide behind backward: a pipeline has a bubble of (N - 1)/(M + N - 1). Only
    for tasks whose `cuts()` name a chain. Statistics of batch normalisation are those of a replica's samples.

    Example:
        >>> str(SPP(stages=2, schedule="1f1b"))
        'spp:stages=2,schedule=1f1b'

    Source: Luo and others, 2022, arXiv 2204.10562, recalled; GPipe, 1F1B: Huang and others, Narayanan and others, 2019.
    """

    name: ClassVar[str] = "spp"
    paper: ClassVar[Paper] = PAPER
    needs: ClassVar[Needs] = Needs(ordered_model=True)

    stages: int | None = None
    micro_batches: int = 4
    schedule: Schedule = "list"
    chunks: int = 1
    replicate: bool = True
    idle: bool = True
    ordering: Ordering = "min_cut"
    plan: str | None = None
    order: str | None = None

    def __post_init__(self) -> None:
        check_fields(self, stages=1, micro_batches=1, chunks=1)
        if (self.chunks > 1) != (self.schedule == "interleaved"):
            raise StrategyError(
                f"spp: chunks={self.chunks} with schedule={self.schedule}: an interleaved schedule has 2 or more "
                "pieces per stage, the others have one"
            )
        if self.schedule == "interleaved" and self.stages == 1:
            raise StrategyError("spp: one stage has nothing to interleave; give stages=2 or more, or another schedule")
        if self.order is not None and self.schedule != "list":
            raise StrategyError(f"spp: schedule={self.schedule} is an order of its own; leave out order={self.order}")
        if self.order is not None:
            self._check_order(len(from_words(self.order, self.micro_batches).rows))
        if self.plan is not None:
            self._check_plan(parse_plan(self.plan))

    def __str__(self) -> str:
        return render(self)

    def _check_plan(self, plan: Plan) -> None:
        stages, chunks = len(plan.stages), len(plan.stages[0].parts)
        if self.stages not in (None, stages) or chunks != self.chunks:
            raise StrategyError(f"spp: plan={plan} has {stages} stage(s) of {chunks} piece(s), unlike stages or chunks")
        if not self.replicate and any(len(stage.ranks) > 1 for stage in plan.stages):
            raise StrategyError(f"spp: plan={plan} has replicas, and replicate=false excludes them")

    def _check_order(self, ordered: int) -> None:
        planned = self.stages if self.plan is None else len(parse_plan(self.plan).stages)
        if planned not in (None, ordered):
            raise StrategyError(
                f"spp: order={self.order} is of {ordered} stage(s), and there are {planned}; give as many orders"
            )

    def roles(self, num_workers: int) -> Roles:
        if self.stages is not None and self.stages > num_workers:
            raise StrategyError(f"{self.stages} stages need as many workers, not {num_workers}; give fewer stages")
        if self.schedule == "interleaved" and num_workers == 1:
            raise StrategyError("an interleaved pipeline needs 2 workers or more; with one use another schedule")
        return Roles()

    def deal(self, rank: int, num_workers: int) -> tuple[int, int]:
        return 0, 1  # everyone knows the whole batch: the first stage takes its inputs, the last one its targets

    def planned(self, workload: Workload | None, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> SPP:
        prices = self._prices(workload, place, batch, model)
        decided = self if self.plan is not None else replace(self, plan=str(self._search(prices)))
        plan = decided._plan_for(prices.num_parts, place.num_workers)
        self._check_shares(plan, batch)
        if decided.schedule != "list" or decided.order is not None:
            return decided
        return replace(decided, order=decided._timeline(len(plan.stages), prices.times(plan)).table.words)

    def _prices(self, workload: Workload | None, place: Placement, batch: int, model: ComputeModel) -> PipelinePrices:
        if workload is None or not workload.parts:
            raise StrategyError(
                "spp cuts a model into stages, and this one is not known as a chain of parts.\n"
                "  use a task (--task) whose cuts() names submodules that, in order, make up the model"
            )
        if batch < self.micro_batches:
            raise StrategyError(
                f"a batch of {batch} cannot be cut into {self.micro_batches} micro-batches; give fewer, or more samples"
            )
        return PipelinePrices(workload, place, batch, self.micro_batches, model)

    def _check_shares(self, plan: Plan, batch: int) -> None:
        most, least = max(len(stage.ranks) for stage in plan.stages), batch // self.micro_batches
        if most > least:
            raise StrategyError(
                f"spp: plan={plan} divides a micro-batch among {most} workers, and the smallest of "
                f"{self.micro_batches} in a batch of {batch} has {least} sample(s); give fewer micro_batches or workers"
            )

    def _search(self, prices: PipelinePrices) -> Plan:
        """SPP: the plan that its own order of blocks takes least time for."""
        devices, parts = prices.num_devices, prices.num_parts
        order: Sequence[int] = range(devices)
        if self.ordering == "min_cut":
            order = min_cut_order(_rates(prices.place))
        given = self.stages if self.order is None else len(self.order.split("/"))
        counts = [given] if given else range(1 + (self.chunks > 1), min(devices, parts // self.chunks) + 1)
        plans, reasons = list[tuple[float, Plan]](), list[str]()
        for count in counts:
            try:
                plan, _ = partition(prices, order, count, self.micro_batches, replicate=self.replicate, idle=self.idle)
                plan = self._interleaved(plan, prices) if self.chunks > 1 else plan
                timeline = self._timeline(count, prices.times(plan))
                plans.append((spp_cost.seconds(prices, plan, timeline), plan))
            except StrategyError as reason:  # of this number of stages; another one may do
                reasons.append(str(reason))
        if not plans:
            raise StrategyError(f"spp finds no plan. {reasons[-1] if reasons else 'The model has too few parts.'}")
        return min(plans, key=lambda found: found[0])[1]

    def _interleaved(self, plan: Plan, prices: PipelinePrices) -> Plan:
        """The same workers, with several pieces per stage of about as much work."""
        stages = len(plan.stages)
        work = [sum(prices.work(range(part, part + 1), plan.stages[0].ranks)) for part in range(prices.num_parts)]
        sizes = even_pieces(work, stages * self.chunks)
        return Plan(tuple(Stage(parts=sizes[n::stages], ranks=stage.ranks) for n, stage in enumerate(plan.stages)))

    def _timeline(self, stages: int, times: Times) -> Timeline:
        table = self._table(stages)
        return list_order(times, self.micro_batches) if table is None else replay(table, times)

    def _table(self, stages: int) -> ScheduleTable | None:
        """The order of blocks; None where list ordering has to find it."""
        match self.schedule:
            case "gpipe":
                return gpipe(stages, self.micro_batches)
            case "1f1b":
                return one_f_one_b(stages, self.micro_batches)
            case "interleaved":
                return interleaved(stages, self.chunks, self.micro_batches)
        return None if self.order is None else from_words(self.order, self.micro_batches)

    def _plan_for(self, parts: int, num_workers: int) -> Plan:
        assert self.plan is not None, "it was planned"
        plan = parse_plan(self.plan)
        if plan.num_parts != parts or max(max(stage.ranks) for stage in plan.stages) >= num_workers:
            raise StrategyError(
                f"spp: plan={plan} is for {plan.num_parts} part(s) of a model; this one has {parts}, and {num_workers} "
                "worker(s).\n  leave the plan out to have one made"
            )
        return plan

    def bind(self, ctx: Context, task: Task) -> Worker:
        self.roles(ctx.num_workers)
        table = None if self.plan is None else self._table(len(parse_plan(self.plan).stages))
        if table is None:
            raise StrategyError(
                "spp is bound without a plan, which needs the cluster and the batch.\n"
                "  bind strategy.planned(task_workload(task), placement, batch), the same on all ranks"
            )
        return PipelineWorker(ctx, task, lambda parts: self._plan_for(parts, ctx.num_workers), table)

    def limits(self) -> Sequence[Limit]:
        whole = SPP(stages=1, micro_batches=1, idle=False)
        return (
            Limit(whole, "equals", Synchronous(bucket_size=None, overlap=False)),
            Limit(whole, "equals", Single(), num_workers=1),
            Limit(SPP(), "close", Single(), num_workers=1, linear=True, tolerance=1e-5),
            Limit(SPP(stages=2), "close", Synchronous(), num_workers=2, linear=True, tolerance=1e-5),
        )

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        decided = self.planned(workload, place, batch, model)
        prices = self._prices(workload, place, batch, model)
        plan = decided._plan_for(prices.num_parts, place.num_workers)
        times, table = prices.times(plan), decided._table(len(plan.stages))
        assert table is not None, "it was planned"
        timeline, alone = replay(table, times), replay(table, spp_cost.free(times))
        return spp_cost.cost(prices, plan, timeline, alone, times)


def _rates(place: Placement) -> list[list[float]]:
    """Bytes per second between workers, the slower direction."""
    workers = range(place.num_workers)
    return [[min(place.rate(a, b), place.rate(b, a)) if a != b else 0.0 for b in workers] for a in workers]
