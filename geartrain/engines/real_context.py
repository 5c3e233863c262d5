"""`RealContext`: a rank that is a process. Its lanes are threads, its clock is the host's."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.engines.real_datagrams import RealDatagrams
from geartrain.engines.recorder import Recorder
from geartrain.engines.upkeep_real import RealUpkeep
from geartrain.errors import ConfigurationError
from geartrain.record.log import Span, StepMark
from geartrain.runtime.context import Context, Lane, Pending, Queue, Receiver
from geartrain.runtime.datagrams import Datagrams
from geartrain.runtime.seeding import stream_seed

_POLL = 0.0005  # seconds between looks at things that cannot call back; chosen


class RealClock:
    """The host's clock, from the moment at which all ranks were there."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def now(self) -> float:
        self._recorder.settle()
        return self._recorder.now()

    def sleep(self, seconds: float) -> None:
        with self._recorder.blocked("sleep"):
            time.sleep(max(0.0, seconds))


class RealTrace:
    """Spans and counts, straight into the log."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder, self._lock = recorder, threading.Lock()

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        begin = self._recorder.now()
        try:
            yield
        finally:
            if self._recorder.recording:
                self._recorder.log.spans.append(Span(begin, self._recorder.now(), name, self._recorder.lane))

    def count(self, name: str, value: float) -> None:
        counts = self._recorder.log.counts
        with self._lock:
            counts[name] = counts.get(name, 0.0) + value


class RealQueue(Queue):
    """Items between lanes. All queues and lanes of a rank share one condition, so that one can wait for any of them."""

    def __init__(self, ctx: RealContext) -> None:
        self._ctx, self._items = ctx, deque[Any]()

    def put(self, item: Any) -> None:
        self._ctx.recorder.settle()  # not with the lock held: it may take long
        with self._ctx.changed:
            self._items.append(item)
            self._ctx.changed.notify_all()

    def get(self, deadline: float | None = None) -> Any:
        self._ctx.recorder.settle()
        with self._ctx.changed:
            if not self._items and not self._ctx.wait_until(lambda: bool(self._items), deadline, "queue"):
                raise TimeoutError(f"nothing came into the queue by t = {deadline:.3f} s")
            return self._items.popleft()

    def ready(self) -> bool:
        self._ctx.recorder.settle()  # a look sees what has come by the time that the device has got so far
        return bool(self._items)


class RealLane(Lane):
    """A thread. It never keeps the process alive: the rank joins the lanes that are not daemons at its end."""

    def __init__(self, ctx: RealContext, fn: Callable[[], None], name: str, daemon: bool) -> None:
        self.name, self.daemon = name, daemon
        self._ctx, self._fn = ctx, fn
        self._ended, self._error = False, None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ctx = self._ctx
        ctx.recorder.enter_lane(self.name)
        torch.set_num_threads(1)  # a new thread starts with the default of the host
        if ctx.device.type == "cuda":
            torch.cuda.set_device(ctx.device)
        try:
            self._fn()
        except BaseException as error:
            # What a daemon lane is blocked in breaks when ranks leave; if one is lost before, that is seen elsewhere.
            if not (self.daemon and (ctx.leaving or error is ctx.recorder.lost)):
                ctx.fail(error)
        with ctx.changed:
            self._ended = True
            ctx.changed.notify_all()

    def join(self) -> None:
        self._ctx.recorder.settle()
        with self._ctx.changed:
            self._ctx.wait_until(self.ready, None, f"lane {self.name}")

    def ready(self) -> bool:
        return self._ended


def _no_store(name: str) -> Any:
    raise ConfigurationError("a script's own loop has no store for ledgers and datagrams; only a `Training` has one")


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """Which rank this is, and what the engine lends it.

    Attributes:
        rank, world_size, num_workers, role, device, seed, nodes: see `Context`.
        make_group: (name, ranks) -> a group of these ranks of all, entered into the tables; None if this rank is not
            one of them.
        make_store: a part of the run's store by its name, over a connection of its own; a `Training` and datagrams
            need it.
        fail: ends the rank because of an error, from any lane; does not return.
        on_step: is told the step that begins.
    """

    rank: int
    world_size: int
    num_workers: int
    role: str
    device: torch.device
    seed: int
    nodes: tuple[int, ...]
    make_group: Callable[[str, Sequence[int]], dist.ProcessGroup | None]
    fail: Callable[[BaseException], None]
    on_step: Callable[[int], None]
    make_store: Callable[[str], Any] = _no_store


class RealContext(Context):
    """See `Context`.

    Attributes:
        changed: is notified whenever a queue gets an item or a lane ends.
        leaving: True once this rank has done all it had to.
    """

    def __init__(
        self, settings: RankSettings, recorder: Recorder, workers: dist.ProcessGroup | None, everyone: dist.ProcessGroup
    ) -> None:
        self.rank, self.world_size, self.num_workers = settings.rank, settings.world_size, settings.num_workers
        self.role, self.device, self.seed, self.meta = settings.role, settings.device, settings.seed, False
        self.nodes = settings.nodes
        if workers is not None:
            self.workers = workers
        self.everyone = everyone
        self.recorder = recorder
        self.clock, self.trace = RealClock(recorder), RealTrace(recorder)
        self.fail, self.changed, self.leaving = settings.fail, threading.Condition(), False
        self._settings = settings
        self._rngs: dict[str, torch.Generator] = {}
        self.upkeep = RealUpkeep(self, recorder, self._rngs, settings.make_store)
        self._shared: dict[str, Tensor] = {}
        self._lanes: list[RealLane] = []
        self._num_groups = self._num_datagrams = 0
        self._lock = threading.Lock()

    def rng(self, purpose: str) -> torch.Generator:
        with self._lock:
            if purpose not in self._rngs:
                generator = torch.Generator(self.device)
                self._rngs[purpose] = generator.manual_seed(stream_seed(self.seed, self.rank, purpose))
            return self._rngs[purpose]

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        name = f"group-{self._num_groups}"
        self._num_groups += 1
        return self._settings.make_group(name, tuple(ranks))

    def spawn(self, fn: Callable[[], None], name: str, *, daemon: bool = False) -> Lane:
        lane = RealLane(self, fn, name, daemon)
        self._lanes.append(lane)
        return lane

    def queue(self) -> Queue:
        return RealQueue(self)

    def wait_any(self, pending: Sequence[Pending], deadline: float | None = None) -> int | None:
        def first() -> int | None:
            return next((index for index, one in enumerate(pending) if one.ready()), None)

        self.recorder.settle()
        calls_back = all(isinstance(one, RealQueue | RealLane | Receiver) for one in pending)
        with self.changed:
            if (found := first()) is None:
                self.wait_until(lambda: first() is not None, deadline, "any", None if calls_back else _POLL)
                found = first()
        return found

    def recv_any(self, buffer: Tensor, group: dist.ProcessGroup, tag: int = 0) -> int:
        source = dist.recv(buffer, group=group, tag=tag)
        return dist.get_group_rank(group, source)

    def datagrams(self, size: int) -> Datagrams:
        name = f"datagrams-{self._num_datagrams}"
        self._num_datagrams += 1
        return RealDatagrams(name, self._settings.make_store(name), self.recorder, self.rank, self.world_size, size)

    def shared(self, name: str, like: Tensor) -> Tensor:
        with self._lock:
            if name not in self._shared:
                self._shared[name] = like.detach().clone()
            return self._shared[name]

    def mark_step(self, step: int, phase: Literal["begin", "end"], **values: Any) -> None:
        steps = self.recorder.log.steps
        if not self.recorder.recording:
            return
        self.recorder.settle()
        around = self.recorder.surroundings
        if phase == "begin":
            self._settings.on_step(step)
            if around is not None:
                around.begin_step()
            steps.append(StepMark(step, self.recorder.now(), values=dict(values)))
            return
        mark = next((mark for mark in reversed(steps) if mark.step == step and mark.end < 0), None)
        if mark is None:
            raise ValueError(f"step {step} ends without having begun; mark its begin first")
        mark.end = self.recorder.now()
        mark.values.update(values, **(around.end_step() if around is not None else {}))

    def wait_until(
        self, condition: Callable[[], bool], deadline: float | None, what: str, poll: float | None = None
    ) -> bool:
        """Stand still, holding `changed`, until the condition is true; False when the deadline came first."""
        if condition():
            return True
        with self.recorder.blocked(what):
            while not condition():
                left = None if deadline is None else deadline - self.clock.now()
                if left is not None and left <= 0:
                    return False
                self.changed.wait(min(left, poll) if left is not None and poll is not None else left or poll)
        return True

    def finish(self) -> None:
        """Wait for this rank's lanes; then the daemon lanes may break off without harm."""
        for lane in self._lanes:
            if not lane.daemon:
                lane.join()
        self.leaving = True
