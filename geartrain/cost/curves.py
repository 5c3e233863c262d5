"""How long a kernel of one kind takes on one device, as fitted to measurements."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TimeCurve:
    """Time over bytes moved: straight lines in logarithms between points, of the last slope beyond them.

    Args:
        points: (bytes, seconds), both rising.
    """

    points: tuple[tuple[float, float], ...]

    def seconds(self, nbytes: float) -> float:
        """What a kernel that moves so many bytes takes."""
        raise NotImplementedError("curves are not read yet")


@dataclass(frozen=True)
class ProductFit:
    """A matrix product of (m, k) and (k, n), whose rate grows with each extent.

        seconds = overhead + 2 m n k / (rate * m / (m + h0) * n / (n + h1) * k / (k + h2))

    For a convolution m is samples * height * width of what comes out, n its channels, k channels in * kernel size.

    Args:
        rate: FLOP per second of a large one.
        halves: h0, h1, h2: the extents at which half of the rate is reached.
        overhead: seconds.
    """

    rate: float
    halves: tuple[float, float, float]
    overhead: float

    def seconds(self, m: float, n: float, k: float, count: float = 1) -> float:
        """What `count` products at once take."""
        raise NotImplementedError("fits are not read yet")
