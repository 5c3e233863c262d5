"""Ranks and lanes as threads: what is set up in each, and what is swapped when the baton passes."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

from geartrain.cost.compute import ComputeModel
from geartrain.errors import RunError
from geartrain.record.log import RankLog, RunRecord
from geartrain.runtime import charging
from geartrain.runtime.opcost import OpCosts
from geartrain.runtime.seeding import stream_seed
from geartrain.sim.compute import ChargeMode, Pacer, Prices
from geartrain.sim.fabric import ActivityState, Fabric, RankState
from geartrain.sim.kernel import Activity
from geartrain.torch_private import adopt_world, leave_world, register_groups, worlds_per_thread

YOUNG_OBJECTS = 20_000
"""New objects after which the garbage collector looks for cycles among them. All ranks' objects are in one process, so
Python's 700 is passed by each in every step, and takes a third of the time of 128 ranks (measured)."""


class Swapped(Protocol):
    """Process-wide state that each activity sees as its own.

    Saved when it loses the baton, set when it gets it back.
    """

    def save(self) -> Any: ...

    def restore(self, state: Any) -> None: ...

    def fresh(self, rank: int, lane: str) -> Any: ...


class TorchRandom:
    """Torch's default generator. A rank's starts as in a new process, a lane's from its own stream."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._new_process = torch.Generator().get_state()

    def save(self) -> Any:
        return torch.get_rng_state()

    def restore(self, state: Any) -> None:
        torch.set_rng_state(state)

    def fresh(self, rank: int, lane: str) -> Any:
        if not lane:
            return self._new_process
        return torch.Generator().manual_seed(stream_seed(self._seed, rank, f"lane {lane}")).get_state()


class Ranks:
    """Starts ranks and lanes on a fabric.

    Args:
        fabric: the shared world.
        seed: of the run.
        compute: prices operations; None charges nothing.
        swapped: what is kept per activity besides torch's random state.
    """

    def __init__(
        self, fabric: Fabric, seed: int, compute: ComputeModel | None, swapped: Sequence[Swapped] = ()
    ) -> None:
        self.fabric, self.seed = fabric, seed
        self._compute = compute
        self._swapped: list[Swapped] = [TorchRandom(seed), *swapped]
        self._costs = OpCosts()
        self._prices: dict[Any, Prices] = {}
        self._pacers: dict[int, Pacer] = {}
        self._running: Activity | None = None
        fabric.kernel.listener = self

    def start(self, rank: int, role: str, body: Callable[[], Any]) -> RankState:
        """A new rank; its program runs once the kernel does."""
        state = RankState(rank, RankLog(rank, role))
        self.fabric.ranks.append(state)
        placement = self.fabric.placement
        pacer = self._pacers[rank] = Pacer(placement.pace(rank), stream_seed(self.seed, rank, "pace"))
        state.draw_pace = pacer.draw if pacer.varies else None
        self._add(state, "", body, daemon=False, now=0.0)
        return state

    def spawn(self, rank: RankState, name: str, body: Callable[[], Any], daemon: bool, now: float) -> Activity:
        """A new lane of a rank. It inherits the creator's grad mode and default dtype."""
        grad = torch.is_grad_enabled()

        def inherit() -> Any:
            with torch.set_grad_enabled(grad):
                return body()

        return self._add(rank, name, inherit, daemon, now)

    def _add(self, rank: RankState, name: str, body: Callable[[], Any], daemon: bool, now: float) -> Activity:
        activity = self.fabric.kernel.add(rank.rank, name, lambda: self._inside(activity, body), daemon=daemon, now=now)
        activity.state = ActivityState(rank, self.fabric, [s.fresh(rank.rank, name) for s in self._swapped])
        return activity

    def _inside(self, activity: Activity, body: Callable[[], Any]) -> Any:
        """What every thread of a rank is wrapped in: its group table, single-threaded backward, its charges."""
        table = activity.state.rank.table
        adopt_world(table)
        activity.state.groups = table.pg_names.changes
        torch.autograd.set_multithreading_enabled(False)
        with ExitStack() as stack:
            mode = self._mode(activity)
            if mode is not None:
                stack.enter_context(mode)
                charging.listen(mode)
            try:
                return body()
            finally:
                charging.listen(None)
                activity.state.groups = -1  # from here on this thread only hands the baton on
                leave_world()

    def _mode(self, activity: Activity) -> ChargeMode | None:
        placement, rank = self.fabric.placement, activity.rank
        if self._compute is None or placement.node(rank) < 0:
            return None
        device = placement.device(rank)
        prices = self._prices.get(device)
        if prices is None:
            prices = self._prices[device] = Prices(self._compute, device)
        return ChargeMode(self.fabric.kernel, activity, self._costs, prices, self._pacers[rank])

    def pacer(self, rank: int) -> Pacer:
        """What says how fast a rank computes now."""
        return self._pacers[rank]

    def new_step(self, rank: int) -> None:
        """A step of this rank begins: its jitter is drawn anew."""
        self._pacers[rank].draw()

    def switched(self, activity: Activity) -> None:
        before = self._running
        if before is activity:
            return
        if before is not None:
            ended = before.ended.done
            before.state.random = None if ended else [s.save() for s in self._swapped]
        for swapped, state in zip(self._swapped, activity.state.random, strict=True):
            swapped.restore(state)
        self._running = activity
        state = activity.state
        if 0 <= state.groups != state.rank.table.pg_names.changes:
            state.groups = register_groups(state.rank.table)

    def run(self) -> None:
        """Run all ranks to their ends; this thread's own state is as before afterwards."""
        saved = [s.save() for s in self._swapped]
        try:
            self.fabric.kernel.run()
        finally:
            for swapped, state in zip(self._swapped, saved, strict=True):
                swapped.restore(state)


@contextmanager
def simulated_process() -> Iterator[None]:
    """What must hold in the process while simulated ranks run.

    A table of groups per thread, one thread per operation, and a garbage collector that looks less often.
    """
    num_threads, thresholds = torch.get_num_threads(), gc.get_threshold()
    torch.set_num_threads(1)
    gc.set_threshold(max(thresholds[0], YOUNG_OBJECTS) if thresholds[0] else 0, *thresholds[1:])
    try:
        with worlds_per_thread():
            yield
    finally:
        torch.set_num_threads(num_threads)
        gc.set_threshold(*thresholds)


def run_ranks(ranks: Ranks) -> RunRecord:
    """Run started ranks and collect what they wrote down. Ctrl-C ends the run; the record says so."""
    began = time.perf_counter()
    interrupted = None
    try:
        ranks.run()
    except KeyboardInterrupt:
        interrupted = "interrupted from the keyboard"
    except RunError as error:
        error.record = _record(ranks.fabric, time.perf_counter() - began, type(error).__name__)
        raise
    return _record(ranks.fabric, time.perf_counter() - began, interrupted)


def _record(fabric: Fabric, wall: float, interrupted: str | None) -> RunRecord:
    mains = {a.rank: a for a in fabric.kernel.activities if not a.name}
    for state in fabric.ranks:
        state.log.end = mains[state.rank].now
    return RunRecord(
        engine="simulated",
        logs=[state.log for state in fabric.ranks],
        results=[mains[state.rank].result for state in fabric.ranks],
        wall=wall,
        virtual=True,
        interrupted=interrupted,
        link_bytes={
            link.name: carried
            for link, carried in zip(fabric.placement.links, fabric.network.link_bytes, strict=True)
            if carried
        },
    )
