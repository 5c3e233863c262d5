"""The matrix product behind an operation: its extents, read off the shapes in a `Work.key`.

product         (m, k) times (k, n), `count` at once
convolution     m = samples * extents of what comes out,  n = channels out,  k = channels in * kernel size,  per group
attention       m and n = lengths of queries and keys,  k = width of a head,  count = samples * heads
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from geartrain.cost.table import Key

_FIRST: Mapping[str, int] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot"), 0),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "_addmm_activation"), 1),
}
"""Operation -> which of its tensors is the first factor; the second one follows."""


@dataclass(frozen=True)
class Extents:
    """Of a product.

    Attributes:
        m, n, k: see the module.
        count: products at once.
        size: kernel of a convolution, like "3x3"; empty for others.
    """

    m: int
    n: int
    k: int
    count: int = 1
    size: str = ""

    @property
    def flop(self) -> float:
        """Operations, a multiply-add as two."""
        return 2.0 * self.m * self.n * self.k * self.count


def base_of(op: str) -> str:
    """ "addmm" of "aten.addmm.default"."""
    return op.split(".")[1] if "." in op else op


def product_extents(key: Key) -> Extents | None:
    """Of a matrix product; None for an operation that is none that is known."""
    op, shapes, _ = key
    first = _FIRST.get(base_of(op))
    if first is None or len(shapes) < first + 2:
        return None
    one, other = shapes[first], shapes[first + 1]
    if len(one) == 1:
        return Extents(1, 1, one[0])
    n = 1 if len(other) == 1 else other[-1]
    return Extents(one[-2], n, one[-1], math.prod(one[:-2]))


def convolution_extents(key: Key) -> Extents | None:
    """Of a convolution, or of the convolution whose backward pass it is; None where shapes do not tell."""
    op, shapes, _ = key
    backward = base_of(op) == "convolution_backward"
    if len(shapes) < 3:
        return None
    given, weight, out = (shapes[1], shapes[2], shapes[0]) if backward else (shapes[0], shapes[1], shapes[-1])
    if len(weight) < 3 or len(given) != len(weight) or len(out) != len(weight):
        return None
    groups = max(1, given[1] // weight[1]) if weight[1] else 1
    size = "x".join(map(str, weight[2:]))
    k = weight[1] * math.prod(weight[2:])
    return Extents(out[0] * math.prod(out[2:]), weight[0] // groups, k, groups, size)


def attention_extents(key: Key) -> Extents | None:
    """Of the product of queries and keys; None where shapes do not tell."""
    _, shapes, _ = key
    # In backward what comes first is the gradient of what came out, in the shape of the queries.
    if len(shapes) < 3 or not all(len(shape) == 4 for shape in shapes[:3]):
        return None
    samples, heads, length, width = shapes[0]
    return Extents(length, shapes[2][2], width, samples * heads)
