"""The gTop-k tree: pairs are merged two by two, and only the k largest go on.

    round d = 1, 2, 4, ...   ranks that are odd multiples of d send (values, places) to rank - d, which adds values at
                             common places and keeps the k largest of the union
    then                     rank 0 broadcasts its k pairs through the same tree

Any number of workers; the paper wants a power of two. Places are whole numbers (the authors' code sends them as
floats, exact below 2^24 only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import Algebra, Codec, Flat, Payload, packed, unpacked
from geartrain.collectives.lane import CollectiveLane
from geartrain.collectives.messages import whole
from geartrain.collectives.tree import tree_broadcast
from geartrain.cost import own_collectives
from geartrain.cost.placed import travel
from geartrain.exchange.all_reduce import added
from geartrain.exchange.base import Channel, Exchange, ExchangeCost, Pending
from geartrain.runtime.context import Context
from geartrain.runtime.counting import Price, works_of


@dataclass(frozen=True, kw_only=True)
class GTopKTree(Exchange):
    """k pairs out of all workers' pairs, the same on all workers.

    Costs ceil(log2 W) rounds up and as many down, with messages of k pairs; a worker sends one message up at most.
    """

    name: ClassVar[str] = "gtopk_tree"
    accepts: ClassVar[frozenset[Algebra]] = frozenset({"pairs"})

    def open(self, ctx: Context, *, overlap: bool) -> Channel:
        return _Tree(ctx, overlap)

    def cost(self, payload: Payload, codec: Codec, flat: Flat, place: Placement, price: Price) -> ExchangeCost:
        buffer = packed(payload.sent)
        nodes = place.nodes[: place.num_workers]
        calls = [(kind, "tree", buffer.nbytes, 1, nodes) for kind in ("reduce", "broadcast")]
        stages = [stage for call in calls for stage in own_collectives.stages(*call)]
        out = torch.empty(flat.numel, dtype=flat.dtype, device=flat.device)

        def merge() -> None:
            _merge(*payload.sent, *unpacked(torch.empty_like(buffer), payload.sent))

        def after() -> None:
            codec.decode(payload, flat, out)
            if codec.keeps_rest:
                _lost(payload, payload.sent[1])

        merging = price(works_of(merge, "merge", payload))
        return ExchangeCost(
            before=price(works_of(lambda: packed(payload.sent), "pack", payload)),
            wire=sum(travel(place, stage.messages) + (merging if stage.adds else 0.0) for stage in stages),
            after=price(works_of(after, "decode a tree", payload)),
            sent=added([own_collectives.traffic(*call) for call in calls]),
            cuts=True,
            held=2 * buffer.nbytes,
        )


def _merge(values: Tensor, places: Tensor, more: Tensor, their_places: Tensor) -> None:
    """`values` and `places` become the k largest of the sum of two lists of k pairs each, whose places differ."""
    all_places, order = torch.cat([places, their_places]).sort(stable=True)
    sums = torch.cat([values, more])[order]
    twice = all_places[1:] == all_places[:-1]  # a place that both lists have stands twice in a row
    sums[:-1] += sums[1:] * twice
    sizes = sums.abs()
    sizes[1:].masked_fill_(twice, -1.0)
    best = sizes.topk(values.numel(), sorted=False).indices
    values.copy_(sums[best])
    places.copy_(all_places[best])


def _lost(mine: Payload, chosen: Tensor) -> Payload:
    """The own pairs whose places were not chosen."""
    values, places = mine.sent
    return Payload((values * ~torch.isin(places, chosen), places))


class _Tree(Channel):
    def __init__(self, ctx: Context, overlap: bool) -> None:
        self._ctx = ctx
        self._lane: CollectiveLane | None = None
        self._group = ctx.workers
        if overlap:
            group = ctx.group(range(ctx.num_workers))
            assert group is not None, "every worker is in it"
            self._group = group
            self._lane = CollectiveLane(ctx, group, self._run, "gtopk_tree")

    def start(self, payload: Payload, codec: Codec, flat: Flat) -> Pending:
        with self._ctx.trace.span("compress"):
            buffer = packed(payload.sent)
        values, places = unpacked(buffer, payload.sent)
        if self._lane is not None:
            self._lane.start(values, places, buffer)
        else:
            self._run(values, places, buffer, self._group)
        return _Chosen(self._ctx, self._lane, Payload((values, places)), payload, codec, flat)

    def _run(self, values: Tensor, places: Tensor, buffer: Tensor, group: dist.ProcessGroup) -> None:
        """`values` and `places` are views of `buffer`, which is what travels."""
        team, distance = whole(group), 1
        incoming = torch.empty_like(buffer)
        while distance < team.size and team.index % (2 * distance) == 0:
            if team.index + distance < team.size:
                team.recv(incoming, team.index + distance)
                with self._ctx.trace.span("merge"):
                    _merge(values, places, *unpacked(incoming, (values, places)))
            distance *= 2
        if team.index:
            team.send(buffer, team.index - distance)
        tree_broadcast(buffer, group)

    def close(self) -> None:
        if self._lane is not None:
            self._lane.close()


class _Chosen(Pending):
    def __init__(
        self, ctx: Context, lane: CollectiveLane | None, chosen: Payload, mine: Payload, codec: Codec, flat: Flat
    ) -> None:
        self._ctx, self._lane, self._chosen = ctx, lane, chosen
        self._mine, self._codec, self._flat = mine, codec, flat

    def wait(self, out: Tensor) -> None:
        if self._lane is not None:
            self._lane.wait()
        with self._ctx.trace.span("decompress"):
            self._codec.decode(self._chosen, self._flat, out)

    def undelivered(self) -> Payload | None:
        with self._ctx.trace.span("decompress"):
            return _lost(self._mine, self._chosen.sent[1])
