"""From a bucket of gradients to its global sum: agree, encode, exchange, decode, bucket by bucket.

    start(k)   agree: an all-reduce of a few numbers begins     codecs that ask for it
               else:  encode, and the exchange begins           nothing here waits, so it may run inside backward
    wait       what was agreed on is encoded now; then, in the order of the buckets, wait for the exchange and decode

Time for encoding and decoding is in the spans "compress" and "decompress" of the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import Codec, Flat, State, Streams
from geartrain.cost.compute import Work
from geartrain.cost.memo import Memo
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Traffic
from geartrain.exchange.all_reduce import added, begin_all_reduce
from geartrain.exchange.base import Exchange, Pending
from geartrain.runtime.buckets import Layout
from geartrain.runtime.context import Context
from geartrain.runtime.counting import Price, works_of
from geartrain.runtime.memory import Footprint
from geartrain.runtime.seeding import stream_seed

_PURPOSE = "codec"


def flats_of(layouts: Sequence[Layout]) -> list[Flat]:
    """The shapes of the buckets, one to a layout; tensors without elements are left out."""
    flats = []
    for layout in layouts:
        first = layout.parameters[0]
        sizes = tuple(parameter.numel() for parameter in layout.parameters if parameter.numel())
        flats.append(Flat(sizes, first.dtype, first.device))
    return flats


def shared_stream(ctx: Context) -> torch.Generator:
    """A random stream that is the same on all workers."""
    device = "cpu" if ctx.device.type == "meta" else ctx.device
    return torch.Generator(device).manual_seed(stream_seed(ctx.seed, -1, _PURPOSE))


@dataclass(eq=False)
class _Bucket:
    """One bucket on its way."""

    index: int
    out: Tensor
    wish: Tensor | None = None
    agreement: dist.Work | None = None
    pending: Pending | None = None


class GradientPipeline:
    """Makes buckets of gradients global, in place.

    Args:
        ctx: of the worker.
        codec, exchange: that fit.
        flats: the shapes of the buckets, in the order in which they are started in every step.
        overlap: buckets are started during backward.
    """

    def __init__(self, ctx: Context, codec: Codec, exchange: Exchange, flats: Sequence[Flat], *, overlap: bool) -> None:
        self._ctx, self._codec, self._flats = ctx, codec, tuple(flats)
        self._channel = exchange.open(ctx, overlap=overlap)
        self._streams = Streams(ctx.rng(_PURPOSE), shared_stream(ctx))
        self._states: list[State] = [codec.init(flat) for flat in flats]
        self._buckets: list[_Bucket] = []

    @torch.no_grad()
    def start(self, flat: Tensor) -> None:
        """Begin with the next bucket; does not wait."""
        index, codec = len(self._buckets), self._codec
        bucket = _Bucket(index, flat)
        self._buckets.append(bucket)
        if not flat.numel():
            return
        with self._ctx.trace.span("compress"):
            bucket.wish = codec.agree(flat, self._flats[index], self._states[index])
        if bucket.wish is None:
            self._send(bucket)
        else:
            bucket.agreement = begin_all_reduce(bucket.wish, self._ctx.workers, dist.ReduceOp.MAX)

    def _send(self, bucket: _Bucket) -> None:
        index, flat = bucket.index, self._flats[bucket.index]
        with self._ctx.trace.span("compress"):
            payload, self._states[index] = self._codec.encode(
                bucket.out, flat, self._states[index], self._streams, bucket.wish
            )
        bucket.pending = self._channel.start(payload, self._codec, flat)

    @torch.no_grad()
    def wait(self) -> None:
        """Until all that was started is global."""
        for bucket in self._buckets:
            if bucket.agreement is not None:
                bucket.agreement.wait()
                self._send(bucket)
        for bucket in self._buckets:
            if bucket.pending is not None:
                self._finish(bucket, bucket.pending)
        self._buckets.clear()

    def _finish(self, bucket: _Bucket, pending: Pending) -> None:
        pending.wait(bucket.out)
        codec, index = self._codec, bucket.index
        undelivered = pending.undelivered() if codec.keeps_rest else None
        with self._ctx.trace.span("decompress"):
            codec.conclude(bucket.out)
            if undelivered is not None:
                self._states[index] = codec.restore(undelivered, self._flats[index], self._states[index])

    def state_dict(self) -> dict[str, Any]:
        """Residuals of all buckets, and where the random streams stand; between steps."""
        streams = self._streams
        return {"codec": self._states, "own": streams.own.get_state(), "shared": streams.shared.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._states, state["codec"], strict=True):
            _load(mine, saved)
        self._streams.own.set_state(state["own"])
        self._streams.shared.set_state(state["shared"])

    def close(self) -> None:
        """End what runs beside."""
        self._channel.close()


def _load(mine: State, saved: State) -> None:
    for name, value in saved.items():
        if isinstance(value, Tensor):
            mine[name].copy_(value)
        else:
            _load(mine[name], value)


@dataclass(frozen=True, kw_only=True)
class BucketCost:
    """One bucket in closed form: of `ExchangeCost`, with the codec's own part.

    Attributes:
        agree: seconds before the agreement, None where there is none; `agreement`: its time on the wire.
        encode: seconds from there until the exchange starts.
        wire: seconds of the exchange.
        decode: seconds from its end until the gradient is global.
        sent: by worker.
        residual: bytes kept between steps.
        held: bytes of what travels, there until the next exchange.
        working: the most bytes beside, while something is encoded or decoded.
    """

    agree: float | None = None
    agreement: float = 0.0
    encode: float
    wire: float
    decode: float
    sent: tuple[Traffic, ...]
    residual: int = 0
    held: int = 0
    working: int = 0


def bucket_cost(codec: Codec, exchange: Exchange, flat: Flat, place: Placement, price: Price) -> BucketCost:
    """The closed form of one bucket in `GradientPipeline`, on at least two workers.

    Args:
        flat: on the meta device.
        price: seconds of pieces of work on the slowest worker.
    """
    coded = _coded.get((codec, flat), lambda: _Coded(codec, flat))
    cost = exchange.cost(coded.payload, codec, flat, place, price)
    agree, agreement, sent = None, 0.0, cost.sent
    if coded.wish is not None:
        agree = price(coded.agreeing)
        agreement, more = native_collective(place, "all_reduce", coded.wish.nbytes, coded.wish.element_size())
        sent = added([cost.sent, more])
    return BucketCost(
        agree=agree,
        agreement=agreement,
        encode=price(coded.encoding) + cost.before,
        wire=cost.wire,
        decode=cost.after + price(coded.concluding(cost.cuts)),
        sent=sent,
        residual=codec.state_bytes(flat),
        held=coded.held + cost.held,
        working=coded.working,
    )


class _Coded:
    """A bucket on the meta device that a codec has encoded, and the work of what its worker does to it.

    Attributes:
        wish: what workers agree on before; None where the codec asks for nothing.
        payload: what travels.
        agreeing, encoding: work.
        held: bytes of the payload.
        working: the most bytes beside, while the bucket is encoded or decoded.
    """

    def __init__(self, codec: Codec, flat: Flat) -> None:
        self._codec, self._flat = codec, flat
        self._x = torch.empty(flat.numel, dtype=flat.dtype, device=flat.device)
        self._state = codec.init(flat)
        self.wish = codec.agree(self._x, flat, self._state)
        encoding, decoding = Footprint(), Footprint()
        with encoding:
            self.encoding = works_of(self._encode)
        with decoding:
            codec.decode(self.payload, flat, self._x)
        self.held = encoding.live
        self.working = max(encoding.most - encoding.live, decoding.most)
        self.agreeing = works_of(lambda: codec.agree(self._x, flat, self._state)) if self.wish is not None else ()

    def _encode(self) -> None:
        streams = Streams(torch.Generator(), torch.Generator())
        self.payload, _ = self._codec.encode(self._x, self._flat, self._state, streams, self.wish)

    def concluding(self, cuts: bool) -> tuple[Work, ...]:
        """Work after the exchange; `cuts`: parts of payloads may be undelivered."""

        def conclude() -> None:
            self._codec.conclude(self._x)
            if cuts and self._codec.keeps_rest:
                self._codec.restore(self.payload, self._flat, self._state)

        return works_of(conclude, "conclude", self.payload, cuts)


_coded: Memo[_Coded] = Memo(512)
