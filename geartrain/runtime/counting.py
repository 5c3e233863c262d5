"""What a piece of tensor code costs a device, found by running it on meta tensors: for closed forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geartrain.cost.compute import Work
from geartrain.runtime.charging import charged_to
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.torch_private import DispatchMode

Price = Callable[[Callable[[], object]], float]
"""Seconds that running something takes."""

_COSTS = OpCosts()


class _List(DispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.works: list[Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        work = _COSTS(func, args, kwargs, out)
        if work is not FREE:
            self.works.append(work)
        return out


def works_of(run: Callable[[], object]) -> tuple[Work, ...]:
    """The work of everything that runs inside, operation by operation, as the simulator charges it."""
    with charged_to(None), _List() as listed:
        run()
    return tuple(listed.works)
