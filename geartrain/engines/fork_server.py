"""Loaded by the server that ranks are forked from, after all else that it loads, and by nobody else."""

from __future__ import annotations

import atexit
import gc
import os

_SERVER = os.getpid()


def _end_at_once() -> None:
    """The server has nothing to put in order; unloading PyTorch takes seconds, with the program's output held open."""
    if os.getpid() == _SERVER:
        os._exit(0)


atexit.register(_end_at_once)

# What is loaded now lives as long as the ranks do: their collectors need not look at it, nor copy its pages.
gc.collect()
gc.freeze()
