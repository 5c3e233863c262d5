"""ADPSGD: learners train without waiting for anybody, while a lane of each averages its model with one other at a time.

    X <- X W_k - lr * g(x_stale_i) e_i^T            one logical update; W_k averages one pair, both become (x_i + x_j)/2

    gradient loop     g = gradient at the model read last;  x <- x - lr * g;  read x        x as it is by now
    averaging lane    active learner:   s <- x;  send s to a random neighbour;  receive its y;  x <- x + (y - s)/2
                      passive learner:  receive s from anybody;  y <- x;  x <- x + (s - y)/2;  send y
    answer            the mean of all models

Even learners are active and odd ones passive: nobody waits for somebody who waits, so there is no deadlock. The passive
side's "y <- x; x <- x + (s - y)/2" is one critical section, and both sides add the same difference: a pair's exchange
keeps the sum of the two models, whatever either has learned meanwhile.

The gradient is evaluated at the model read at the end of the step before, and applied to the model as it is then.

Ending: an active learner's lane stops after its exchange; passive lanes answer until all have come together, then one
all-reduce averages the models. A learner whose process dies is noticed by who exchanges with it and asked no more; the
average is that of the others. One that dies while a passive learner receives its model goes unnoticed by gloo: then the
run ends when nobody has gone on for the engine's patience.

Hierarchical (H-ADPSGD): the workers of a node are one learner. Its leader reads x and broadcasts it, all compute, an
all-reduce in the node sums the gradients, the leader applies them and averages.

Papers: Lian et al. 2018, arXiv 1710.06952 (AD-PSGD); Wei Zhang et al. 2020, arXiv 2002.01119 (random neighbours), and
arXiv 1907.05701 (hierarchical). Limits: one worker is `single`.
Differs from the paper: the active side adds (y - s)/2 where it is written x <- (x + y)/2, which is the same when x is
still s, and else keeps a gradient that was applied during the exchange whole. Momentum stays local. On a ring of an odd
number of learners the edge between the first and the last, both active, is left out. Buffers in floating point (batch
norm) stay local and are averaged at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any, ClassVar, Literal

import torch.distributed as dist

from geartrain.cluster.placement import Placement
from geartrain.collectives.survivors import mean, survivors
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost, Traffic
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, flat_parameters
from geartrain.runtime.context import Context
from geartrain.runtime.motion import copy
from geartrain.runtime.shards import ShardUpdate, shard_layout
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms, mixing
from geartrain.strategies.learners import Learner, buffers_of, collective_cost, distance, learners_of
from geartrain.strategies.pairs import ALONE, Active, Passive, SharedModel, Side
from geartrain.strategies.papers import AD_PSGD_SPECTRAL
from geartrain.strategies.single import Single
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class ADPSGD(Strategy):
    """Asynchronous decentralised parallel SGD: gradients wait for nobody, pairs of models are averaged beside them.

        x_i <- x_i - lr * g(x_stale_i)          in the gradient loop
        x_i, x_j <- (x_i + x_j)/2               in a lane, one random neighbour at a time

    Args:
        graph: whom an active learner asks: "random": any passive one; "ring": one of its two sides. The paper's
            randomised averaging, and its fixed one.
        averages_per_step: at most so many exchanges of an active learner for each of its gradients; none: the lane
            averages continuously, as in the paper. A bound saves wires that others need.
        steps_per_average: at most so many gradients of a learner between two of its averages, then it waits for one;
            none: gradients wait for nothing, as in the paper. Take a bound where an exchange lasts longer than some
            gradients: models drift apart otherwise.
        hierarchical: the workers of a node sum their gradients and are one learner.

    Costs: a pair's exchange sends S bytes, the model, each way, in one message each. How many there are depends on
    time. Memory: the model four times (read, shared, and a pair's two buffers), gradient, optimizer.

        gradients per second   1/(t_grad + t_apply) of each learner, whatever the others do
        exchanges per second   1/(2 alpha + 2 S/B) of each active learner, in parallel
        steps_per_average = k  a step takes max(t_grad + t_apply, (2 alpha + 2 S/B)/k), more where learners are busy

    Use it where learners are of unlike or changing speed, or wires slow: a slow learner delays only whoever is
    averaging with it. Gradients are as stale as their own computing is long. Not for repeating a synchronous run: what
    is learned depends on when messages come. Refused for models of several data types, and for optimizers like LBFGS.

    Example:
        >>> str(ADPSGD(graph="ring", averages_per_step=1))
        'adpsgd:graph=ring,averages_per_step=1'

    Source: Lian et al., 2018, arXiv 1710.06952; Zhang et al., 2020, arXiv 2002.01119; the closed forms are derived.
    """

    name: ClassVar[str] = "adpsgd"
    paper: ClassVar[Paper] = AD_PSGD_SPECTRAL
    needs: ClassVar[Needs] = Needs(any_source=True, lanes=True, survives_loss=True)

    graph: Literal["random", "ring"] = "random"
    averages_per_step: int | None = None
    steps_per_average: int | None = None
    hierarchical: bool = False

    def __post_init__(self) -> None:
        check_fields(self, averages_per_step=1, steps_per_average=1)

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return _ADPSGDWorker(self, ctx, task)

    def limits(self) -> Sequence[Limit]:
        return (Limit(ADPSGD(), "equals", Single(), num_workers=1),)

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        learners = learners_of(place.nodes[: place.num_workers], hierarchical=self.hierarchical)
        leaders = [members[0] for members in learners]
        compute = closed_forms.slowest(workload, place, batch, model)
        sent = [Traffic()] * place.num_ranks
        in_node = collective_cost("all_reduce", place, workload, learners, sent)
        in_node += collective_cost("broadcast", place, workload, learners, sent)
        reading = closed_forms.passes_time(place, 2, 1, workload, model)
        step = compute.gradient + compute.update + reading + in_node
        seconds = exchange_time(place, leaders, workload.gradient_bytes, self.graph)
        least = 0.0 if self.steps_per_average is None else seconds / self.steps_per_average
        for leader, exchanges in self._exchanges(leaders, max(step, least), seconds).items():
            sent[leader] += Traffic(nbytes=exchanges * workload.gradient_bytes, messages=exchanges)
        gap = mixing.spectral_gap(mixing.mean_exchange(self.graph, len(leaders)))
        return Cost(
            compute=compute.gradient + compute.update + reading,
            exposed_communication=in_node,
            wait=max(0.0, least - step),
            hidden_communication=seconds,
            sent=tuple(sent),
            memory=closed_forms.worker_memory(
                workload, compute.samples, gradients="moved", averaging=3 * workload.gradient_bytes
            ),
            notes=(
                f"an exchange sends {workload.gradient_bytes} bytes each way, exactly; how many there are in a step, "
                "and how long a learner waits for one, are estimates in which nobody else asks the same learner",
                f"spectral gap {gap:.4g} for {len(leaders)} learner(s) on {self.graph}, of the mean matrix of one "
                f"exchange: it leaves at most {1 - gap:.4g} of the squared consensus distance on average",
            ),
        )

    def _exchanges(self, leaders: Sequence[int], step: float, seconds: float) -> dict[int, float]:
        """Exchanges of each learner during a step: those it begins, or those in which it answers."""
        asked = mixing.partners(self.graph, len(leaders))
        found = dict.fromkeys(leaders, 0.0)
        most = inf if self.averages_per_step is None else self.averages_per_step
        for active, those in enumerate(asked):
            count = min(step / seconds, most) if those else 0.0
            found[leaders[active]] += count
            for passive in those:
                found[leaders[passive]] += count / len(those)
        return found


def exchange_time(
    place: Placement, leaders: Sequence[int], nbytes: int, graph: Literal["random", "ring"] = "random"
) -> float:
    """Seconds of one exchange, there and back: 2 alpha + 2 S/B, the mean over who asks whom; 0 for one learner."""
    pairs = [(leaders[i], leaders[j]) for i, those in enumerate(mixing.partners(graph, len(leaders))) for j in those]
    seconds = [
        closed_forms.travel(place, [(i, j, nbytes)]) + closed_forms.travel(place, [(j, i, nbytes)]) for i, j in pairs
    ]
    return fmean(seconds) if seconds else 0.0


class _ADPSGDWorker(Worker):
    def __init__(self, strategy: ADPSGD, ctx: Context, task: Task) -> None:
        self._strategy, self._ctx, self._task = strategy, ctx, task
        self._learner = Learner(ctx, hierarchical=strategy.hierarchical)
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        layout = shard_layout(self.model, 1, "even")
        self._read = flat_parameters(layout)
        self._buckets = GradientBuckets([layout], lambda bucket: None, overlap=False)
        self._shared = SharedModel(ctx, self._read.clone())
        shapes = [parameter.shape for parameter in layout.parameters]
        self._update = ShardUpdate(task, self._shared.flat, self._buckets.flats[0], shapes)
        self._since, self._bound = 0, strategy.steps_per_average
        self._side = self._make_side()

    def _make_side(self) -> Side | None:
        learner, ctx = self._learner, self._ctx
        group = ctx.group(learner.ranks)  # the lane's own
        watching = ctx.group(learner.ranks) if self._bound else None
        if group is None or learner.count == 1:
            return None
        partners = mixing.partners(self._strategy.graph, learner.count)
        mine = partners[learner.index]
        if mine:
            tells = self._bound is not None
            return Active(ctx, self._shared, group, tells=tells, partners=mine, index=learner.index)
        askers = mixing.targets(partners)[learner.index]
        return Passive(ctx, self._shared, group, watching=watching, askers=askers)

    def step(self, batches: Batches) -> StepResult:
        if self._side is not None:
            self._side.allow(self._strategy.averages_per_step or inf)
        batch = self._learner.share_of(on_device(batches.take(), self._ctx.device))
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        self._learner.sum(self._buckets.flats)
        if self._learner.leads:
            self._keep_pace()
            with self._shared.held() as flat:
                self._update.apply()
                copy(self._read, flat)
        self._learner.hand_out([self._read])
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples)

    def _keep_pace(self) -> None:
        """At most `steps_per_average` gradients without an average, while there is somebody to average with."""
        if self._bound is None or self._side is None:
            return
        self._look()
        while self._bound is not None and self._since >= self._bound:
            self._take(self._side.averaged.get())
        self._since += 1

    def _look(self) -> None:
        """Note what has been averaged meanwhile."""
        while self._side is not None and self._bound is not None and self._side.averaged.ready():
            self._take(self._side.averaged.get())

    def _take(self, item: str | None) -> None:
        self._since = 0
        if item == ALONE:
            self._bound = None

    def pause(self) -> None:
        """Others may wait for an average with this learner: then its lane goes on without a limit."""
        if self._side is not None and self._bound is not None:
            self._side.allow(inf)

    def _come_together(self) -> tuple[int, ...]:
        """Wait until no exchange is under way anywhere, and none begins; the learners that are there."""
        leaders, device = self._learner.leaders, self._ctx.device
        if self._side is None or leaders is None:
            return (0,)
        if self._strategy.steps_per_average is not None:
            self.pause()
            survivors(leaders, device)
        self._side.pause()
        there = survivors(leaders, device)
        self._look()
        return there

    def state_dict(self) -> dict[str, Any]:
        self._come_together()
        # All leave at one moment, or the time in which some wait for others would be lost to who goes on from here.
        dist.barrier(group=self._ctx.workers)
        return {
            "model": self.model.state_dict(),
            "shared": self._shared.flat,
            "update": self._update.state_dict(),
            "exchanges": self._side.count if self._side else 0,
            "since": self._since,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._shared.flat.copy_(state["shared"])
        self._update.load_state_dict(state["update"])
        self._since = state["since"]
        if self._side is not None:
            self._side.count = state["exchanges"]

    def finish(self) -> None:
        """The answer: the mean of the models of all learners that are there."""
        there = self._come_together()
        tensors = [self._read, *buffers_of(self.model)]
        with self._shared.held() as flat:
            copy(self._read, flat)
            if self._learner.leaders is not None:
                mean(tensors, self._learner.leaders, there)
                if not self._ctx.meta:
                    self._ctx.trace.count("consensus_distance", distance([flat], [self._read]))
            self._learner.hand_out(tensors)

    def close(self) -> None:
        self._buckets.close()
        if self._side is not None:
            self._side.stop()
