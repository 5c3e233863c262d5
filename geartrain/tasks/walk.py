"""Recorded walks: what a stand-in's backward does, written down once per distinct role and replayed on all who play it.

A walk through a model costs some ten milliseconds of real time, and on shapes alone it is the same for every rank and
step that takes as many samples with its gradients in the same state. So the first of them is recorded:

    role = (samples, for each parameter: trained?, has a gradient already?)
    walk = (work, parameter whose gradient is complete then), ..., work after the last

and all others charge the same work in the same order and call the same hooks in between. Only the walk is replayed: a
strategy's own code runs on every rank, so whom it talks to, in which order and when may depend on the rank, on chance
and on what arrives first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.cost.compute import Work
from geartrain.runtime.charging import Works, charged_to
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.torch_private import DispatchMode, without_dispatch

State = tuple[bool, bool]
"""Of a parameter: whether it is trained, and whether it has a gradient already."""


@dataclass(frozen=True)
class Walk:
    """A backward that was written down.

    Attributes:
        stops: work, and the parameter (by position) whose gradient is complete after it.
        rest: work after the last of them.
    """

    stops: tuple[tuple[Works, int], ...]
    rest: Works


class Tape(DispatchMode):
    """Writes down work, of operations and of charges, and the stops in between; lets nobody else see them."""

    def __init__(self) -> None:
        super().__init__()
        self._costs = OpCosts()
        self._stops: list[tuple[Works, int]] = []
        self._work: list[Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with without_dispatch():
            result = func(*args, **(kwargs or {}))
        work = self._costs(func, args, kwargs, result)
        if work is not FREE:
            self._work.append(work)
        return result

    def charge(self, work: Work) -> None:
        self._work.append(work)

    def charge_all(self, works: Works) -> None:
        self._work += works.items

    def stop(self, position: int) -> None:
        """The gradient of this parameter is complete."""
        self._stops.append((self._take(), position))

    def end(self) -> Walk:
        """All that was written down."""
        return Walk(tuple(self._stops), self._take())

    def _take(self) -> Works:
        works, self._work = Works(tuple(self._work)), []
        return works


def record(model: nn.Module, states: Sequence[State], forward: Callable[[], Tensor]) -> Walk:
    """Write down the backward of a scratch model that nobody else uses.

    Args:
        model: its parameters are on the meta device.
        states: to bring its parameters into.
        forward: of the model; returns the loss.
    """
    tape = Tape()
    for position, (parameter, (trained, has_gradient)) in enumerate(zip(model.parameters(), states, strict=True)):
        parameter.requires_grad_(trained)
        parameter.grad = parameter.new_empty(parameter.shape) if has_gradient else None
        if trained:
            parameter.register_post_accumulate_grad_hook(lambda _, position=position: tape.stop(position))
    with torch.enable_grad():  # the first who comes is inside a backward
        with charged_to(None):
            loss = forward()
        with charged_to(tape), tape:
            loss.backward()
    return tape.end()
