"""All-reduce: the backend's own sum of payloads, for codecs whose payloads add up. Traffic does not grow with W."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import Algebra, Codec, Flat, Payload
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Traffic
from geartrain.exchange.base import Channel, Exchange, ExchangeCost, Pending
from geartrain.runtime.context import Context
from geartrain.runtime.counting import Price, works_of


@dataclass(frozen=True, kw_only=True)
class AllReduce(Exchange):
    """The backend's all-reduce of each tensor of a payload.

    Costs what the backend's algorithm sends for so many bytes: a ring 2 M (W - 1)/W in 2 (W - 1) messages.
    """

    name: ClassVar[str] = "all_reduce"
    accepts: ClassVar[frozenset[Algebra]] = frozenset({"sum"})

    def open(self, ctx: Context, *, overlap: bool) -> Channel:
        return _AllReducing(ctx)

    def cost(self, payload: Payload, codec: Codec, flat: Flat, place: Placement, price: Price) -> ExchangeCost:
        parts = [native_collective(place, "all_reduce", t.nbytes, t.element_size()) for t in payload.sent]
        out = torch.empty(flat.numel, dtype=flat.dtype, device=flat.device)
        return ExchangeCost(
            wire=sum(seconds for seconds, _ in parts),
            after=price(works_of(lambda: codec.decode(payload, flat, out), "decode", payload)),
            sent=added([sent for _, sent in parts]),
        )


def added(parts: Sequence[Sequence[Traffic]]) -> tuple[Traffic, ...]:
    """What each worker sends in several exchanges together."""
    return tuple(sum(each, Traffic()) for each in zip(*parts, strict=True))


def begin_all_reduce(tensor: Tensor, group: dist.ProcessGroup, op: dist.ReduceOp.RedOpType) -> dist.Work:
    """Begin the backend's all-reduce; does not wait."""
    work: dist.Work | None = dist.all_reduce(tensor, op, group=group, async_op=True)
    assert work is not None, "every worker is in the group"
    return work


class _AllReducing(Channel):
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def start(self, payload: Payload, codec: Codec, flat: Flat) -> Pending:
        works = [begin_all_reduce(tensor, self._ctx.workers, dist.ReduceOp.SUM) for tensor in payload.sent]
        return _Sum(self._ctx, works, payload, codec, flat)


class _Sum(Pending):
    def __init__(self, ctx: Context, works: Sequence[dist.Work], payload: Payload, codec: Codec, flat: Flat) -> None:
        self._ctx, self._works, self._payload, self._codec, self._flat = ctx, works, payload, codec, flat

    def wait(self, out: Tensor) -> None:
        for work in self._works:
            work.wait()
        with self._ctx.trace.span("decompress"):
            self._codec.decode(self._payload, self._flat, out)
