"""PeerToPeer: every worker talks to every other one, without servers.

    sharded:     worker j: w_j <- w_j - lr * sum_i weight_i * g_i,j   from the W - 1 pieces it gets; then sends w_j to
        all
    broadcast:   each worker sends its whole gradient to all;  w <- w - lr * sum_i weight_i * g_i   everywhere

Sums run in the order i = 0..W-1 everywhere.

Paper: Salem Alqahtani, Murat Demirbas, 2019, arXiv 1909.02061, peer-to-peer. Its text can be read both ways, so both
are here.
Limits: both give the weights of `synchronous`; one worker is `single`. Differs from the paper: nothing known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost, Traffic
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, flat_parameters, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.shards import ShardUpdate, add_in_order, regroup_even, shard_layout, shard_sizes
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import PS_P2P_RING
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload

_GRADIENT, _PARAMETER = 1, 2


@dataclass(frozen=True, kw_only=True)
class PeerToPeer(Strategy):
    """Workers exchange gradients (and parameters) pairwise.

        sharded:    w_j <- w_j - lr * sum_i weight_i * g_i,j  on worker j, which owns 1/W of the parameters
        broadcast:  w <- w - lr * sum_i weight_i * g_i        on every worker, from whole gradients

    Args:
        kind: "sharded": each worker is the server of a contiguous slice; "broadcast": whole gradients to everybody.
        sends: "one_at_a_time": W - 1 rounds, in round k worker i sends to i + k and receives from i - k (mod W), each
            round waiting for the one before; "all_at_once": everything is posted together.

    Costs, per worker and step, for M bytes of parameters: sharded 2 M (W - 1)/W bytes in 2 (W - 1) messages; broadcast
    (W - 1) M bytes in W - 1 messages. Extra memory: sharded M, broadcast W M.

        T_sharded = 2 (W - 1) alpha + 2 (W - 1)/W M/B,   T_broadcast = (W - 1)(alpha + M/B)     one at a time
        T_sharded = 2 alpha + 2 (W - 1)/W M/B,           T_broadcast = alpha + (W - 1) M/B      all at once

    Use sharded where a ring's volume is wanted and the optimizer's state should be spread over the workers; broadcast
    only for few workers. Nothing overlaps with backward. The optimizer must work element by element for sharded.

    Example:
        >>> str(PeerToPeer(kind="broadcast"))
        'peer_to_peer:kind=broadcast'

    Source: Alqahtani and Demirbas, 2019, arXiv 1909.02061; the closed forms are derived.
    """

    name: ClassVar[str] = "peer_to_peer"
    paper: ClassVar[Paper] = PS_P2P_RING
    needs: ClassVar[Needs] = Needs(regroups=True)

    kind: Literal["sharded", "broadcast"] = "sharded"
    sends: Literal["one_at_a_time", "all_at_once"] = "one_at_a_time"

    def __post_init__(self) -> None:
        check_fields(self)

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        if self.kind == "sharded":
            return _ShardedWorker(self, ctx, task)
        return _BroadcastWorker(self, ctx, task)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(PeerToPeer(), "equals", Synchronous()),
            Limit(PeerToPeer(kind="broadcast"), "equals", Synchronous()),
            Limit(PeerToPeer(sends="all_at_once"), "equals", Synchronous()),
            Limit(PeerToPeer(kind="broadcast", sends="all_at_once"), "equals", Synchronous()),
            Limit(PeerToPeer(), "equals", Single(), num_workers=1),
            Limit(PeerToPeer(kind="broadcast"), "equals", Single(), num_workers=1),
        )

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        if self.kind == "broadcast":
            return states[0]
        found = list(states)
        update = regroup_even([state["update"] for state in found], rank, num_workers)
        return {"model": found[0]["model"], "update": update}

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        if self.kind == "sharded":
            return self._sharded_cost(workload, place, batch, model)
        return self._broadcast_cost(workload, place, batch, model)

    def _sharded_cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel) -> Cost:
        compute = closed_forms.slowest(workload, place, batch, model)
        workers, element = place.num_workers, workload.element_size
        shards = shard_sizes([workload.num_parameters], workers, "even")
        gradients = self._travel(place, lambda source, target: shards[target] * element)
        parameters = self._travel(place, lambda source, target: shards[source] * element)
        serving = max(
            (workers - 1) * closed_forms.reduce_time(place, rank, shard, workload, model)
            + closed_forms.update_time(place, rank, shard, 1, workload, model)
            for rank, shard in enumerate(shards)
        )
        total, filled = sum(shards), sum(shard > 0 for shard in shards)
        sent = tuple(
            Traffic(
                nbytes=(total - shard + (workers - 1) * shard) * element,
                messages=filled - 1 + workers - 1 if shard else filled,
            )
            for shard in shards
        )
        return Cost(
            compute=compute.gradient + serving,
            exposed_communication=gradients + parameters,
            sent=sent,
            memory=closed_forms.worker_memory(
                workload,
                compute.samples,
                optimizer=1 / workers,
                gradients="moved",
                received=(workers - 1) * max(shards) * element,
            ),
            notes=(self._reading("2 (W - 1)" if self.sends == "one_at_a_time" else "2"),),
        )

    def _broadcast_cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel) -> Cost:
        compute = closed_forms.slowest(workload, place, batch, model)
        workers, size = place.num_workers, workload.gradient_bytes
        numel = workload.num_parameters
        adding = max(closed_forms.reduce_time(place, rank, numel, workload, model) for rank in place.unlike)
        return Cost(
            compute=compute.gradient + (workers - 1) * adding + compute.update,
            exposed_communication=self._travel(place, lambda source, target: size),
            sent=(Traffic(nbytes=(workers - 1) * size, messages=workers - 1),) * workers,
            memory=closed_forms.worker_memory(
                workload, compute.samples, gradients="moved", received=(workers - 1) * size
            ),
            notes=(self._reading("W - 1" if self.sends == "one_at_a_time" else "1"),),
        )

    def _travel(self, place: Placement, nbytes: Callable[[int, int], int]) -> float:
        """Seconds in which every worker sends something to every other one, in the way of `sends`."""
        workers = place.num_workers
        rounds = [
            [(i, (i + k) % workers, nbytes(i, (i + k) % workers)) for i in range(workers)] for k in range(1, workers)
        ]
        if self.sends == "one_at_a_time":
            return sum(closed_forms.travel(place, flows) for flows in rounds)
        return closed_forms.travel(place, [flow for flows in rounds for flow in flows])

    def _reading(self, terms: str) -> str:
        return f"sends {self.sends}: {terms} sequential latency terms"


def _exchange(
    strategy: PeerToPeer, group: dist.ProcessGroup, outgoing: Sequence[Tensor], incoming: Sequence[Tensor], tag: int
) -> None:
    """Send outgoing[j] to each other worker j and receive incoming[j] from it."""
    rank, size = group.rank(), group.size()
    works: list[dist.Work] = []
    for k in range(1, size):
        source, target = (rank - k) % size, (rank + k) % size
        works += post_recv(incoming[source], source, group, tag)
        works += post_send(outgoing[target], target, group, tag)
        if strategy.sends == "one_at_a_time":
            wait_all(works)
            works.clear()
    wait_all(works)


class _ShardedWorker(Worker):
    def __init__(self, strategy: PeerToPeer, ctx: Context, task: Task) -> None:
        self._strategy, self._ctx, self._task = strategy, ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        layout = shard_layout(self.model, ctx.num_workers, "even")
        flat = flat_parameters(layout)
        self._shards = [flat[part] for part in layout.slices()]
        mine = self._shards[ctx.rank]
        # The sum is made after all gradients are there: nothing is handed over during backward.
        self._buckets = GradientBuckets([layout], lambda bucket: None, overlap=False)
        self._gradients = [bucket.flat for bucket in self._buckets.buckets]
        self._pieces = [torch.empty_like(mine) for _ in range(ctx.num_workers)]
        self._pieces[ctx.rank] = self._gradients[ctx.rank]
        self._update = ShardUpdate(task, mine, self._pieces[ctx.rank]) if mine.numel() else None

    def step(self, batches: Batches) -> StepResult:
        ctx = self._ctx
        batch = on_device(batches.take(), ctx.device)
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        _exchange(self._strategy, ctx.workers, self._gradients, self._pieces, _GRADIENT)
        if self._update is not None:
            add_in_order(self._pieces, into=ctx.rank)
            self._update.apply()
        mine = [self._shards[ctx.rank]] * ctx.num_workers
        _exchange(self._strategy, ctx.workers, mine, self._shards, _PARAMETER)
        return StepResult(None if ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "update": self._update.state_dict() if self._update else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        if self._update is not None:
            self._update.load_state_dict(state["update"])

    def close(self) -> None:
        self._buckets.close()


class _BroadcastWorker(Worker):
    def __init__(self, strategy: PeerToPeer, ctx: Context, task: Task) -> None:
        self._strategy, self._ctx, self._task = strategy, ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        self._optimizer = task.optimizer(trainable(self.model))
        layout = shard_layout(self.model, 1, "even")
        self._buckets = GradientBuckets([layout], lambda bucket: None, overlap=False)
        own = self._buckets.flats[0]
        self._gradients = [torch.empty_like(own) for _ in range(ctx.num_workers)]
        self._gradients[ctx.rank] = own

    def step(self, batches: Batches) -> StepResult:
        ctx = self._ctx
        batch = on_device(batches.take(), ctx.device)
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        own = [self._gradients[ctx.rank]] * ctx.num_workers
        _exchange(self._strategy, ctx.workers, own, self._gradients, _GRADIENT)
        add_in_order(self._gradients, into=ctx.rank)
        self._optimizer.step()
        return StepResult(None if ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def close(self) -> None:
        self._buckets.close()
