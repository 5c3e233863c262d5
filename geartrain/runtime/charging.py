"""How code says what computing costs, or that it shall cost nothing.

The simulated engine keeps an account per thread; on other engines nobody does and a charge is free.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from geartrain.cost.compute import Work


class Works:
    """Work that is charged again and again in this order. Compared by identity, so that its price is found at once."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Work, ...]) -> None:
        self.items = items


class Account(Protocol):
    """Who is told of a thread's work."""

    def charge(self, work: Work) -> None: ...

    def charge_all(self, works: Works) -> None:
        """As `charge`, one after another."""


class _State(threading.local):
    account: Account | None = None
    paused: bool = False
    insisted: bool = False


_state = _State()


def charge(work: Work) -> None:
    """Charge `work` to the device of the calling rank, for code that only pretends to compute."""
    if _state.account is not None and not _state.paused:
        _state.account.charge(work)


def charge_all(works: Works) -> None:
    """Charge every one of them, in order."""
    if _state.account is not None and not _state.paused:
        _state.account.charge_all(works)


def listen(account: Account | None) -> None:
    """Set who keeps account of this thread's work."""
    _state.account = account


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


@contextmanager
def charged_to(account: Account | None) -> Iterator[None]:
    """What runs inside is charged to another account, or to none."""
    before = _state.account, _state.paused
    _state.account, _state.paused = account, False
    try:
        yield
    finally:
        _state.account, _state.paused = before
