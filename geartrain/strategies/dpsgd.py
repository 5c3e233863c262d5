"""DPSGD: every learner averages its model with its neighbours' and applies its own gradient; nobody sees them all.

    combine then adapt   x_i(k+1) = sum_j T_ji x_j(k) - lr * g_i(x_i(k))          X <- X T - lr G(X): D-PSGD
                         models travel while gradients are computed
    adapt then combine   x_i(k+1) = sum_j T_ji (x_j(k) - lr * g_j(x_j(k)))        X <- (X - lr G(X)) T: cannot overlap
    answer               the mean of all models, by one all-reduce at the end

T is the mixing matrix of a graph, see `geartrain.strategies.mixing`. Delay-by-one is the uniform graph, combine then
adapt:

    x_i(k+1) = mean_j x_j(k) - lr * g_i(x_i(k))           an all-reduce of *models* beside the gradient

so that others' gradients are exactly one step old. Hierarchical: the workers of a node are one learner.

    g = sum over the node of g_i (all-reduce);  node leaders exchange x;  x is handed out in the node (broadcast)

Papers: Lian et al. 2017, arXiv 1705.09056 (D-PSGD); Wei Zhang et al. 2020, arXiv 2002.01119 (random order, delay by
one). Limits: uniform, adapt then combine, is `synchronous` for optimizers linear in the gradient; one worker is
`single`; at two workers all graphs are one.
Differs from the paper: the ring's order is drawn from (seed, step) and the formula of delay-by-one is the one above,
both chosen, as the text was not read; lr * g_i is the task's optimizer, whose momentum stays local; what it makes of
the weights themselves (weight decay) it makes of the combined model; statistics in buffers (batch norm) stay local and
are averaged at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.collectives.survivors import mean
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost, Traffic
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, bucket_layouts, flat_parameters, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms, mixing
from geartrain.strategies.learners import Learner, buffers_of, collective_cost, distance, learners_of
from geartrain.strategies.papers import AD_PSGD_SPECTRAL
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class DPSGD(Strategy):
    """Decentralised parallel SGD: models are averaged over a graph, in step.

        x_i <- sum_j T_ji x_j - lr * g_i(x_i)        combine then adapt
        x_i <- sum_j T_ji (x_j - lr * g_j(x_j))      adapt then combine

    Args:
        graph: whom a learner averages with: "ring", two neighbours, weights 1/3; "random_ring": the same in an order
            drawn for every step; "exponential": those 1, 2, 4, ... places before it; "uniform": all, by an all-reduce.
        order: "combine_then_adapt" sends models while gradients are computed; with graph=uniform it is delay-by-one.
        hierarchical: the workers of a node sum their gradients and are one learner of the graph.
        consensus_every: measure ||x_i - mean x|| after every so many steps, into the step's record; 0 never. It takes
            an all-reduce of the models, which is counted.

    Costs, per step, for S bytes of a model, n learners: a learner sends S to each neighbour, 2 S on a ring for n > 2,
    ceil(log2 n) S on the exponential graph; uniform: an all-reduce of S. Memory: the model again for each neighbour.

        T = max(t_grad, alpha + deg S/B) + t_apply       combine then adapt, deg messages sharing the learner's wire
        T = t_grad + alpha + deg S/B + t_apply           adapt then combine
        T = max(t_grad, t_allreduce(S)) + t_apply        delay-by-one

    Use it where wires have long latencies or few bytes per second and there are many workers: its traffic per worker
    does not grow with them, and nobody waits for more than its neighbours, so a delay spreads one hop per step. On a
    fixed ring of more than some 16 learners models agree slowly: take random_ring, which costs the same. Not with
    workers of unlike speed: take `adpsgd`.

    Example:
        >>> str(DPSGD(graph="random_ring"))
        'dpsgd:graph=random_ring'

    Source: Lian et al., 2017, arXiv 1705.09056; Zhang et al., 2020, arXiv 2002.01119; the closed forms are derived.
    """

    name: ClassVar[str] = "dpsgd"
    paper: ClassVar[Paper] = AD_PSGD_SPECTRAL
    needs: ClassVar[Needs] = Needs()

    graph: mixing.Graph = "ring"
    order: Literal["combine_then_adapt", "adapt_then_combine"] = "combine_then_adapt"
    hierarchical: bool = False
    consensus_every: int = 0

    def __post_init__(self) -> None:
        check_fields(self, consensus_every=0)

    def __str__(self) -> str:
        return render(self)

    @property
    def cycle(self) -> int:
        return self.consensus_every or 1

    def bind(self, ctx: Context, task: Task) -> Worker:
        return _DPSGDWorker(self, ctx, task)

    def limits(self) -> Sequence[Limit]:
        uniform = DPSGD(graph="uniform", order="adapt_then_combine")
        return (
            Limit(uniform, "close", Synchronous(), linear=True),
            Limit(DPSGD(graph="uniform"), "equals", DPSGD(), num_workers=2),
            Limit(DPSGD(graph="random_ring"), "equals", DPSGD(), num_workers=2),
            Limit(DPSGD(graph="exponential"), "equals", DPSGD(), num_workers=2),
            Limit(DPSGD(), "equals", Single(), num_workers=1),
        )

    # --- cost -------------------------------------------------------------------------------------------------------

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        learners = learners_of(place.nodes[: place.num_workers], hierarchical=self.hierarchical)
        leaders = [members[0] for members in learners]
        compute = closed_forms.slowest(workload, place, batch, model)
        sent = [Traffic()] * place.num_ranks
        summing = collective_cost("all_reduce", place, workload, learners, sent)
        handing = collective_cost("broadcast", place, workload, learners, sent)
        mixed, passes, copies = self._mixing_cost(place, workload, leaders, sent)
        measured = [Traffic()] * place.num_ranks
        measuring = collective_cost("all_reduce", place, workload, [leaders], measured) if self.consensus_every else 0.0
        sent = [one + more.per(self.cycle) for one, more in zip(sent, measured, strict=True)]
        beside = compute.gradient + summing if self.order == "combine_then_adapt" else 0.0
        hidden = min(mixed, beside)
        combining = closed_forms.passes_time(place, *passes, workload, model) if passes[0] else 0.0
        return Cost(
            compute=compute.gradient + combining + compute.update,
            exposed_communication=summing + mixed - hidden + handing + measuring / self.cycle,
            hidden_communication=hidden,
            sent=tuple(sent),
            memory=closed_forms.worker_memory(
                workload,
                compute.samples,
                gradients="moved",
                afterwards=workload.gradient_bytes if self.consensus_every else 0,
                received=copies * workload.gradient_bytes,
            ),
            notes=(mixing.told(self.graph, len(leaders)), *self._remarks()),
        )

    def _mixing_cost(
        self, place: Placement, workload: Workload, leaders: Sequence[int], sent: list[Traffic]
    ) -> tuple[float, tuple[int, int], int]:
        """Seconds of the exchange; passes over the model and kernels of combining; copies of the model."""
        if len(leaders) == 1:
            return 0.0, (0, 0), 0
        if self.graph == "uniform":
            return collective_cost("all_reduce", place, workload, [leaders], sent), (4, 2), 1
        received = mixing.sources(self.graph, len(leaders))
        degree, nbytes = max(map(len, received)), workload.gradient_bytes
        for leader, those in zip(leaders, mixing.targets(received), strict=True):
            sent[leader] += Traffic(nbytes=len(those) * nbytes, messages=len(those))
        flows = [(leaders[j], leaders[i], nbytes) for i, those in enumerate(received) for j in those]
        return closed_forms.travel(place, flows), (2 + 3 * degree, 1 + degree), degree

    def _remarks(self) -> Sequence[str]:
        remarks = []
        if self.graph == "random_ring":
            remarks.append("the time is that of the drawn order of step 0 where learners' wires differ")
        if self.consensus_every:
            remarks.append(f"the mean over {self.consensus_every} steps, of which one measures the consensus distance")
        return remarks


class _Neighbours:
    """Models to and from the neighbours of a graph; the learner's own is only read until `combine`."""

    def __init__(self, strategy: DPSGD, seed: int, learner: Learner, flats: Sequence[Tensor]) -> None:
        self._graph, self._seed, self._learner, self._flats = strategy.graph, seed, learner, flats
        degree = len(mixing.sources(self._graph, learner.count)[learner.index])
        self._room = [[torch.empty_like(flat) for flat in flats] for _ in range(degree)]
        self._works: list[dist.Work] = []

    def start(self, step: int) -> None:
        learner, group = self._learner, self._learner.leaders
        assert group is not None, "only leaders exchange"
        received = mixing.sources(self._graph, learner.count, self._seed, step)
        for source, room in zip(received[learner.index], self._room, strict=True):
            self._works += [work for part in room for work in post_recv(part, source, group)]
        for target in mixing.targets(received)[learner.index]:
            self._works += [work for flat in self._flats for work in post_send(flat, target, group)]

    def combine(self) -> None:
        wait_all(self._works)
        self._works.clear()
        weight = 1 / (len(self._room) + 1)
        for flat, *others in zip(self._flats, *self._room, strict=True):
            flat.mul_(weight)
            for other in others:
                flat.add_(other, alpha=weight)


class _Everybody:
    """The uniform graph: an all-reduce of a copy, so that the model can be used meanwhile."""

    def __init__(self, learner: Learner, flats: Sequence[Tensor]) -> None:
        self._learner, self._flats = learner, flats
        self._copies = [torch.empty_like(flat) for flat in flats]
        self._works: list[dist.Work] = []

    def start(self, step: int) -> None:
        for flat, copy in zip(self._flats, self._copies, strict=True):
            copy.copy_(flat)
            work = dist.all_reduce(copy, group=self._learner.leaders, async_op=True)
            assert work is not None, "every leader is in the group"
            self._works.append(work)

    def combine(self) -> None:
        wait_all(self._works)
        self._works.clear()
        for flat, copy in zip(self._flats, self._copies, strict=True):
            torch.mul(copy, 1 / self._learner.count, out=flat)


class _DPSGDWorker(Worker):
    def __init__(self, strategy: DPSGD, ctx: Context, task: Task) -> None:
        self._strategy, self._ctx, self._task = strategy, ctx, task
        self._learner = Learner(ctx, hierarchical=strategy.hierarchical)
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        layouts = bucket_layouts(trainable(self.model), None)
        self._flats = [flat_parameters(layout) for layout in layouts]
        self._optimizer = task.optimizer(trainable(self.model))
        self._buckets = GradientBuckets(layouts, lambda bucket: None, overlap=False)
        self._step = 0
        self._mixing: _Neighbours | _Everybody | None = None
        if self._learner.leads and self._learner.count > 1:
            everybody = strategy.graph == "uniform"
            made = (self._learner, self._flats)
            self._mixing = _Everybody(*made) if everybody else _Neighbours(strategy, ctx.seed, *made)

    def step(self, batches: Batches) -> StepResult:
        overlaps = self._strategy.order == "combine_then_adapt"
        batch = self._learner.share_of(on_device(batches.take(), self._ctx.device))
        if overlaps:
            self._start()
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        self._learner.sum(self._buckets.flats)
        if not overlaps:
            self._optimizer.step()
            self._start()
        self._combine()
        if overlaps:
            self._optimizer.step()
        self._step += 1
        values = {}
        if self._strategy.consensus_every and self._step % self._strategy.consensus_every == 0:
            values = self._measured()
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples, values=values)

    def _start(self) -> None:
        if self._mixing is not None:
            self._mixing.start(self._step)

    def _combine(self) -> None:
        with torch.no_grad():
            if self._mixing is not None:
                self._mixing.combine()
            self._learner.hand_out(self._flats)

    def _measured(self) -> dict[str, float]:
        """This learner's distance from the mean of all, on its leader."""
        group = self._learner.leaders
        if group is None:
            return {}
        with torch.no_grad():
            center = [flat.clone() for flat in self._flats]
            mean(center, group, range(self._learner.count))
        return {} if self._ctx.meta else {"consensus_distance": distance(self._flats, center)}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._step = state["step"]

    def finish(self) -> None:
        """The answer: the mean of all models."""
        tensors = [*self._flats, *buffers_of(self.model)]
        if self._learner.leaders is not None and self._learner.count > 1:
            with torch.no_grad():
                mean(tensors, self._learner.leaders, range(self._learner.count))
        self._learner.hand_out(tensors)

    def close(self) -> None:
        self._buckets.close()
