"""The table of our collectives, and the backend's own beside them under the same form of call.

    all_reduce      f(flat, group)            reduce_scatter  f(output, flat, group)
    broadcast       f(flat, group, root)      all_gather      f(output, shard, group)
    reduce          f(flat, group, root)

What each sends: `geartrain.cost.own_collectives.traffic`, by the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.hierarchical import hierarchical_all_reduce
from geartrain.collectives.recursive import halving_doubling_all_reduce, recursive_doubling_all_reduce
from geartrain.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from geartrain.collectives.tree import tree_all_reduce, tree_broadcast, tree_reduce
from geartrain.errors import UnknownName

Collective = Callable[..., None]
"""Takes its tensors, then the group; see the top of this module."""

ALGORITHMS: dict[str, dict[str, Collective]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "halving_doubling": halving_doubling_all_reduce,
        "recursive_doubling": recursive_doubling_all_reduce,
        "tree": tree_all_reduce,
        "hierarchical": hierarchical_all_reduce,
    },
    "reduce_scatter": {"ring": ring_reduce_scatter},
    "all_gather": {"ring": ring_all_gather},
    "broadcast": {"tree": tree_broadcast},
    "reduce": {"tree": tree_reduce},
}
"""Kind -> name -> function. "hierarchical" wants to know the nodes, too: `collective` tells it."""

NATIVE = "native"
"""The name of the backend's own collective; its halves want shares of equal size."""


def collective(kind: str, name: str, nodes: Sequence[int] = ()) -> Collective:
    """One of our collectives, or the backend's, ready to be called.

    Args:
        kind, name: of `ALGORITHMS`; or `NATIVE` as the name.
        nodes: the node of each rank of the group that it will be called with; "hierarchical" needs them.

    Example:
        >>> collective("all_reduce", "ring").__name__
        'ring_all_reduce'
    """
    if kind not in ALGORITHMS:
        raise UnknownName("collective of our own", kind, ALGORITHMS)
    if name == NATIVE:
        return _NATIVE[kind]
    if name not in ALGORITHMS[kind]:
        raise UnknownName(f"algorithm of {kind} of our own", name, [NATIVE, *ALGORITHMS[kind]])
    function = ALGORITHMS[kind][name]
    return partial(function, nodes=tuple(nodes)) if name == "hierarchical" else function


def _native_all_reduce(flat: Tensor, group: dist.ProcessGroup) -> None:
    dist.all_reduce(flat, group=group)


def _native_reduce_scatter(output: Tensor, flat: Tensor, group: dist.ProcessGroup) -> None:
    dist.reduce_scatter_single(output, flat, group=group)


def _native_all_gather(output: Tensor, shard: Tensor, group: dist.ProcessGroup) -> None:
    dist.all_gather_single(output, shard, group=group)


def _native_broadcast(flat: Tensor, group: dist.ProcessGroup, root: int = 0) -> None:
    dist.broadcast(flat, group=group, group_src=root)


def _native_reduce(flat: Tensor, group: dist.ProcessGroup, root: int = 0) -> None:
    dist.reduce(flat, group=group, group_dst=root)


_NATIVE: dict[str, Collective] = {
    "all_reduce": _native_all_reduce,
    "reduce_scatter": _native_reduce_scatter,
    "all_gather": _native_all_gather,
    "broadcast": _native_broadcast,
    "reduce": _native_reduce,
}
