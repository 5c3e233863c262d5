"""Models that cannot be traced on shapes alone: which line of the user's stops it, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Around tracing of a model of that name; errors pass as they are."""
    yield
