"""What a piece of tensor code costs a device, found by running it on meta tensors: for closed forms."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from geartrain.cost.compute import Work
from geartrain.cost.memo import Memo
from geartrain.runtime.charging import charged_to
from geartrain.runtime.opcost import FREE, OpCosts
from geartrain.torch_private import DispatchMode

Price = Callable[[Sequence[Work]], float]
"""Seconds of work that is done in a row, on the slowest worker."""

_COSTS = OpCosts()
_known: Memo[tuple[Work, ...]] = Memo(4096)


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


def works_of(run: Callable[[], object], *known_as: Hashable) -> tuple[Work, ...]:
    """The work of everything that runs inside, operation by operation, as the simulator charges it.

    Args:
        run: tensor code.
        known_as: what its work depends on; what is known already is not run again. Nothing: it is run.
    """
    return _known.get(known_as, lambda: _count(run)) if known_as else _count(run)


def _count(run: Callable[[], object]) -> tuple[Work, ...]:
    with charged_to(None), _List() as listed:
        run()
    return tuple(listed.works)
