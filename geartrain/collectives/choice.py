"""Ours or the backend's: measured on the group at hand, then the fastest by kind and size."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.registry import ALGORITHMS, NATIVE, Collective, collective
from geartrain.errors import UnknownName
from geartrain.runtime.context import Context

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20)
"""Bytes; chosen: from where latency decides to where the bytes do."""


@dataclass(frozen=True)
class Choice:
    """What was measured, the same on all ranks of the group.

    Attributes:
        seconds: kind -> bytes -> name -> median seconds of the slowest rank; bytes as in `geartrain.cost.collectives`.
    """

    seconds: Mapping[str, Mapping[int, Mapping[str, float]]]

    def fastest(self, kind: str, nbytes: int) -> str:
        """The name of the fastest at the measured size that is nearest in ratio: "native", or one of ours."""
        measured = self.nearest(kind, nbytes)
        return min(measured, key=lambda name: measured[name])

    def nearest(self, kind: str, nbytes: int) -> Mapping[str, float]:
        """Name -> seconds, at the measured size that is nearest in ratio."""
        if kind not in self.seconds:
            raise UnknownName("collective that was measured", kind, self.seconds)
        measured = self.seconds[kind]
        return measured[min(measured, key=lambda size: abs(math.log(size / max(1, nbytes))))]


def measure(
    ctx: Context,
    kinds: Sequence[str] = ("all_reduce", "reduce_scatter", "all_gather"),
    sizes: Sequence[int] = SIZES,
    *,
    group: dist.ProcessGroup | None = None,
    repeats: int = 5,
) -> Choice:
    """Time ours and the backend's on a group; call it on all its ranks alike.

        seconds = median over repeats of the maximum over ranks of (end - begin), each after a barrier

    Repeats go round all that is measured, so that a load that comes and goes meets everyone; one more round before, for
    connections and memory, does not count. Under the simulated engine the clock is virtual, and so are the seconds.

    Args:
        ctx: of the rank.
        kinds: of `ALGORITHMS`.
        sizes: bytes, above 0; rounded down to what the group can share out evenly, but at least one element a rank.
        group: the workers by default.
        repeats: at least 1.

    What it costs: (repeats + 1) times every algorithm, kind and size.

    Example:
        choice = measure(ctx)
        choice.fastest("reduce_scatter", 4_000_000)    # "ring" under gloo, whose own is an all-reduce
    """
    for kind in kinds:
        collective(kind, NATIVE)  # an unknown one is refused before anything is timed
    group = ctx.workers if group is None else group
    nodes = [ctx.nodes[rank] for rank in dist.get_process_group_ranks(group)]
    cells = [(kind, nbytes, name) for kind in kinds for nbytes in sizes for name in (NATIVE, *ALGORITHMS[kind])]
    tensors = {nbytes: _tensors(nbytes, ctx, group) for nbytes in sizes}
    rounds = []
    for _ in range(repeats + 1):
        calls = (_call(kind, collective(kind, name, nodes), *tensors[nbytes], group) for kind, nbytes, name in cells)
        rounds.append([_timed(call, ctx, group) for call in calls])
    # Ranks must not choose differently, so all take the times of the slowest.
    slowest = torch.tensor(rounds[1:], dtype=torch.float64, device="cpu" if ctx.meta else ctx.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    found: dict[str, dict[int, dict[str, float]]] = {kind: {nbytes: {} for nbytes in sizes} for kind in kinds}
    for (kind, nbytes, name), repeated in zip(cells, slowest.T.tolist(), strict=True):
        found[kind][nbytes][name] = statistics.median(repeated)
    return Choice(found)


def _tensors(nbytes: int, ctx: Context, group: dist.ProcessGroup) -> tuple[Tensor, Tensor]:
    """A tensor of so many bytes and one of a rank's share. Zeros: sums of them stay what they are."""
    share = torch.zeros(max(1, nbytes // (4 * group.size())), device=ctx.device)
    return torch.zeros(group.size() * share.numel(), device=ctx.device), share


def _call(kind: str, function: Collective, flat: Tensor, share: Tensor, group: dist.ProcessGroup) -> Callable[[], None]:
    tensors = {"reduce_scatter": (share, flat), "all_gather": (flat, share)}.get(kind, (flat,))
    return lambda: function(*tensors, group)


def _timed(call: Callable[[], None], ctx: Context, group: dist.ProcessGroup) -> float:
    dist.barrier(group=group)
    begin = ctx.clock.now()
    call()
    if ctx.device.type == "cuda":
        torch.cuda.synchronize(ctx.device)
    return ctx.clock.now() - begin
