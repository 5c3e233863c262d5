"""How long a kernel of one kind takes on one device, as fitted to measurements."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

from geartrain.errors import ConfigurationError


@dataclass(frozen=True)
class TimeCurve:
    """Time over bytes moved: straight lines in logarithms between points, of the last slope beyond them.

    Args:
        points: (bytes, seconds), both rising; bytes strictly. One alone: time grows in proportion to bytes.
    """

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        sizes, times = [size for size, _ in self.points], [seconds for _, seconds in self.points]
        positive = bool(self.points) and min(*sizes, *times) > 0 and math.isfinite(max(*sizes, *times))
        if not positive or sorted(set(sizes)) != sizes or sorted(times) != times:
            raise ConfigurationError(
                f"a curve needs (bytes, seconds) above zero, both rising, not {self.points!r}; sort the points and "
                "give one for each size"
            )

    def seconds(self, nbytes: float) -> float:
        """What a kernel that moves so many bytes takes; one that moves less than a byte takes what one byte takes."""
        points, size = self.points, max(nbytes, 1.0)
        if len(points) == 1:
            return points[0][1] * size / points[0][0]
        right = min(max(bisect_left(points, (size, 0.0)), 1), len(points) - 1)
        (x0, y0), (x1, y1) = points[right - 1], points[right]
        slope = math.log(y1 / y0) / math.log(x1 / x0)
        return y0 * math.pow(size / x0, slope)


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

    def __post_init__(self) -> None:
        if not (self.rate > 0 and len(self.halves) == 3 and min(*self.halves, self.overhead) >= 0):
            raise ConfigurationError(
                f"a product's fit has a rate above zero, three extents and an overhead of zero or more, not {self!r}"
            )

    def seconds(self, m: float, n: float, k: float, count: float = 1) -> float:
        """What `count` products at once take."""
        # m / (m / (m + h0)) is m + h0, which is also right for an extent of zero.
        h0, h1, h2 = self.halves
        empty = not (m and n and k)
        return self.overhead + (0.0 if empty else 2.0 * count * (m + h0) * (n + h1) * (k + h2) / self.rate)
