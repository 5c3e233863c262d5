"""The kernels of a layer, from the operations that it ran at two batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from geartrain.cost.compute import Work
from geartrain.workload.spec import Extent, Kernel, Line, Lookup

_LOOKUPS = {"aten.embedding.default": (0, 1), "aten._embedding_bag.default": (0, 1)}
"""Operation -> which of its tensors are the table and the numbers of the rows."""


class Kernels:
    """Makes kernels of pairs of works, the same operation at two batch sizes.

    Equal kernels, and equal lists of them, are one object: a model repeats its blocks, and what is worked out for one
    need not be worked out again for another.

    Args:
        batches: the two batch sizes.
    """

    def __init__(self, batches: tuple[int, int]) -> None:
        self._small, self._large = batches
        self._kernels: dict[tuple[int, int], Kernel | None] = {}
        self._lists: dict[tuple[Kernel, ...], tuple[Kernel, ...]] = {}

    def line(self, small: float, large: float) -> Line:
        """(fixed, per sample); what shrinks with the batch is taken as fixed."""
        slope = max((large - small) / (self._large - self._small), 0.0)
        return max(small - self._small * slope, 0.0), slope

    def of(self, small: Sequence[Work], large: Sequence[Work]) -> tuple[Kernel, ...]:
        """The kernels in order; none where the operations are not the same, or not of the same dimensions."""
        found = [self._kernel(*pair) for pair in zip(small, large, strict=False)]
        kernels = [kernel for kernel in found if kernel is not None]
        if len(small) != len(large) or len(kernels) != len(found):
            return ()
        runs = ((kernel, sum(1 for _ in run)) for kernel, run in groupby(kernels))
        whole = tuple(_repeated(kernel, count) for kernel, count in runs)
        return self._lists.setdefault(whole, whole)

    def _kernel(self, small: Work, large: Work) -> Kernel | None:
        # Whoever counts costs hands out the same object for the same operation; the caller holds all of them.
        key = (id(small), id(large))
        if key not in self._kernels:
            self._kernels[key] = self._make(small, large)
        return self._kernels[key]

    def _make(self, small: Work, large: Work) -> Kernel | None:
        op, shapes, dtypes = small.key
        same = large.key[0] == op and large.key[2] == dtypes and len(large.key[1]) == len(shapes)
        if not same or any(len(a) != len(b) for a, b in zip(shapes, large.key[1], strict=True)):
            return None
        extents = tuple(
            tuple(self._extent(a, b) for a, b in zip(*pair, strict=True))
            for pair in zip(shapes, large.key[1], strict=True)
        )
        return Kernel(
            op=op,
            shapes=extents,
            dtypes=dtypes,
            flop=self.line(small.flop, large.flop),
            nbytes=self.line(small.nbytes, large.nbytes),
            dtype=small.dtype,
            lookup=self._lookup(op, extents),
        )

    def _extent(self, small: int, large: int) -> Extent:
        each = round((large - small) / (self._large - self._small))
        return small - self._small * each, each

    def _lookup(self, op: str, extents: Sequence[Sequence[Extent]]) -> Lookup | None:
        if op not in _LOOKUPS:
            return None
        table, places = (extents[at] for at in _LOOKUPS[op])
        numbers = 1
        for fixed, each in places:
            numbers *= fixed + self._small * each
        return Lookup(rows=table[0][0], width=table[1][0], per_sample=numbers / self._small)


def _repeated(kernel: Kernel, count: int) -> Kernel:
    return kernel if count == 1 else replace(kernel, count=count)
