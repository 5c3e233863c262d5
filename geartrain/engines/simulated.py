"""The simulated engine: ranks are threads under a virtual clock, tensors are real, time is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Cluster
from geartrain.cost.compute import ComputeModel
from geartrain.engines.base import Engine
from geartrain.engines.upkeep_simulated import SimulatedUpkeep
from geartrain.record.log import RunRecord, Span, StepMark
from geartrain.runtime.context import Context, Lane, Pending, Queue
from geartrain.runtime.datagrams import Datagrams
from geartrain.runtime.seeding import stream_seed
from geartrain.sim.datagrams import SimulatedDatagrams
from geartrain.sim.explain import Explainer
from geartrain.sim.fabric import Fabric, RankState
from geartrain.sim.kernel import Activity, Event
from geartrain.sim.process_group import BACKEND, SimulatedGroup, make_group
from geartrain.sim.ranks import Ranks, run_ranks, simulated_process
from geartrain.sim.store import SimulatedStore
from geartrain.torch_private import enter_default_group, enter_group


class SimulatedEngine(Engine):
    """Runs `main(ctx)` under the virtual clock.

    Args:
        compute: prices operations; None makes compute free.
        algorithms: collective kind -> algorithm, instead of the choice by size.
    """

    name: ClassVar[str] = "simulated"
    capabilities: ClassVar[frozenset[str]] = frozenset({"virtual_time", "meta"})

    def __init__(self, compute: ComputeModel | None = None, algorithms: dict[str, str] | None = None) -> None:
        self._compute, self._algorithms = compute, dict(algorithms or {})

    def run(
        self,
        main: Callable[[Context], Any],
        cluster: Cluster,
        *,
        workers: int,
        services: Sequence[ServicePlace] = (),
        seed: int = 0,
        meta: bool = False,
    ) -> RunRecord:
        explain = Explainer()
        fabric = explain.fabric = Fabric(Placement(cluster, workers, services), self._algorithms, explain)
        ranks = Ranks(fabric, seed, self._compute)
        store = SimulatedStore(fabric)

        def body(rank: int) -> Callable[[], Any]:
            def run_main() -> Any:
                _make_world(fabric, store, rank)
                return main(SimulatedContext(ranks, rank, seed, meta))

            return run_main

        with simulated_process():
            for rank in range(fabric.placement.num_ranks):
                ranks.start(rank, fabric.placement.role(rank), body(rank))
            return run_ranks(ranks)


def _make_world(fabric: Fabric, store: SimulatedStore, rank: int) -> None:
    """The default group: all workers."""
    workers = tuple(range(fabric.placement.num_workers))
    if rank in workers:
        enter_default_group(make_group(fabric, "workers", workers, rank), "workers", BACKEND, workers, store)


def script_rank(activity: Activity) -> SimulatedContext:
    """The context of a rank whose code is not handed one; a new one when its default group is another than before."""
    state: RankState = activity.state.rank
    if state.context is not None and (state.context.role != "worker" or state.context.workers is dist.group.WORLD):
        made: SimulatedContext = state.context
        return made
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    ranks = activity.state.fabric.kernel.listener
    assert isinstance(ranks, Ranks), "ranks are started by a `Ranks`"
    return SimulatedContext(ranks, state.rank, ranks.seed, meta=False, scope="script-")


class SimulatedContext(Context):
    """A rank's world under the virtual clock. Made in the rank's own thread, whose default group is there already.

    Args:
        ranks: of the run.
        rank, seed, meta: see `Context`.
        scope: before the names of its groups, so that they cannot meet those of a script.
    """

    def __init__(self, ranks: Ranks, rank: int, seed: int, meta: bool, scope: str = "") -> None:
        self._ranks, self._fabric, self._kernel = ranks, ranks.fabric, ranks.fabric.kernel
        placement = self._fabric.placement
        self._state: RankState = self._fabric.ranks[rank]
        self.rank, self.world_size, self.num_workers = rank, placement.num_ranks, placement.num_workers
        self.role, self.seed, self.meta = placement.role(rank), seed, meta
        self.nodes = placement.nodes
        self.device = torch.device("meta" if meta else "cpu")
        self.clock = _Clock(self)
        self.trace = _Trace(self)
        self._generators: dict[str, torch.Generator] = {}
        self.upkeep = SimulatedUpkeep(self, self._fabric, self._state, self._generators, ranks.pacer(rank))
        self._shared: dict[str, torch.Tensor] = {}
        self._changed = Event("anything to become ready")
        self._num_groups = self._num_datagrams = 0
        if rank < placement.num_workers:
            world = dist.group.WORLD
            assert world is not None, "it is there already"
            self.workers = world
        self._scope = scope
        self.everyone = self._enter("everyone", tuple(range(self.world_size)))
        self._state.context = self

    def _enter(self, name: str, ranks: tuple[int, ...]) -> SimulatedGroup:
        group = make_group(self._fabric, self._scope + name, ranks, ranks.index(self.rank))
        enter_group(group, self._scope + name, BACKEND, ranks)
        return group

    def rng(self, purpose: str) -> torch.Generator:
        generator = self._generators.get(purpose)
        if generator is None:
            generator = self._generators[purpose] = torch.Generator()
            generator.manual_seed(stream_seed(self.seed, self.rank, purpose))
        return generator

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        self._num_groups += 1
        name = f"group-{self._num_groups}"
        return self._enter(name, tuple(ranks)) if self.rank in ranks else None

    def spawn(self, fn: Callable[[], None], name: str, *, daemon: bool = False) -> Lane:
        now = self._kernel.sync().now
        lane = _Lane(self, name)

        def body() -> None:
            fn()
            self._notify()

        lane.activity = self._ranks.spawn(self._state, name, body, daemon, now)
        return lane

    def queue(self) -> Queue:
        return _Queue(self)

    def wait_any(self, pending: Sequence[Pending], deadline: float | None = None) -> int | None:
        while True:
            ready = self._first_ready(pending)
            if ready is not None:
                return ready
            if not self._wait_for_change(deadline, "any of several"):
                return self._first_ready(pending)

    def _first_ready(self, pending: Sequence[Pending]) -> int | None:
        activity = self._kernel.sync()
        looks = activity.polls
        found = next((position for position, item in enumerate(pending) if item.ready()), None)
        activity.polls = looks  # whoever looks here waits afterwards
        return found

    def recv_any(self, buffer: torch.Tensor, group: dist.ProcessGroup, tag: int = 0) -> int:
        work: Any = group.recv_anysource([buffer], tag)
        work.wait()
        return int(work.source_rank())

    def datagrams(self, size: int) -> Datagrams:
        self._num_datagrams += 1
        return SimulatedDatagrams(self._fabric, f"{self._scope}datagrams-{self._num_datagrams}", self.rank)

    def shared(self, name: str, like: torch.Tensor) -> torch.Tensor:
        if name not in self._shared:
            self._shared[name] = like.detach().clone()
        return self._shared[name]

    def mark_step(self, step: int, phase: Literal["begin", "end"], **values: Any) -> None:
        activity = self._kernel.me()
        now = activity.now
        steps = self._state.log.steps
        if phase == "begin":
            self._ranks.new_step(self.rank)
            self._state.step = step
            steps.append(StepMark(step, now, values=dict(values)))
        else:
            activity.host = now
            steps[-1].end = now
            steps[-1].values.update(values)

    # --- for queues and lanes ---------------------------------------------------------------------------------------

    def _notify(self) -> None:
        changed, self._changed = self._changed, Event("anything to become ready")
        self._kernel.fire(changed)

    def _wait_for_change(self, deadline: float | None, what: str) -> bool:
        return self._fabric.wait(self._changed, None, what, deadline)


class _Clock:
    def __init__(self, ctx: SimulatedContext) -> None:
        self._fabric = ctx._fabric

    def now(self) -> float:
        return self._fabric.kernel.own_time()

    def sleep(self, seconds: float) -> None:
        self._fabric.sleep(seconds)


class _Trace:
    def __init__(self, ctx: SimulatedContext) -> None:
        self._kernel, self._log = ctx._kernel, ctx._state.log

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        activity = self._kernel.me()
        begin = activity.now
        try:
            yield
        finally:
            self._log.spans.append(Span(begin, activity.now, name, activity.name))

    def count(self, name: str, value: float) -> None:
        self._log.counts[name] = self._log.counts.get(name, 0.0) + value


class _Queue(Queue):
    def __init__(self, ctx: SimulatedContext) -> None:
        self._ctx = ctx
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._ctx._kernel.sync()
        self._items.append(item)
        self._ctx._notify()

    def get(self, deadline: float | None = None) -> Any:
        self._ctx._kernel.sync()
        while not self._items:
            if not self._ctx._wait_for_change(deadline, "a queue"):
                if self._items:
                    break
                raise TimeoutError(f"nothing came before t = {deadline}")
        return self._items.popleft()

    def ready(self) -> bool:
        self._ctx._kernel.sync()
        if not self._items:
            self._ctx._kernel.look("looks into an empty queue")
        return bool(self._items)


class _Lane(Lane):
    activity: Activity

    def __init__(self, ctx: SimulatedContext, name: str) -> None:
        self._ctx, self.name = ctx, name

    def join(self) -> None:
        self._ctx._fabric.wait(self.activity.ended, None, f"lane {self.name}")

    def ready(self) -> bool:
        self._ctx._kernel.sync()
        if not self.activity.ended.done:
            self._ctx._kernel.look(f"looks for the end of lane {self.name}")
        return self.activity.ended.done
