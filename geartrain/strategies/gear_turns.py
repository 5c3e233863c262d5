"""How gears turn on a worker: `Station`, what it has of the machine, and `MeshedWorker`, which runs them in step.

    revolution of a station with m micro-batches, all gears meshed:
        for each block of micro-batches:                 one block, or blocks that end where gears update
            for j in block:   take h_j from below or the inputs;  h_j <- f(h_j; w);  give it up
            for j in block:   take g_j from above;  G += (n_j/N) * (dh_j/dw)^T g_j;  give the gradient of h_j down
                              w <- optimizer(w, G) where the gear is due
        the top gear has blocks of one, and the loss in place of "take g_j from above"
        the top gear again, `replay` times, for all j, giving nothing down

N: the samples between two updates of that gear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.runtime.backward import on_device, witness_of
from geartrain.runtime.chain import part_module
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch, Batches, StepResult, Task, Worker
from geartrain.strategies.gear_mesh import Mesh, Pass, Wheel, rows_of
from geartrain.strategies.gear_speed import Plan
from geartrain.workload.spec import Part


@dataclass(frozen=True)
class Machine:
    """What all workers know of the gears, the same everywhere.

    Attributes:
        parts: of the model.
        dtype: of what passes between them.
        stash: backward at the parameters of forward, although updates come between.
        max_scale: a gear's learning rate is the task's times the micro-batches in an update, at most this.
    """

    plan: Plan
    parts: Sequence[Part]
    dtype: torch.dtype
    stash: bool
    max_scale: int

    def modules(self, gear: int) -> list[str]:
        """Names of the submodules of a gear."""
        return [name for index in self.plan.parts[gear] for name in self.parts[index].modules]

    def shape(self, gear: int) -> tuple[int, ...]:
        """Of what a gear hands up, for one sample."""
        return self.parts[self.plan.parts[gear][-1]].shape

    def scale(self, gear: int) -> float:
        """Of the learning rate of a gear."""
        speed = self.plan.speeds[gear]
        return min(self.plan.beats / speed, self.max_scale) if speed else 1.0


class Station:
    """This worker's gears, mostly one, and the meshes to its neighbours.

    Attributes:
        model: the whole one; only the gears' own parts are kept up to date.
        gears: which they are, bottom first; `wheels` in the same order.
        bottom, top: whether the first and the last gear of all are among them.
        wants: of each of the machine's gears, whether something below it is trained, so that it hands gradients down.
    """

    def __init__(self, ctx: Context, task: Task, machine: Machine) -> None:
        plan = machine.plan
        self.ctx, self.task, self.machine, self.plan = ctx, task, machine, plan
        self.model = task.model(ctx.seed).to(ctx.device)
        self.witness = witness_of(self.model)
        stations = plan.stations
        self.index = next(k for k, gears in enumerate(stations) if ctx.rank in plan.workers[gears[0]])
        self.gears, self.workers = stations[self.index], plan.workers[stations[self.index][0]]
        self.bottom, self.top = self.index == 0, self.index == len(stations) - 1
        groups = [ctx.group(plan.workers[gears[0]]) for gears in stations if len(plan.workers[gears[0]]) > 1]
        group = next((one for one in groups if one is not None), None)
        modules = [part_module(self.model, machine.modules(gear)) for gear in range(len(plan.parts))]
        self.wheels = [
            Wheel(task, modules[gear], speed=plan.speeds[gear], group=group, scale=machine.scale(gear))
            for gear in self.gears
        ]
        trained = [
            bool(speed) and any(p.requires_grad for p in module.parameters())
            for speed, module in zip(plan.speeds, modules, strict=True)
        ]
        self.wants = [any(trained[:gear]) for gear in range(len(trained) + 1)]
        self._owned = [[*module.parameters(), *module.buffers()] for module in modules]

    def mesh(self, *, below: bool) -> Mesh | None:
        """To the station below or above, if there is one."""
        if self.bottom if below else self.top:
            return None
        other = self.plan.workers[self.gears[0] - 1 if below else self.gears[-1] + 1]
        shape = self.machine.shape(self.gears[0] - 1 if below else self.gears[-1])
        return Mesh(self.ctx, self.workers, other, shape, self.machine.dtype, below=below)

    def loss(self, module: nn.Module, entry: Tensor, targets: Tensor) -> Tensor:
        """Of the top gear."""
        return self.task.loss(module, Batch(entry, targets, 1.0))

    @torch.no_grad()
    def gather(self) -> None:
        """All parts of the model on all workers, from the first worker of each gear."""
        if self.ctx.num_workers == 1:
            return
        for gear, owned in enumerate(self._owned):
            root = self.plan.workers[gear][0]
            # A gear's other workers have the same; theirs are left alone, as graphs may still need them.
            aside = gear in self.gears and self.ctx.rank != root
            for tensor in owned:
                target = torch.empty_like(tensor) if aside else tensor.detach()
                dist.broadcast(target, group=self.ctx.workers, group_src=root)

    @torch.no_grad()
    def mark(self) -> None:
        """Let the model's own witness, which the loop looks at, show NaN where a gear of this worker does."""
        if self.top:
            return
        for wheel in self.wheels:
            poison = wheel.poison
            if poison is not None:
                self.witness.view(-1)[0] += poison

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "gears": [wheel.state_dict() for wheel in self.wheels]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for wheel, saved in zip(self.wheels, state["gears"], strict=True):
            wheel.load_state_dict(saved)


@dataclass(frozen=True)
class Beat:
    """One micro-batch of a revolution.

    Attributes:
        begin, count: its first sample in the global batch, and how many.
        rows: those of this worker, from 0 to `count`.
    """

    begin: int
    count: int
    rows: range

    def of(self, tensor: Tensor) -> Tensor:
        """This worker's rows of a tensor of the global batch."""
        return tensor[self.begin + self.rows.start : self.begin + self.rows.stop]


def beats_of(samples: int, station: Station) -> list[Beat]:
    """The micro-batches of a revolution: as many as the fastest gear makes updates, or one sample each if too few."""
    count = min(station.plan.beats, samples)
    sizes = [len(rows_of(samples, range(count), beat)) for beat in range(count)]
    begins = [0, *accumulate(sizes)]
    return [
        Beat(begin, size, rows_of(size, station.workers, station.ctx.rank))
        for begin, size in zip(begins, sizes, strict=False)
    ]


class MeshedWorker(Worker):
    """Runs a station's gears in step with their neighbours; see the module."""

    def __init__(self, ctx: Context, task: Task, machine: Machine) -> None:
        self._station = station = Station(ctx, task, machine)
        self.model = station.model
        self._up, self._down = station.mesh(below=False), station.mesh(below=True)
        self._passes: dict[int, list[Pass]] = {}

    def step(self, batches: Batches) -> StepResult:
        station = self._station
        batch = on_device(batches.take(), station.ctx.device)
        beats = beats_of(batch.num_samples, station)
        before = [wheel.version for wheel in station.wheels]
        if self._down:
            for number, beat in enumerate(beats):
                self._down.expect(number, beat.count)
        losses = []
        for begin, end in self._blocks(len(beats)):
            for number in range(begin, end):
                self._forward(number, beats[number], batch)
            for number in range(begin, end):
                losses.append(self._backward(number, beats))
        for _ in range(station.plan.replay if station.top else 0):
            self._replay(beats, batch)
        self._passes.clear()
        for mesh in (self._up, self._down):
            if mesh:
                mesh.turn()
        station.mark()
        updates = max(wheel.version - old for wheel, old in zip(station.wheels, before, strict=True))
        return self._result(beats, losses, updates)

    def _result(self, beats: Sequence[Beat], losses: Sequence[Tensor | None], updates: int) -> StepResult:
        station = self._station
        if not station.top:
            return StepResult(None, 0, updates)
        samples = sum(len(beat.rows) for beat in beats)
        if station.ctx.meta or not samples:
            return StepResult(None, samples, updates)
        mean = sum(
            one.item() * (len(beat.rows) / samples) for beat, one in zip(beats, losses, strict=True) if one is not None
        )
        return StepResult(mean, samples, updates)

    def _blocks(self, count: int) -> list[tuple[int, int]]:
        """What goes through before it comes back: all, or up to where a gear here or below is due."""
        station, plan = self._station, self._station.plan
        if station.top:
            ends = set(range(1, count))
        elif station.machine.stash:
            ends = set()
        else:
            ends = {end for gear in range(station.gears[-1] + 1) for end in plan.due(gear, count)}
        return list(pairwise(sorted({0, *ends, count})))

    def _forward(self, number: int, beat: Beat, batch: Batch) -> None:
        station = self._station
        entry = self._enter(number, beat, batch)
        passes = []
        for gear, wheel in zip(station.gears, station.wheels, strict=True) if beat.rows else ():
            last = station.top and gear == station.gears[-1]
            # Only what has several updates in a block must look back; the top gear's blocks are one micro-batch.
            stash = station.machine.stash and not station.top and station.plan.speeds[gear] > 1
            turn = wheel.through(
                entry,
                want_entry=station.wants[gear],
                stash=stash,
                **({"compute": partial(station.loss, targets=beat.of(batch.targets))} if last else {}),
            )
            passes.append(turn)
            entry = turn.exit.detach()
        self._passes[number] = passes
        if self._up:
            if passes:
                self._up.give(number, entry, beat.count)
            if station.wants[station.gears[-1] + 1]:
                self._up.expect(number, beat.count)

    def _enter(self, number: int, beat: Beat, batch: Batch) -> Tensor:
        """What goes into the lowest gear here."""
        if self._down:
            return self._down.take(number)[0]
        return beat.of(batch.inputs)

    def _backward(self, number: int, beats: Sequence[Beat]) -> Tensor | None:
        """Through all gears here, from the top down; the mean loss of this worker's rows, on the top gear."""
        station, passes, count = self._station, self._passes[number], beats[number].count
        loss, gradient, poisons = None, None, list[Tensor]()
        if station.top and passes:
            loss = passes[-1].exit.detach()
            poisons = [loss - loss]
            gradient = torch.full_like(loss, len(beats[number].rows) / count)
        elif self._up and station.wants[station.gears[-1] + 1]:
            gradient, edges = self._up.take(number)
            poisons = [edge - edge for edge in edges]
        for gear, wheel in reversed(list(zip(station.gears, station.wheels, strict=True))):
            if gradient is not None and passes:
                turn = passes[gear - station.gears[0]]
                gradient = self._through_gear(gear, wheel, turn, gradient, count / self._samples(gear, number, beats))
            for poison in poisons:
                wheel.taint(poison)
        if self._down and station.wants[station.gears[0]] and gradient is not None and passes:
            for poison in poisons:
                gradient.view(-1)[0] += poison
            self._down.give(number, gradient, count)
        # Not earlier: the gears below wait for the gradient, and for no update here.
        for gear, wheel in zip(station.gears, station.wheels, strict=True):
            if number + 1 in station.plan.due(gear, len(beats)):
                wheel.update()
        return loss

    def _through_gear(self, gear: int, wheel: Wheel, turn: Pass, gradient: Tensor, weight: float) -> Tensor | None:
        """Back through one gear, weighted as a part of its update; what goes down is that of the micro-batch again."""
        below = wheel.back(turn, gradient if weight == 1 else gradient * weight)
        return below if below is None or weight == 1 else below / weight

    def _samples(self, gear: int, number: int, beats: Sequence[Beat]) -> int:
        """Samples in the update that micro-batch `number` is a part of."""
        due = self._station.plan.due(gear, len(beats))
        if not due:
            return beats[number].count
        ends = sorted({0, *due, len(beats)})
        begin, end = next((a, b) for a, b in pairwise(ends) if a <= number < b)
        return sum(beat.count for beat in beats[begin:end])

    def _replay(self, beats: Sequence[Beat], batch: Batch) -> None:
        """The top gear once more over the activations that it has."""
        station = self._station
        gear, wheel = station.gears[-1], station.wheels[-1]
        for number, beat in enumerate(beats):
            if beat.rows:
                compute = partial(station.loss, targets=beat.of(batch.targets))
                turn = wheel.through(self._passes[number][-1].entry, want_entry=False, compute=compute)
                loss = turn.exit.detach()
                weight = len(beat.rows) / self._samples(gear, number, beats)
                wheel.back(turn, torch.full_like(loss, weight))
                wheel.taint(loss - loss)
            if number + 1 in station.plan.due(gear, len(beats)):
                wheel.update()

    def state_dict(self) -> dict[str, Any]:
        return self._station.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._station.load_state_dict(state)

    def settle(self) -> None:
        self._station.gather()

    def finish(self) -> None:
        for mesh in (self._up, self._down):
            if mesh:
                mesh.settle()
        self._station.gather()

    def close(self) -> None:
        for wheel in self._station.wheels:
            wheel.close()
