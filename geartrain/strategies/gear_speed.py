"""Which parts, workers and speed each gear has: `Plan`, how it is read from the settings, and how it is measured.

    t_k     seconds of gear k's parts for one micro-batch, forward and backward;  n_k its workers
    R*      = max(1, round(max_{k < K} t_k/n_k / (t_K/n_K)))             speed of the top gear, the others' being 1
    cut     the one with the least  max_k t_k/n_k + mesh / R             and so the division of the workers

`mesh` is the time in which one micro-batch crosses all meshes up and down: of the R micro-batches of a revolution only
the first going up and the last coming down are not hidden. With the top gear at R* and R* - 1 passes of replay over
each revolution's micro-batches both gears turn all the time. All of it is chosen: no definition was published. Another
reading of what a speed is replaces `speeds_of` and `Plan.due`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.errors import StrategyError
from geartrain.runtime.backward import on_device
from geartrain.runtime.chain import part_module
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch, Task
from geartrain.workload.spec import Part

MEASURED, EVEN = "measured", "even"

_SAMPLES = 8  # of the micro-batch that is timed: only ratios count, and every task has as many
_REPEATS = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of the strategy that a plan is made of; see `geartrain.strategies.gear.Gear`."""

    gears: int
    cuts: str
    speeds: str
    workers: str
    replay: int

    @property
    def measured(self) -> bool:
        """Whether anything is chosen by measurement."""
        return MEASURED in (self.cuts, self.speeds, self.workers)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Who turns what how fast.

    Attributes:
        parts: of each gear, bottom first: positions among the parts of the task.
        workers: of each gear; gears that share a worker have the same one.
        speeds: updates per revolution; 0: never.
        replay: extra passes of the top gear over the micro-batches of a revolution.
    """

    parts: tuple[range, ...]
    workers: tuple[range, ...]
    speeds: tuple[int, ...]
    replay: int

    @property
    def beats(self) -> int:
        """Micro-batches in a revolution."""
        return max(self.speeds)

    def due(self, gear: int, count: int) -> tuple[int, ...]:
        """After which of a revolution's `count` micro-batches a gear updates: floor(u * count / speed), u = 1, ..."""
        speed = self.speeds[gear]
        if speed >= count:
            return tuple(range(1, count + 1))
        return tuple(sorted({turn * count // speed for turn in range(1, speed + 1)} - {0}))

    @property
    def stations(self) -> tuple[range, ...]:
        """Gears that share workers, bottom first: neighbours, mostly one alone."""
        groups = itertools.groupby(range(len(self.parts)), key=lambda gear: self.workers[gear])
        return tuple(range(members[0], members[-1] + 1) for _, found in groups for members in [list(found)])


@dataclass(frozen=True, kw_only=True)
class Times:
    """What a plan is chosen by.

    Attributes:
        parts: seconds of each part for one micro-batch, forward and backward.
        mesh: seconds in which what a part hands on travels to another worker and its gradient back.
    """

    parts: Sequence[float]
    mesh: Sequence[float]


def check(settings: Settings) -> None:
    """Refuse settings that cannot be read, whatever the model and the number of workers."""
    gears = settings.gears
    names = _names(settings)
    if names is not None and len(names) != gears - 1:
        raise StrategyError(
            f"gear: cuts={settings.cuts!r} gives {len(names) + 1} gears and gears={gears}; name the first part of each "
            "gear but the bottom one, like cuts=hidden or cuts=body+head, or give even or measured"
        )
    if settings.speeds == MEASURED and settings.replay:
        raise StrategyError("gear: speeds=measured chooses the replay, too; leave replay out, or give the speeds")
    if settings.speeds != MEASURED and not any(_speeds(settings)):
        raise StrategyError(f"gear: with speeds={settings.speeds} nothing is ever updated; give one gear a speed")
    if settings.speeds != MEASURED and settings.replay and not _speeds(settings)[-1]:
        raise StrategyError(
            "gear: a top gear of speed 0 learns nothing from replay; leave replay out, or give it a speed"
        )
    if settings.workers not in (EVEN, MEASURED) and not all(_numbers("workers", settings.workers, gears)):
        raise StrategyError(f"gear: workers={settings.workers} leaves a gear without any; give each one or more")


def check_workers(settings: Settings, num_workers: int) -> None:
    """Refuse a division that is of another number of workers."""
    if settings.workers in (EVEN, MEASURED):
        return
    given = sum(_numbers("workers", settings.workers, settings.gears))
    if given != num_workers:
        raise StrategyError(
            f"gear: workers={settings.workers} divides {given} workers, and there are {num_workers}.\n"
            "  give numbers that add up to them, or even or measured"
        )


def plan_of(settings: Settings, parts: Sequence[Part], num_workers: int, times: Callable[[], Times]) -> Plan:
    """The plan for a model of these parts on so many workers.

    Args:
        times: asked for if something is to be chosen by measurement.
    """
    if len(parts) < settings.gears:
        raise StrategyError(
            f"gear: {settings.gears} gears need as many parts, and the model has {len(parts)} that can be cut apart.\n"
            f"  use gears={len(parts)}, or a task whose cuts() lists more parts"
        )
    cuts, workers = list(_cuts(settings, parts)), list(_divisions(settings, num_workers))
    if not settings.measured:
        return Plan(parts=cuts[0], workers=workers[0], speeds=tuple(_speeds(settings)), replay=settings.replay)
    known = times()
    options = [_turning(settings, cut, division, known) for cut in cuts for division in workers]
    return min(options, key=lambda plan: _score(plan, known))


def busy(plan: Plan, times: Times) -> list[float]:
    """Seconds of each station for one micro-batch, without replay."""
    found = []
    for station in plan.stations:
        own = sum(times.parts[part] for gear in station for part in plan.parts[gear])
        found.append(own / len(plan.workers[station[0]]))
    return found


def _score(plan: Plan, times: Times) -> float:
    crossings = sum(times.mesh[plan.parts[station[-1]][-1]] for station in plan.stations[:-1])
    return max(busy(plan, times)) + crossings / plan.beats


def _turning(settings: Settings, parts: tuple[range, ...], workers: tuple[range, ...], times: Times) -> Plan:
    """A cut and a division with their speeds."""
    still = Plan(parts=parts, workers=workers, speeds=(1,) * len(parts), replay=0)
    if settings.speeds != MEASURED:
        return Plan(parts=parts, workers=workers, speeds=tuple(_speeds(settings)), replay=settings.replay)
    seconds = busy(still, times)
    fast = max(1, round(max(seconds[:-1]) / seconds[-1])) if len(seconds) > 1 and seconds[-1] else 1
    return Plan(parts=parts, workers=workers, speeds=(*still.speeds[:-1], fast), replay=fast - 1)


# Reading the settings


def _names(settings: Settings) -> list[str] | None:
    return None if settings.cuts in (EVEN, MEASURED) else settings.cuts.split("+")


def _speeds(settings: Settings) -> list[int]:
    return _numbers("speeds", settings.speeds, settings.gears)


def _numbers(key: str, text: str, count: int) -> list[int]:
    """`1-4`: a whole number for each gear, bottom first."""
    pieces = text.split("-")
    if len(pieces) != count or not all(piece.isdecimal() for piece in pieces):
        also = MEASURED if key == "speeds" else f"{EVEN} or {MEASURED}"
        raise StrategyError(
            f"gear: {key}={text!r} does not fit; give a whole number for each of the {count} gears, bottom first, "
            f"like {'-'.join(['1'] * (count - 1) + ['4'])}, or {also}"
        )
    return [int(piece) for piece in pieces]


def _cuts(settings: Settings, parts: Sequence[Part]) -> Iterator[tuple[range, ...]]:
    """Every way to cut that the settings allow."""
    count, names = len(parts), _names(settings)
    if settings.cuts == MEASURED:
        for inner in itertools.combinations(range(1, count), settings.gears - 1):
            yield _ranges((0, *inner, count))
    elif names is None:
        yield _ranges(_even(count, settings.gears))
    else:
        first = {part.modules[0]: index for index, part in enumerate(parts)}
        inner = tuple(first.get(name, 0) for name in names)
        if list(inner) != sorted({*inner} - {0}):
            raise StrategyError(
                f"gear: cuts={settings.cuts!r} must name, in order, parts at which the model can be cut: "
                f"{', '.join(list(first)[1:])}"
            )
        yield _ranges((0, *inner, count))


def _divisions(settings: Settings, num_workers: int) -> Iterator[tuple[range, ...]]:
    """Every way to divide the workers that the settings allow; with fewer workers than gears, neighbours share one."""
    gears, given = settings.gears, settings.workers
    if given not in (EVEN, MEASURED):
        check_workers(settings, num_workers)
        yield _ranges((0, *itertools.accumulate(_numbers("workers", given, gears))))
    elif num_workers < gears:
        shared = _ranges(_even(gears, num_workers))
        yield tuple(range(worker, worker + 1) for worker, members in enumerate(shared) for _ in members)
    elif given == MEASURED:
        for inner in itertools.combinations(range(1, num_workers), gears - 1):
            yield _ranges((0, *inner, num_workers))
    else:
        yield _ranges(_even(num_workers, gears))


def _even(total: int, count: int) -> tuple[int, ...]:
    """Where `count` contiguous shares of `total` begin, and the end; the first ones have one more."""
    size, extra = divmod(total, count)
    return tuple(index * size + min(index, extra) for index in range(count + 1))


def _ranges(ends: Sequence[int]) -> tuple[range, ...]:
    return tuple(range(begin, end) for begin, end in itertools.pairwise(ends))


# Measuring


def measure(ctx: Context, task: Task, parts: Sequence[Part], dtype: torch.dtype) -> Times:
    """Times that all workers agree on: worker 0 computes each part, and sends what it hands on to worker 1 and back.

    It takes its time before the first step, on the virtual clock, too. Devices and wires are taken to be alike.
    """
    found = torch.zeros(2 * len(parts), dtype=torch.float64, device="cpu" if ctx.meta else ctx.device)
    if ctx.rank == 0:
        found[: len(parts)] = torch.tensor(_part_times(ctx, task, parts), dtype=torch.float64)
    if ctx.num_workers > 1 and ctx.rank < 2:
        for index, part in enumerate(parts):
            there = torch.zeros((_SAMPLES, *part.shape), dtype=dtype, device=ctx.device)
            seconds = median(_crossing(ctx, there) for _ in range(_REPEATS))
            if ctx.rank == 0:
                found[len(parts) + index] = seconds
    dist.broadcast(found, group=ctx.workers, group_src=0)
    values = found.tolist()
    return Times(parts=values[: len(parts)], mesh=values[len(parts) :])


def _crossing(ctx: Context, tensor: Tensor) -> float:
    begin, back = ctx.clock.now(), torch.empty_like(tensor)
    if ctx.rank == 0:
        wait_all(post_send(tensor, 1, ctx.workers))
        wait_all(post_recv(back, 1, ctx.workers))
    else:
        wait_all(post_recv(back, 0, ctx.workers))
        wait_all(post_send(tensor, 0, ctx.workers))
    return ctx.clock.now() - begin


def _part_times(ctx: Context, task: Task, parts: Sequence[Part]) -> list[float]:
    """The median of a few passes through each part, after one that is not counted."""
    with uncharged():
        model = task.model(ctx.seed).to(ctx.device)
        batch = on_device(task.batches(rank=0, num_workers=1, batch=_SAMPLES, seed=0).take(), ctx.device)
    passed, seconds = batch.inputs, []
    for index, part in enumerate(parts):
        module = part_module(model, part.modules)
        entry = passed.detach().requires_grad_(index > 0)
        learned = [p for p in module.parameters() if p.requires_grad] + ([entry] if index else [])
        taken = []
        for _ in range(_REPEATS + 1):
            begin = ctx.clock.now()
            if index == len(parts) - 1:
                passed = task.loss(module, Batch(entry, batch.targets, 1.0))
            else:
                passed = module(entry)
            if learned:
                torch.autograd.grad(passed, learned, torch.ones_like(passed), allow_unused=True)
            taken.append(ctx.clock.now() - begin)
        seconds.append(median(taken[1:]))
    return seconds
