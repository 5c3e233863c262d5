"""Numbers as integers that a switch can add: block floating point, one factor for all, integers as they are.

A chunk is the k numbers of one packet. Its exponent is the least e with 2^e > max|x|, and E the largest one of all
workers, which the switch finds. With n workers

    f   = 2^(floor(log2((2^31 - 1) / n)) - E)      the factor of a chunk: a power of two
    q_i = round(f * x_i)                           to the nearest, as 32 bits
    sum = (sum_i q_i) / f,   |error| <= n / (2 f)  and the rounding of the result to the tensor's own type

Nothing overflows: |f x_i| < (2^31 - 1)/n, so |q_i| <= (2^31 - 1)/n. A factor that is a power of two rounds nothing
itself, so numbers whose bits all fit are exact: integers below 2^(31 - log2 n). Every worker computes the same from the
same integers, so all get the same bits.

What is not finite cannot be sent. The exponent says so in its stead, being larger than any other, and the chunk is NaN
on all workers.

Source: SwitchML, section on fixed-point numbers, recalled; exponents as in the authors' code, which takes f =
(2^31 - 1)/(n 2^E): at most one bit more, and integers are no longer exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from geartrain.errors import RunError

Chunks = NDArray[Any]
"""[number of chunks, k] of float32, float64 or int32."""
Words = NDArray[np.int32]

NOTHING = -(1 << 15)
"""The exponent of a chunk that has none."""
TOO_LARGE, NOT_FINITE = (1 << 15) - 2, (1 << 15) - 1
LEAST = -96
"""The least exponent that is used: below, 1 / f would leave the range of float32. What is smaller is rounded to it."""
LARGEST = (1 << 31) - 1


class Numbers(ABC):
    """How the chunks of a tensor become integers and their sum becomes numbers again.

    Attributes:
        ahead: the exponent of a chunk must be agreed on before its integers are sent.
    """

    ahead: bool

    @abstractmethod
    def exponents(self, chunks: Chunks) -> Words:
        """What this worker says of each chunk; the switch finds the largest of all workers."""

    @abstractmethod
    def quantise(self, chunks: Chunks, exponents: Words) -> Words:
        """Integers, by the exponents of all workers where those are sent ahead, else by this worker's own."""

    @abstractmethod
    def restore(self, sums: Words, exponents: Words) -> Chunks:
        """The sums of all workers' numbers, by the exponents of all workers."""


class BlockFloatingPoint(Numbers):
    """A factor for each chunk; see the module.

    Args:
        num_workers: n.
        dtype: float32 or float64.
    """

    ahead = True

    def __init__(self, num_workers: int, dtype: Any = np.float32) -> None:
        self._shift, self._dtype = (LARGEST // num_workers).bit_length() - 1, dtype

    def factors(self, exponents: Words) -> NDArray[Any]:
        """f of each chunk."""
        return np.ldexp(np.ones(1, self._dtype), self._shift - exponents)

    def exponents(self, chunks: Chunks) -> Words:
        largest = np.maximum(chunks.max(axis=1), -chunks.min(axis=1))
        finite = np.isfinite(largest)
        found = np.frexp(np.where(finite, largest, 0))[1]
        found = np.where(largest > 0, np.maximum(found, LEAST), LEAST)  # zeros have no say
        return np.where(finite, found, NOT_FINITE).astype(np.int32)

    def quantise(self, chunks: Chunks, exponents: Words) -> Words:
        chunks, exponents = _without_bad(chunks, exponents)
        integers: Words = np.rint(chunks * self.factors(exponents)[:, None]).astype(np.int32)
        return integers

    def restore(self, sums: Words, exponents: Words) -> Chunks:
        bad = exponents == NOT_FINITE
        factors = self.factors(np.where(bad, 0, exponents).astype(np.int32))
        restored: Chunks = sums.astype(self._dtype)
        restored /= factors[:, None]
        if bad.any():
            restored[bad] = np.nan
        return restored


class FixedFactor(Numbers):
    """The same factor for all chunks, so that nothing has to be agreed on; q = round(f x), as above.

    Args:
        num_workers: n.
        factor: f; a power of two keeps exact what is.
        dtype: float32 or float64.

    A number above (2^31 - n)/(n f) could overflow: then all workers raise a RunError.
    """

    ahead = False

    def __init__(self, num_workers: int, factor: float, dtype: Any = np.float32) -> None:
        self._factor, self._dtype = factor, dtype
        self._most = (LARGEST + 1 - num_workers) / (num_workers * factor)

    def exponents(self, chunks: Chunks) -> Words:
        largest = np.maximum(chunks.max(axis=1), -chunks.min(axis=1))
        found = np.where(largest <= self._most, NOTHING, TOO_LARGE)
        return np.where(np.isfinite(largest), found, NOT_FINITE).astype(np.int32)

    def quantise(self, chunks: Chunks, exponents: Words) -> Words:
        chunks, _ = _without_bad(chunks, exponents)
        # In float64: the product with any factor is rounded once, to the integer.
        return np.rint(chunks * np.float64(self._factor)).astype(np.int32)

    def restore(self, sums: Words, exponents: Words) -> Chunks:
        if (exponents == TOO_LARGE).any():
            raise RunError(
                f"a worker has a gradient above {self._most:.3g}, which the factor {self._factor:g} cannot carry: the "
                "sum could overflow.\n  take a smaller factor, or factor=none for block floating point"
            )
        restored: Chunks = (sums / np.float64(self._factor)).astype(self._dtype)
        bad = exponents == NOT_FINITE
        if bad.any():
            restored[bad] = np.nan
        return restored


class Integers(Numbers):
    """Integers of 32 bits: nothing is scaled, and sums wrap around as integers do."""

    ahead = False

    def exponents(self, chunks: Chunks) -> Words:
        return np.full(len(chunks), NOTHING, np.int32)

    def quantise(self, chunks: Chunks, exponents: Words) -> Words:
        return chunks

    def restore(self, sums: Words, exponents: Words) -> Chunks:
        return sums


def _without_bad(chunks: Chunks, exponents: Words) -> tuple[Chunks, Words]:
    """The same with zeros in place of chunks that cannot be sent."""
    bad = exponents >= TOO_LARGE
    if not bad.any():
        return chunks, exponents
    return np.where(bad[:, None], 0, chunks).astype(chunks.dtype), np.where(bad, 0, exponents).astype(np.int32)
