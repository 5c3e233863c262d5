"""The operations of a training step: each with what it is given, and how long ago the step touched that.

A step goes through its motions under the simulated engine, on shapes, or with numbers where those matter; no time is
taken.
What an operation takes depends on where its tensors lie, so each is noted with its distance:

    distance of a tensor    bytes that the step moved since it touched this tensor last
    distance of a result    bytes that the step moved since it gave back memory of this size last

Source: distances of reuse as in Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage hierarchies"
(1970), recalled; counted here in bytes moved and not in distinct ones.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from geartrain.cluster.load import local_cluster
from geartrain.cost.compute import Work
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.charging import paused
from geartrain.runtime.context import Context
from geartrain.runtime.loop import Training
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.torch_private import DispatchMode, in_backward

Phase = Literal["forward", "backward", "update"]

NEVER = math.inf
"""The distance of what the step has not touched before."""

STEPS = 3
"""That are gone through at least."""


@dataclass(frozen=True)
class Shape:
    """A tensor as an operation saw it.

    Attributes:
        shape, stride, dtype: of it.
        distance: bytes that the step moved since it touched it.
        zeros: the share of its elements that is zero, where there were numbers; some functions take longer over them.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    distance: float
    zeros: float = 0.0

    @property
    def nbytes(self) -> int:
        """Of its elements, as they lie."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass(frozen=True)
class Call:
    """One operation of a step, with `Shape`s where it has tensors.

    Attributes:
        func: the operation.
        args, kwargs: what it was given.
        work: what it costs; its key is what a table knows it by.
        fresh: distance of its result.
        phase: in which part of the step it ran; what comes after backward belongs to the update.
        memory: what was taken and given back since the operation before, its own result last, in order:
            (number of a block, its bytes), and (number, 0) when it is given back.
    """

    func: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    work: Work
    fresh: float
    phase: Phase = "forward"
    memory: tuple[tuple[int, int], ...] = ()


def replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """The arguments with every value of a kind replaced, through lists."""
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, list | tuple):
        return [replaced(item, kind, by) for item in value]
    if isinstance(value, Mapping):
        return {key: replaced(item, kind, by) for key, item in value.items()}
    return value


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors among the arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))


@dataclass
class _Memory:
    """What a step has touched and given back; `moved` is the bytes so far."""

    moved: float = 0.0
    touched: dict[int, float] = field(default_factory=dict)
    freed: dict[int, list[float]] = field(default_factory=dict)
    events: list[tuple[int, int]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    blocks: int = 0

    def distance(self, tensor: Tensor) -> float:
        return self.moved - self.touched.get(_place(tensor), -NEVER)

    def reused(self, nbytes: int) -> float:
        """Takes the memory of that size that was given back last."""
        there = self.freed.get(nbytes)
        return self.moved - there.pop() if there else NEVER

    def meet(self, tensors: Sequence[Tensor]) -> None:
        """Note those whose memory is new."""
        for tensor in tensors:
            place, storage = _place(tensor), tensor.untyped_storage()
            if place not in self.numbers and storage.nbytes():
                self.blocks += 1
                self.numbers[place] = self.blocks
                self.events.append((self.blocks, storage.nbytes()))
                weakref.finalize(storage, self._give_back, place, storage.nbytes())

    def touch(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self.touched[_place(tensor)] = self.moved

    def take_events(self) -> tuple[tuple[int, int], ...]:
        events, self.events = tuple(self.events), []
        return events

    def _give_back(self, place: int, nbytes: int) -> None:
        self.touched.pop(place, None)
        self.events.append((self.numbers.pop(place), 0))
        self.freed.setdefault(nbytes, []).append(self.moved)


def _place(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Recorder(DispatchMode):
    """Notes every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._costs, self._memory = OpCosts(), _Memory()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        shapes = replaced((args, kwargs), Tensor, self._shape)
        out = func(*args, **kwargs)
        inside = list(tensors((args, kwargs)))
        outside = [one for one in tensors(out) if not any(one is other for other in inside)]
        if all(one.layout is torch.strided for one in (*inside, *outside)):
            self._memory.meet(inside)
            work = self._costs(func, args, kwargs, out)
            if work is FREE or paused():
                self._memory.meet(outside)
            else:
                self._note(Call(func, shapes[0], shapes[1], work, 0.0), inside, outside)
        return out

    def _note(self, call: Call, inside: list[Tensor], outside: list[Tensor]) -> None:
        memory = self._memory
        fresh = max((memory.reused(one.untyped_storage().nbytes()) for one in outside), default=0.0)
        memory.meet(outside)
        phase: Phase = "backward" if in_backward() else "forward"
        self.calls.append(replace(call, fresh=fresh, phase=phase, memory=memory.take_events()))
        memory.touch([*inside, *outside])  # as if at its begin: what it moves itself comes between, too
        memory.moved += call.work.nbytes

    def _shape(self, tensor: Tensor) -> Any:
        if tensor.layout is not torch.strided:
            return tensor
        distance, zeros = self._memory.distance(tensor), 0.0
        if tensor.device.type != "meta" and tensor.is_floating_point() and tensor.numel():
            zeros = 1.0 - int(tensor.count_nonzero()) / tensor.numel()
        return Shape(tuple(tensor.shape), tensor.stride(), tensor.dtype, distance, zeros)


@dataclass(frozen=True)
class Recorded:
    """The operations of a run's worker 0.

    Attributes:
        before: of everything up to the last step: the model is made, the first steps are taken.
        step: of the last step.
    """

    before: list[Call]
    step: list[Call]


@dataclass(frozen=True)
class _Recording:
    """`main(ctx)` of the recorded run."""

    training: Training

    def __call__(self, ctx: Context) -> Recorded | None:
        if ctx.rank != 0:
            self.training(ctx)
            return None
        recorder, begin, mark = _Recorder(), 0, ctx.mark_step

        def noted(step: int, phase: Literal["begin", "end"], **values: Any) -> None:
            nonlocal begin
            begin = len(recorder.calls) if phase == "begin" else begin
            mark(step, phase, **values)

        ctx.mark_step = noted  # type: ignore[method-assign]
        with recorder:
            self.training(ctx)
        return Recorded(recorder.calls[:begin], _with_update(recorder.calls[begin:]))


def _with_update(calls: list[Call]) -> list[Call]:
    last = max((index for index, call in enumerate(calls) if call.phase == "backward"), default=len(calls))
    return calls[: last + 1] + [replace(call, phase="update") for call in calls[last + 1 :]]


def record_step(training: Training, workers: int, *, numbers: bool = False, steps: int = STEPS) -> Recorded:
    """The operations of one step of worker 0, in order, as any engine has it run them.

    Args:
        training: what is trained and how; its own number of steps does not matter.
        workers: how many train.
        numbers: compute, which tells how many zeros there are; else only shapes are known.
        steps: how many are gone through, of which the last is recorded; at least 3, as the first makes what the
            optimizer keeps and the second has no distances to it.

    Raises StrategyError where shapes do not say what a strategy does.
    """
    few = replace(training, steps=max(STEPS, steps), evaluate=False, checkpoints=None, targets=None)
    run = SimulatedEngine().run(_Recording(few), local_cluster(), workers=workers, meta=not numbers)
    recorded: Recorded = run.results[0]
    return recorded
