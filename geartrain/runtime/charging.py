"""How code says what computing costs, or that it shall cost nothing.

The simulated engine listens, per thread; on other engines nobody does and a charge is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from geartrain.cost.compute import Work


class _State(threading.local):
    listener: Callable[[Work], None] | None = None
    paused: bool = False
    insisted: bool = False


_state = _State()


def charge(work: Work) -> None:
    """Charge `work` to the device of the calling rank, for code that only pretends to compute."""
    if _state.listener is not None and not _state.paused:
        _state.listener(work)


def listen(listener: Callable[[Work], None] | None) -> None:
    """Set who keeps account of this thread's work."""
    _state.listener = listener


def paused() -> bool:
    """Whether this thread's work is free at the moment."""
    return _state.paused


@contextmanager
def uncharged() -> Iterator[None]:
    """What runs inside costs no virtual time, e.g. evaluation."""
    before, _state.paused = _state.paused, not _state.insisted
    try:
        yield
    finally:
        _state.paused = before


@contextmanager
def charged() -> Iterator[None]:
    """What runs inside is charged even where it says itself that it is not."""
    before, _state.insisted = _state.insisted, True
    try:
        yield
    finally:
        _state.insisted = before
