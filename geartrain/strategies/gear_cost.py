"""What a revolution of gears costs: bytes exactly, time by following every station through its micro-batches.

    forward of j in station s ends     at max(station free, h_j there) + f_s
    h_j is above                       at max(that, wire free) + n_j h / B + alpha,   the wire being free alpha earlier
    backward of j in station s ends    at max(station free, g_j there) + b_s  (+ update and all-reduce where it is due)

Messages of a mesh are taken to leave one after another; where wires are so slow that several travel at once, they share
them, and the first ones come later than this says. Stations go on to the next revolution as soon as they can; the time
of a step is the period of that. With one worker to a gear, free wires and speeds 1-R it is at most

    T = a_f + max(R (a_f + a_b), R b) + a_b

which is what `two_gears` says, and R (a_f + a_b) for the first term where the top is fast enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ComputeModel, Work, step_times
from geartrain.cost.placed import native_collective, travel
from geartrain.cost.terms import Cost, Traffic
from geartrain.strategies import closed_forms
from geartrain.strategies.gear_mesh import overlaps, rows_of
from geartrain.strategies.gear_speed import Plan, Times
from geartrain.workload.spec import UNUSED, Layer, Parameter, Workload

_HEADER = 24
_REVOLUTIONS = 6  # after a few, one is as long as the next


def two_gears(*, forward: float, backward: float, top: float, ratio: int) -> float:
    """T = a_f + max(R (a_f + a_b), R b) + a_b: seconds of a revolution of two gears, streaming, on free wires.

    Args:
        forward, backward: a_f and a_b, seconds of the bottom gear for a micro-batch.
        top: b, of the top gear, forward and backward.
        ratio: R.
    """
    return forward + max(ratio * (forward + backward), ratio * top) + backward


def balanced_speed(*, bottom: float, top: float, bottom_workers: int = 1, top_workers: int = 1) -> int:
    """R* = max(1, round((a/n_A) / (b/n_B)))."""
    return max(1, round((bottom / bottom_workers) / (top / top_workers)))


def mesh_bytes(*, activation: float, ratio: int) -> float:
    """2 R h: bytes that cross a mesh in a revolution, both ways together, between gears of one worker each."""
    return 2 * ratio * activation


@dataclass(frozen=True)
class _Times:
    """Seconds of a station for one micro-batch."""

    forward: float
    backward: float


class GearCost:
    """The closed form for one workload on one placement."""

    def __init__(self, workload: Workload, place: Placement, batch: int, model: ComputeModel) -> None:
        self._workload, self._place, self._batch, self._model = workload, place, batch, model
        self._layers = self._of_parts()

    def _of_parts(self) -> list[list[Layer]]:
        """The layers of each part; what lies between two, and the loss, belongs to the one before."""
        parts = self._workload.parts
        found: list[list[Layer]] = [[] for _ in parts]
        current = 0
        for layer in self._workload.layers:
            if layer.name != UNUSED:
                current = next((k for k, part in enumerate(parts) if part.holds(layer.name)), current)
                found[current if layer.name != "(loss)" else -1].append(layer)
        return found

    def times(self) -> Times:
        """What a plan is chosen by, as `gear_speed.measure` finds it in a run, on eight samples."""
        samples = 8
        per_part = [sum(self._seconds(layers, 0, samples)) for layers in self._layers]
        mesh = [0.0] * len(per_part)
        if self._place.num_workers > 1:
            sizes = [samples * part.numel * part.element_size for part in self._workload.parts]
            mesh = [travel(self._place, [(0, 1, size)]) + travel(self._place, [(1, 0, size)]) for size in sizes]
        return Times(parts=per_part, mesh=mesh)

    def _seconds(self, layers: Sequence[Layer], rank: int, samples: int) -> tuple[float, float]:
        """Forward and backward of some layers on a rank's device."""
        times = step_times(self._workload, self._place.device(rank), samples, self._model)
        at = [self._workload.layers.index(layer) for layer in layers]
        speed = self._place.speed(rank)
        return sum(times.forward[k] for k in at) / speed, sum(times.backward[k] for k in at) / speed

    def cost(self, plan: Plan, *, stash: bool, free: int, notes: Sequence[str]) -> Cost:
        """Of a plan.

        Args:
            stash: see `Gear`.
            free: Q of free gears; 0: they are meshed.
        """
        turn = _Revolution(self, plan, stash=stash)
        # Free gears replay only while they have nothing else to do.
        compute = max(turn.busy(index, replay=not free) for index in range(len(plan.stations)))
        if free:
            crossing = 2 * sum(turn.crossing(0))
            around = len(turn.sizes) * (sum(t.forward + t.backward for t in turn.station_times(0)) + crossing) / free
            period, apart = max(compute, around), compute
            notes = [
                *notes,
                "free gears: an estimate, from the busiest gear and from how many messages may be in flight",
            ]
        else:
            period, apart = turn.period(wires=True), turn.period(wires=False)
        exposed = max(0.0, period - apart)
        wires = sum(len(turn.sizes) * sum(turn.crossing(mesh)) for mesh in range(len(plan.stations) - 1))
        return Cost(
            compute=compute,
            exposed_communication=exposed,
            wait=max(0.0, apart - compute),
            hidden_communication=max(0.0, wires - exposed),
            sent=self._sent(plan, turn, free=bool(free)),
            memory=self._memory(plan, turn),
            notes=tuple(notes),
        )

    def parameters(self, gears: Sequence[int], plan: Plan) -> list[Parameter]:
        """Trainable tensors of some gears."""
        modules = [self._workload.parts[index] for gear in gears for index in plan.parts[gear]]
        return [p for p in self._workload.parameters if any(part.holds(p.name) for part in modules)]

    def trained(self, gear: int, plan: Plan) -> list[Parameter]:
        """Those that a gear updates."""
        return self.parameters([gear], plan) if plan.speeds[gear] else []

    def _sent(self, plan: Plan, turn: _Revolution, *, free: bool) -> tuple[Traffic, ...]:
        sent = [Traffic()] * self._place.num_ranks
        for index in range(len(plan.stations) - 1):
            lower, upper = turn.workers(index), turn.workers(index + 1)
            size = turn.row_bytes(index)
            for count in turn.sizes:
                pieces = [(rank, *piece) for rank in lower for piece in overlaps(count, lower, upper, rank)]
                for rank, other, rows in pieces:
                    length = turn.sizes[0] * size + _HEADER if free else (rows.stop - rows.start) * size
                    message = Traffic(nbytes=length, messages=1)
                    sent[rank] += message
                    if free or turn.comes_down(index):
                        sent[other] += message
        for gear, workers in enumerate(plan.workers):
            for _ in range(turn.updates(gear) if len(workers) > 1 else 0):
                _, each = self.all_reduce(gear, plan)
                for rank, traffic in zip(workers, each, strict=True):
                    sent[rank] += traffic
        return tuple(sent)

    def all_reduce(self, gear: int, plan: Plan) -> tuple[float, tuple[Traffic, ...]]:
        """Seconds and traffic of summing a gear's gradients over its workers."""
        size, workers = self._workload.element_size, plan.workers[gear]
        nbytes = sum(p.numel for p in self.trained(gear, plan)) * size
        if not nbytes or len(workers) == 1:
            return 0.0, (Traffic(),) * len(workers)
        return native_collective(self._place, "all_reduce", nbytes, size, workers)

    def updating(self, gear: int, plan: Plan) -> float:
        """Seconds of one update of a gear's worker, its all-reduce included."""
        own, rank = self.trained(gear, plan), plan.workers[gear][0]
        numel = sum(p.numel for p in own)
        if not numel:
            return 0.0
        seconds = closed_forms.update_time(self._place, rank, numel, len(own), self._workload, self._model)
        if len(plan.workers[gear]) > 1:
            seconds += self.moving(rank, 2 * numel, 1) + self.all_reduce(gear, plan)[0]
        return seconds

    def moving(self, rank: int, numel: float, kernels: int) -> float:
        """Seconds in which a rank reads or writes so many elements in so many kernels."""
        nbytes = numel * self._workload.element_size
        work = Work("move", 0.0, nbytes, self._workload.dtype, kernels)
        return closed_forms.work_time(work, self._place, rank, self._model) if kernels else 0.0

    def seconds(self, gear: int, plan: Plan, count: int, *, hands_down: bool) -> _Times:
        """Of one worker of a gear for a micro-batch of `count` samples.

        Args:
            hands_down: it computes the gradient of what went in: taken to be half of its first layer's backward, as in
                products and convolutions.
        """
        workers, found = plan.workers[gear], list[tuple[float, float]]()
        layers = [layer for index in plan.parts[gear] for layer in self._layers[index]]
        first = [layer for layer in layers if layer.parameters][:1]
        learns = hands_down or bool(self.trained(gear, plan))
        for rank in workers:
            rows = len(rows_of(count, workers, rank))
            forward, backward = self._seconds(layers, rank, rows) if rows else (0.0, 0.0)
            if gear and not hands_down and rows:
                backward -= self._seconds(first, rank, rows)[1] / 2
            found.append((forward, backward * learns))
        return _Times(max(f for f, _ in found), max(b for _, b in found))

    def travelling(self, plan: Plan, lower: range, upper: range, count: int, size: int) -> tuple[float, float]:
        """Seconds in which a micro-batch fills the wires of a mesh, and what it takes beside that to arrive."""
        flows = [
            (rank, other, (rows.stop - rows.start) * size)
            for rank in lower
            for other, rows in overlaps(count, lower, upper, rank)
        ]
        latency = max((self._place.route(source, target).latency for source, target, _ in flows), default=0.0)
        return max(0.0, travel(self._place, flows) - latency), latency

    def _memory(self, plan: Plan, turn: _Revolution) -> dict[str, int]:
        """On the worker that needs most; the whole model is there, the rest for its own gears."""
        workload, found = self._workload, dict[str, int]()
        for index, gears in enumerate(plan.stations):
            own = sum(p.numel for gear in gears for p in self.trained(gear, plan)) * workload.element_size
            rows = len(rows_of(turn.sizes[0], turn.workers(index), turn.workers(index)[0]))
            held = 1 if index == len(plan.stations) - 1 else len(turn.sizes)
            layers = [layer for gear in gears for part in plan.parts[gear] for layer in self._layers[part]]
            here = {
                "parameters": workload.gradient_bytes,
                "gradients": own,
                "optimizer": round(own * workload.optimizer_state),
                "activations": round(held * rows * sum(layer.activation for layer in layers)),
                "mesh": len(turn.sizes) * rows * turn.row_bytes(min(index, len(plan.stations) - 2))
                if index or held > 1
                else 0,
            }
            found = max(found, here, key=lambda memory: sum(memory.values()))
        return found


class _Revolution:
    """The stations of a plan, micro-batch by micro-batch."""

    def __init__(self, form: GearCost, plan: Plan, *, stash: bool) -> None:
        self._form, self._plan, self._stash = form, plan, stash
        count = min(plan.beats, form._batch)
        self.sizes = [len(rows_of(form._batch, range(count), beat)) for beat in range(count)]
        self._times = [[self._of_beat(index, beat) for beat in range(count)] for index in range(len(plan.stations))]

    def _of_beat(self, index: int, beat: int) -> _Times:
        gears, form, plan = self._plan.stations[index], self._form, self._plan
        each = [
            form.seconds(gear, plan, self.sizes[beat], hands_down=bool(gear) and self._trained_below(gear))
            for gear in gears
        ]
        forward = sum(t.forward for t in each) + (self._stashing(index) if beat == 0 else 0.0)
        adding = sum(self._adding(gear, beat) for gear in gears)
        # Marks of a loss that is not finite, in the gradients and in what is handed down, and the first gradient.
        marks = 1 + len(gears) + (1 if index and self._trained_below(gears[0]) else 0)
        marking = form.moving(plan.workers[gears[0]][0], 0.0, marks + (index == len(plan.stations) - 1))
        learns = self._trained_below(gears[-1] + 1)
        return _Times(forward, sum(t.backward for t in each) + (adding + marking if learns else 0.0))

    def _trained_below(self, gear: int) -> bool:
        return any(self._form.trained(one, self._plan) for one in range(gear))

    def _stashing(self, index: int) -> float:
        """A station below the top one copies the parameters of gears that update more than once."""
        if not self._stash or index == len(self._plan.stations) - 1:
            return 0.0
        seconds = 0.0
        for gear in self._plan.stations[index]:
            own = self._form.trained(gear, self._plan)
            if self._plan.speeds[gear] > 1:
                numel = 2 * sum(p.numel for p in own)
                seconds += self._form.moving(self._plan.workers[gear][0], numel, len(own))
        return seconds

    def _adding(self, gear: int, beat: int) -> float:
        """A gradient is added to those since the last update, if there are any."""
        due = self._plan.due(gear, len(self.sizes))
        if not due or beat == 0 or beat in due:
            return 0.0
        own = self._form.trained(gear, self._plan)
        return self._form.moving(self._plan.workers[gear][0], 3 * sum(p.numel for p in own), len(own))

    def workers(self, index: int) -> range:
        return self._plan.workers[self._plan.stations[index][0]]

    def row_bytes(self, index: int) -> int:
        """Of one sample in the mesh above a station; 0 above the last one."""
        if not 0 <= index < len(self._plan.stations) - 1:
            return 0
        part = self._form._workload.parts[self._plan.parts[self._plan.stations[index][-1]][-1]]
        return part.numel * part.element_size

    def comes_down(self, index: int) -> bool:
        """Whether gradients come down to a station."""
        return self._trained_below(self._plan.stations[index][-1] + 1)

    def updates(self, gear: int) -> int:
        """In a revolution, with replay."""
        last = gear == len(self._plan.parts) - 1
        trained = bool(self._form.trained(gear, self._plan))
        return trained * len(self._plan.due(gear, len(self.sizes))) * (1 + self._plan.replay * last)

    def station_times(self, beat: int) -> list[_Times]:
        """Of all stations."""
        return [times[beat] for times in self._times]

    def crossing(self, index: int) -> tuple[float, float]:
        """Of the first micro-batch in the mesh above a station."""
        return self._form.travelling(
            self._plan, self.workers(index), self.workers(index + 1), self.sizes[0], self.row_bytes(index)
        )

    def _replaying(self) -> float:
        """Seconds in which the top gear goes over what it has."""
        gear, times = len(self._plan.parts) - 1, 0.0
        for beat, count in enumerate(self.sizes):
            once = self._form.seconds(gear, self._plan, count, hands_down=False)
            times += once.forward + once.backward + self._adding(gear, beat)
        due = len(self._plan.due(gear, len(self.sizes)))
        return self._plan.replay * (times + due * self._form.updating(gear, self._plan))

    def busy(self, index: int, *, replay: bool = True) -> float:
        """Seconds in which a station computes or sums in a revolution."""
        gears = self._plan.stations[index]
        own = sum(t.forward + t.backward for t in self._times[index])
        own += sum(len(self._plan.due(gear, len(self.sizes))) * self._form.updating(gear, self._plan) for gear in gears)
        return own + (self._replaying() if replay and index == len(self._plan.stations) - 1 else 0.0)

    def _program(self, index: int) -> list[tuple[str, int]]:
        """What a station does in a revolution: ("up" or "down", micro-batch)."""
        count, plan = len(self.sizes), self._plan
        if index == len(plan.stations) - 1:
            ends = set(range(count))
        elif self._stash:
            ends = set()
        else:
            ends = {end for gear in range(plan.stations[index][-1] + 1) for end in plan.due(gear, count)}
        program = []
        for begin, end in pairwise(sorted({0, *ends, count})):
            program += [("up", beat) for beat in range(begin, end)]
            program += [("down", beat) for beat in range(begin, end)]
        return program

    def period(self, *, wires: bool) -> float:
        """Seconds from one revolution to the next, once they are alike."""
        stations = len(self._plan.stations)
        clock, ends = [0.0] * stations, [0.0]
        free = {(way, mesh): 0.0 for way in ("up", "down") for mesh in range(stations)}
        for _ in range(_REVOLUTIONS):
            self._revolve(clock, free, wires=wires)
            ends.append(max(clock))
        return ends[-1] - ends[-2]

    def _revolve(self, clock: list[float], free: dict[tuple[str, int], float], *, wires: bool) -> None:
        """Move the stations' clocks, and the times at which wires are free, over one revolution."""
        last = len(clock) - 1
        programs = [self._program(index) for index in range(last + 1)]
        there: dict[tuple[str, int, int], float] = {("up", 0, beat): 0.0 for beat in range(len(self.sizes))}
        there |= {
            ("down", index, beat): 0.0
            for index in range(last + 1)
            for beat in range(len(self.sizes))
            if index == last or not self.comes_down(index)
        }
        while any(programs):
            for index, program in enumerate(programs):
                while program and (program[0][0], index, program[0][1]) in there:
                    way, beat = program.pop(0)
                    clock[index] = max(clock[index], there[way, index, beat]) + self._step(index, way, beat)
                    self._hand_on(clock[index], index, way, beat, there, free, wires=wires)
                    clock[index] += self._updates_after(index, way, beat)
        clock[last] += self._replaying()

    def _step(self, index: int, way: str, beat: int) -> float:
        times = self._times[index][beat]
        return times.forward if way == "up" else times.backward

    def _updates_after(self, index: int, way: str, beat: int) -> float:
        if way == "up":
            return 0.0
        count = len(self.sizes)
        due = [gear for gear in self._plan.stations[index] if beat + 1 in self._plan.due(gear, count)]
        return sum(self._form.updating(gear, self._plan) for gear in due)

    def _hand_on(
        self,
        now: float,
        index: int,
        way: str,
        beat: int,
        there: dict[tuple[str, int, int], float],
        free: dict[tuple[str, int], float],
        *,
        wires: bool,
    ) -> None:
        """What has been computed goes to the neighbour."""
        target = index + 1 if way == "up" else index - 1
        if not 0 <= target < len(self._plan.stations) or (way == "down" and not self.comes_down(target)):
            return
        mesh = min(index, target)
        filling, latency = self.crossing(mesh) if wires else (0.0, 0.0)
        begin = max(now, free[way, mesh])
        free[way, mesh] = begin + filling
        there[way, target, beat] = begin + filling + latency
