"""Gather-sum: everybody gets everybody's payload, decodes all of them and adds up. Fits every codec; grows with W."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import Algebra, Codec, Flat, Payload, packed, unpacked
from geartrain.cost.placed import native_collective
from geartrain.exchange.base import Channel, Exchange, ExchangeCost, Pending
from geartrain.runtime.context import Context
from geartrain.runtime.counting import Price, works_of


@dataclass(frozen=True, kw_only=True)
class GatherSum(Exchange):
    """The backend's all-gather of the payload's bytes, in one message per bucket, then a sum in rank order.

    Costs (W - 1) times the payload in W - 1 messages by a ring, and decoding W payloads.
    """

    name: ClassVar[str] = "gather_sum"
    accepts: ClassVar[frozenset[Algebra]] = frozenset({"sum", "gather", "pairs"})

    def open(self, ctx: Context, *, overlap: bool) -> Channel:
        return _Gathering(ctx)

    def cost(self, payload: Payload, codec: Codec, flat: Flat, place: Placement, price: Price) -> ExchangeCost:
        workers, whole = place.num_workers, packed(payload.sent)
        seconds, sent = native_collective(place, "all_gather", workers * whole.nbytes)
        row, out = torch.empty_like(whole), torch.empty(flat.numel, dtype=flat.dtype, device=flat.device)

        def first() -> None:
            codec.decode(Payload(unpacked(row, payload.sent), payload.known), flat, out)

        def others() -> None:
            codec.add(Payload(unpacked(row, payload.sent), payload.known), flat, out)

        return ExchangeCost(
            before=price(works_of(lambda: packed(payload.sent), "pack", payload)),
            wire=seconds,
            after=price(works_of(first, "unpack and decode", payload))
            + (workers - 1) * price(works_of(others, "unpack and add", payload)),
            sent=sent,
            held=(workers + (len(payload.sent) > 1)) * whole.nbytes,
        )


class _Gathering(Channel):
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def start(self, payload: Payload, codec: Codec, flat: Flat) -> Pending:
        ctx = self._ctx
        with ctx.trace.span("compress"):
            mine = packed(payload.sent)
        everything = torch.empty(ctx.num_workers * mine.numel(), dtype=torch.uint8, device=mine.device)
        work = dist.all_gather_single(everything, mine, group=ctx.workers, async_op=True)
        assert work is not None, "every worker is in the group"
        return _Gathered(ctx, work, everything, payload, codec, flat)


class _Gathered(Pending):
    def __init__(
        self, ctx: Context, work: dist.Work, everything: Tensor, payload: Payload, codec: Codec, flat: Flat
    ) -> None:
        self._ctx, self._work, self._everything = ctx, work, everything
        self._payload, self._codec, self._flat = payload, codec, flat

    def wait(self, out: Tensor) -> None:
        self._work.wait()
        like, known = self._payload.sent, self._payload.known
        with self._ctx.trace.span("decompress"):
            for rank, row in enumerate(self._everything.chunk(self._ctx.num_workers)):
                came = Payload(unpacked(row, like), known)
                if rank == 0:
                    self._codec.decode(came, self._flat, out)
                else:
                    self._codec.add(came, self._flat, out)
