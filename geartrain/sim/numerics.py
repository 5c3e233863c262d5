"""What a collective does to the tensors of its ranks, once all have entered it. No time here.

Sums are taken in rank order, and an average divides the sum, so two ranks give gloo's result bit for bit; above two,
gloo adds in the order of its algorithm and the results differ in the last bits. Data is written without counting a new
version of the tensor, as a backend in C++ does, so autograd sees what it sees with gloo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from geartrain.torch_private import Call, without_dispatch

_COMBINE: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "sum": lambda total, x: total.add_(x),
    "avg": lambda total, x: total.add_(x),
    "product": lambda total, x: total.mul_(x),
    "min": lambda total, x: torch.minimum(total, x, out=total),
    "max": lambda total, x: torch.maximum(total, x, out=total),
    "band": lambda total, x: total.bitwise_and_(x),
    "bor": lambda total, x: total.bitwise_or_(x),
    "bxor": lambda total, x: total.bitwise_xor_(x),
}
REDUCTIONS = frozenset(_COMBINE)
"""Names of the reductions that can be performed: gloo's."""


def perform(calls: Sequence[Call]) -> None:
    """Move the numbers of one collective; `calls` are in group-rank order."""
    move = _MOVES.get(calls[0].kind)
    if move is None:
        return
    with torch.no_grad(), without_dispatch():
        for position in range(len(calls[0].items)):
            move(calls, position)


def copy(target: Tensor, source: Tensor) -> None:
    """Write `source` into `target`, which has as many elements."""
    if target.is_meta or source.is_meta or target.numel() == 0:
        return
    target, source = target.data, source.data
    target.copy_(source if source.shape == target.shape else source.reshape(target.shape))


def reduced(tensors: Sequence[Tensor], name: str) -> Tensor:
    """A new tensor: the tensors combined in order by the reduction of this name."""
    combine = _COMBINE[name]
    total = tensors[0].data.clone()
    if total.is_meta:
        return total
    for tensor in tensors[1:]:
        combine(total, tensor.data)
    if name == "avg":
        total.div_(len(tensors), rounding_mode=None if total.is_floating_point() or total.is_complex() else "trunc")
    return total


def _all_reduce(calls: Sequence[Call], position: int) -> None:
    total = reduced([call.items[position].gives[0] for call in calls], calls[0].op)
    for call in calls:
        copy(call.items[position].gets[0], total)


def _broadcast(calls: Sequence[Call], position: int) -> None:
    root = calls[0].root
    given = calls[root].items[position].gives[0]
    for group_rank, call in enumerate(calls):
        if group_rank != root:
            copy(call.items[position].gets[0], given)


def _reduce(calls: Sequence[Call], position: int) -> None:
    total = reduced([call.items[position].gives[0] for call in calls], calls[0].op)
    copy(calls[calls[0].root].items[position].gets[0], total)


def _all_gather(calls: Sequence[Call], position: int) -> None:
    for call in calls:
        for got, other in zip(call.items[position].gets, calls, strict=True):
            copy(got, other.items[position].gives[0])


def _gather(calls: Sequence[Call], position: int) -> None:
    for got, call in zip(calls[calls[0].root].items[position].gets, calls, strict=True):
        copy(got, call.items[position].gives[0])


def _scatter(calls: Sequence[Call], position: int) -> None:
    for given, call in zip(calls[calls[0].root].items[position].gives, calls, strict=True):
        copy(call.items[position].gets[0], given)


def _reduce_scatter(calls: Sequence[Call], position: int) -> None:
    totals = [
        reduced([call.items[position].gives[target] for call in calls], calls[0].op) for target in range(len(calls))
    ]
    for call, total in zip(calls, totals, strict=True):
        copy(call.items[position].gets[0], total)


def _all_to_all(calls: Sequence[Call], position: int) -> None:
    for receiver, call in enumerate(calls):
        for got, other in zip(call.items[position].gets, calls, strict=True):
            copy(got, other.items[position].gives[receiver])


_MOVES: dict[str, Callable[[Sequence[Call], int], None]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_gather": _all_gather,
    "gather": _gather,
    "scatter": _scatter,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}
