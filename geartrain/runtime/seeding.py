"""One seed for a run, a stream of its own for each rank and purpose."""

from __future__ import annotations

import hashlib


def stream_seed(seed: int, rank: int, purpose: str) -> int:
    """A seed for (run, rank, purpose): the same on every machine and engine, different for different purposes."""
    digest = hashlib.blake2b(f"{seed}/{rank}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
