"""ParameterServer: workers push gradients to servers, which update the parameters that workers then pull.

    worker i:   push weight_i * g_i, a shard to each server;  pull the new shards
    server s:   w_s <- w_s - lr * sum_i weight_i * g_i,s      once all W pushes are there; in the order i = 0..W-1

Paper: Salem Alqahtani, Murat Demirbas, 2019, arXiv 1909.02061, one and several parameter servers. Limits: any number of
servers gives the weights of `synchronous`; one worker is `single`; one colocated server per worker is sharded
`peer_to_peer`.
Differs from the paper: a cycle is counted from push to pull, not from pull to push; the first weights come from the
seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.memory import Gradients
from geartrain.cost.terms import Cost, Traffic
from geartrain.errors import StrategyError
from geartrain.runtime.backward import backward, on_device, witness_of
from geartrain.runtime.buckets import Bucket, GradientBuckets, even_cuts, flat_parameters
from geartrain.runtime.context import Context
from geartrain.runtime.shards import ShardUpdate, add_in_order, deal_tensors, shard_layout, shard_sizes
from geartrain.runtime.strategy import Limit, Needs, Paper, Roles, Strategy
from geartrain.runtime.worker import Batches, Service, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import PS_P2P_RING
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import check_fields, render
from geartrain.workload.spec import Workload

_PUSH, _PULL, _END = 1, 2, 3


@dataclass(frozen=True, kw_only=True)
class ParameterServer(Strategy):
    """Servers hold the parameters; workers push gradients and pull parameters.

        w_s <- w_s - lr * sum_i weight_i * g_i,s        on server s, which waits for all workers

    Args:
        servers: how many, 1 or more. The paper compares one and several.
        placement: "own": each server on a node of its own; "colocated": server s beside worker s, on the same device.
        shard: "even": a contiguous slice of the flat parameter vector each, sizes differing by one element at most;
            "tensors": whole tensors round-robin in registration order, as TensorFlow places variables, so that one
            large tensor makes one server the hot spot.
        overlap: push a shard as soon as all its gradients are there, during backward; off in the paper. It gains with
            many servers only: the shard that holds the first layer, and so a single server's, is complete at the end.

    Costs, per step, for M bytes of parameters: a worker sends M in S messages, server s sends W M_s in W messages (M_s
    its shard). Messages to a colocated server are counted, though they use no wire. At the end of a run, outside steps,
    each worker sends each server one element.

        T = 2 (alpha + max(W M_max, M) / B),   pushes and pulls not overlapping;   a server holds W + 2 times its shard

    Use it to see the congestion at the server, or with servers = W colocated. Not for many workers on one server: its
    time grows linearly with W. Optimizers must work element by element (SGD, Adam, ...) with shard = "even".

    Example:
        >>> str(ParameterServer(servers=4, placement="colocated"))
        'parameter_server:servers=4,placement=colocated'

    Source: Alqahtani and Demirbas, 2019, arXiv 1909.02061; the closed forms are derived.
    """

    name: ClassVar[str] = "parameter_server"
    paper: ClassVar[Paper] = PS_P2P_RING
    needs: ClassVar[Needs] = Needs(lanes=True, regroups=True)

    servers: int = 1
    placement: Literal["own", "colocated"] = "own"
    shard: Literal["even", "tensors"] = "even"
    overlap: bool = False

    def __post_init__(self) -> None:
        check_fields(self, servers=1)

    def __str__(self) -> str:
        return render(self)

    def roles(self, num_workers: int) -> Roles:
        if self.placement == "own":
            return Roles((ServicePlace("server"),) * self.servers)
        if self.servers > num_workers:
            raise StrategyError(
                f"{self.servers} colocated servers need as many workers to live beside; there are {num_workers}.\n"
                f"  use servers={num_workers}, or placement=own"
            )
        return Roles(tuple(ServicePlace("server", "colocated", beside=worker) for worker in range(self.servers)))

    def bind(self, ctx: Context, task: Task) -> Worker | Service:
        if ctx.role == "worker":
            return _PushingWorker(self, ctx, task)
        return _Server(self, ctx, task)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(ParameterServer(), "equals", Synchronous()),
            Limit(ParameterServer(servers=2), "equals", Synchronous()),
            Limit(ParameterServer(servers=2, shard="tensors"), "equals", Synchronous()),
            Limit(ParameterServer(servers=2, shard="tensors", overlap=True), "equals", Synchronous()),
            Limit(ParameterServer(), "equals", Single(), num_workers=1),
        )

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        return states[0]

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        self._check_services(place)
        compute = closed_forms.slowest(workload, place, batch, model)
        workers, element = place.num_workers, workload.element_size
        sizes = shard_sizes([p.numel for p in workload.parameters], self.servers, self.shard)
        pushes = [(w, workers + s, n * element) for s, n in enumerate(sizes) for w in range(workers)]
        pull = closed_forms.travel(place, [(server, worker, nbytes) for worker, server, nbytes in pushes])
        pushed = self._pushed(workload, place, sizes, compute)
        filled = sum(size > 0 for size in sizes)
        per_worker = Traffic(nbytes=sum(sizes) * element, messages=filled)
        per_server = [Traffic(nbytes=workers * n * element, messages=workers if n else 0) for n in sizes]
        exposed_push = pushed - compute.gradient
        notes = [f"largest shard {max(sizes) * element} of {sum(sizes) * element} bytes; the servers' updates are wait"]
        if self.overlap:
            notes.append("overlapped pushes: an estimate, in which shards ready at different times do not share wires")
        return Cost(
            compute=compute.gradient,
            exposed_communication=exposed_push + pull,
            wait=max(self._serving(s, n, workload, place, model) for s, n in enumerate(sizes)),
            hidden_communication=max(0.0, closed_forms.travel(place, pushes) - exposed_push),
            sent=(*[per_worker] * workers, *per_server),
            memory=self._memory(workload, compute.samples, max(sizes) * element, workers),
            services=tuple(_server_memory(workload, size * element, workers) for size in sizes),
            notes=tuple(notes),
        )

    def _check_services(self, place: Placement) -> None:
        services = self.roles(place.num_workers).services
        if not closed_forms.services_match(place, services):
            raise StrategyError(
                f"{self} needs {len(services)} service(s) in the placement, which has {len(place.services)}.\n"
                "  make it with the services of strategy.roles(num_workers)"
            )

    def _pushed(
        self, workload: Workload, place: Placement, sizes: Sequence[int], compute: closed_forms.Compute
    ) -> float:
        """When, from the start of forward, the servers have all gradients."""
        workers, element = place.num_workers, workload.element_size
        all_shards = [(w, workers + s, n * element) for s, n in enumerate(sizes) for w in range(workers)]
        if not self.overlap:
            return compute.gradient + closed_forms.travel(place, all_shards)
        ready = closed_forms.ready_times(compute, workload, self._reaching(workload))
        times = [
            closed_forms.travel(place, [(w, workers + s, n * element) for w in range(workers)])
            for s, n in enumerate(sizes)
        ]
        each = max((moment + seconds for moment, seconds in zip(ready, times, strict=True)), default=0.0)
        # All shards leave a worker by one wire: what is ready together shares it.
        last = max(ready, default=0.0)
        together = [flow for flow in all_shards if ready[flow[1] - workers] == last]
        return max(compute.gradient, each, last + closed_forms.travel(place, together))

    def _reaching(self, workload: Workload) -> list[list[int]]:
        """For each shard, the positions of the parameters that reach into it."""
        numels = [p.numel for p in workload.parameters]
        if self.shard == "tensors":
            return deal_tensors(len(numels), self.servers)
        cuts, ends = even_cuts(sum(numels), self.servers), [0]
        for numel in numels:
            ends.append(ends[-1] + numel)
        return [
            [k for k in range(len(numels)) if ends[k] < end and begin < ends[k + 1]]
            for begin, end in itertools.pairwise(cuts)
        ]

    def _serving(self, server: int, numel: int, workload: Workload, place: Placement, model: ComputeModel) -> float:
        """Seconds in which a server sums W gradients of its shard and updates it."""
        rank = place.num_workers + server
        tensors = len(deal_tensors(len(workload.parameters), self.servers)[server]) if self.shard == "tensors" else 1
        adding = (place.num_workers - 1) * closed_forms.reduce_time(place, rank, numel, workload, model)
        return adding + closed_forms.update_time(place, rank, numel, tensors, workload, model)

    def _memory(self, workload: Workload, samples: int, shard: int, workers: int) -> dict[str, int]:
        gradients: Gradients = "kept" if self.overlap else "moved"
        memory = closed_forms.worker_memory(workload, samples, optimizer=0.0, gradients=gradients)
        if self.placement == "colocated":
            memory["server"] = sum(_server_memory(workload, shard, workers).values())
        return memory


def _server_memory(workload: Workload, shard: int, workers: int) -> dict[str, int]:
    state = round(shard * workload.optimizer_state)
    return closed_forms.server_memory(workload, shard, gradients=workers * shard, state=state)


class _PushingWorker(Worker):
    def __init__(self, strategy: ParameterServer, ctx: Context, task: Task) -> None:
        self._ctx, self._task = ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        self._witness = witness_of(self.model)
        layout = shard_layout(self.model, strategy.servers, strategy.shard)
        self._flat = flat_parameters(layout)
        self._shards = [self._flat[part] for part in layout.slices()]
        self._buckets = GradientBuckets([layout], self._push, overlap=strategy.overlap, in_order=False)
        self._pushes: list[dist.Work] = []
        self._control = _control_group(ctx)

    def _push(self, bucket: Bucket) -> None:
        ctx = self._ctx
        self._pushes += post_send(bucket.flat, ctx.num_workers + bucket.index, ctx.everyone, _PUSH)

    def step(self, batches: Batches) -> StepResult:
        ctx = self._ctx
        batch = on_device(batches.take(), ctx.device)
        loss = backward(self._task, self.model, batch, self._buckets, self._witness)
        wait_all(self._pushes)
        self._pushes.clear()
        # Not earlier: backward still needs the old parameters, into whose place the new ones are received.
        pulls = [
            work
            for server, shard in enumerate(self._shards)
            for work in post_recv(shard, ctx.num_workers + server, ctx.everyone, _PULL)
        ]
        wait_all(pulls)
        return StepResult(None if ctx.meta else loss.item(), batch.num_samples)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])

    def close(self) -> None:
        self._buckets.close()
        end = torch.zeros(1, device=self._ctx.device)
        servers = range(self._ctx.num_workers, self._ctx.num_workers + len(self._shards))
        wait_all([work for server in servers for work in post_send(end, server, self._control, _END)])


class _Server(Service):
    """Holds one shard: waits for all workers, sums in rank order, updates, sends the new values to all."""

    def __init__(self, strategy: ParameterServer, ctx: Context, task: Task) -> None:
        self._ctx, self._index, self._step = ctx, ctx.rank - ctx.num_workers, 0
        model = task.model(ctx.seed).to(ctx.device)
        layout = shard_layout(model, strategy.servers, strategy.shard)
        part = layout.slices()[self._index]
        self._shard = flat_parameters(layout)[part].clone()
        shapes = None
        if strategy.shard == "tensors":
            parameters = layout.parameters
            before = sum(len(indices) for indices in deal_tensors(len(parameters), strategy.servers)[: self._index])
            mine = deal_tensors(len(parameters), strategy.servers)[self._index]
            shapes = [parameter.shape for parameter in parameters[before : before + len(mine)]]
        self._gradients = [torch.empty_like(self._shard) for _ in range(ctx.num_workers)]
        self._update = ShardUpdate(task, self._shard, self._gradients[0], shapes) if self._shard.numel() else None
        self._control = _control_group(ctx)

    def run(self) -> None:
        """Serve in a lane until every worker has said that it ends; what the lane then waits for never comes."""
        ctx = self._ctx
        if self._update is not None:
            ctx.spawn(self._serve, "serve", daemon=True)
        ends = [torch.zeros(1, device=ctx.device) for _ in range(ctx.num_workers)]
        wait_all([work for w, end in enumerate(ends) for work in post_recv(end, w, self._control, _END)])

    def _serve(self) -> None:
        while True:
            self._serve_step()

    def _serve_step(self) -> None:
        ctx, step = self._ctx, self._step
        assert self._update is not None, "a server without parameters does not serve"
        pushes = [
            work
            for worker, gradient in enumerate(self._gradients)
            for work in post_recv(gradient, worker, ctx.everyone, _PUSH)
        ]
        wait_all(pushes)
        ctx.mark_step(step, "begin")
        add_in_order(self._gradients, into=0)
        self._update.apply()
        self._step += 1  # before the workers hear of it: then the state is that after the step
        wait_all(
            [work for worker in range(ctx.num_workers) for work in post_send(self._shard, worker, ctx.everyone, _PULL)]
        )
        ctx.mark_step(step, "end")

    def state_dict(self) -> dict[str, Any]:
        update = self._update.state_dict() if self._update else None
        return {"shard": self._shard, "update": update, "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._shard.copy_(state["shard"])
        self._step = state["step"]
        if self._update is not None:
            self._update.load_state_dict(state["update"])


def _control_group(ctx: Context) -> dist.ProcessGroup:
    """For saying that the run ends: the server listens here beside the lane that serves."""
    group = ctx.group(range(ctx.world_size))
    assert group is not None, "every rank is in it"
    return group
