"""Signals that end a program become errors in the process that waits for ranks."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def signals_raised(error: Callable[[str], BaseException]) -> Iterator[None]:
    """Signals that end a program become errors here, so that the record so far is kept; only in the main thread.

    Args:
        error: makes what is raised, from a name like "SIGTERM".
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def received(number: int, frame: Any) -> None:
        raise error(signal.Signals(number).name)

    before = {number: signal.signal(number, received) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
