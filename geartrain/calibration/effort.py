"""How much is measured: repeats, sizes, and the time that one measurement may take."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from geartrain.runtime.context import Context

KiB, MiB = 2**10, 2**20


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        pings: ping-pongs of each ordered pair at most.
        messages: large ones of each ordered pair.
        repeats: of a collective or an operation at most.
        seconds: that one large message shall take, and that the repeats of one thing may take together, about.
        largest: bytes of the largest message between a pair.
        product: rows of the largest square matrices that are multiplied.
        exact: times are computed and never vary: one try each, of the largest sizes, and nothing to agree about.
    """

    pings: int
    messages: int
    repeats: int
    seconds: float
    largest: int
    product: int
    exact: bool = False

    def repeats_for(self, seconds: float, at_most: int) -> int:
        """How often something that takes so long is repeated: at least 3 times, once if times never vary."""
        if self.exact:
            return 1
        return max(3, min(at_most, int(self.seconds / max(seconds, 1e-9))))


USUAL = Effort(pings=1000, messages=8, repeats=20, seconds=0.2, largest=256 * MiB, product=8192)
QUICK = Effort(pings=200, messages=5, repeats=5, seconds=0.1, largest=32 * MiB, product=2048)
EXACT = Effort(pings=1, messages=1, repeats=1, seconds=0.0, largest=64 * MiB, product=8192, exact=True)
"""For a virtual clock."""


def finish_device(ctx: Context) -> None:
    """Wait until the rank's device has done what it was given: the clock is asked only then."""
    if ctx.device.type == "cuda":
        torch.cuda.synchronize(ctx.device)
