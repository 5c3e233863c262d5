"""Strategies made of parts: a codec, an exchange, what becomes of what is not sent, and buckets.

A `Recipe` names its parts, and all else follows from them. Parts that do not fit are refused when the strategy is
made, with the ones that do.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch.optim import SGD, Optimizer

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import Algebra, Codec, Flat
from geartrain.codecs.dense import Cast, Dense
from geartrain.codecs.error_feedback import ErrorFeedback
from geartrain.codecs.momentum_correction import MomentumCorrection
from geartrain.codecs.qsgd import QSGD
from geartrain.codecs.random_k import RandomK
from geartrain.codecs.sign import ScaledSign, Sign
from geartrain.codecs.terngrad import SharedTernGrad, TernGrad
from geartrain.codecs.top_k import TopK
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import IncompatibleParts, StrategyError
from geartrain.exchange.all_reduce import AllReduce
from geartrain.exchange.base import Exchange
from geartrain.exchange.gather_sum import GatherSum
from geartrain.exchange.gtopk_tree import GTopKTree
from geartrain.exchange.pipeline import BucketCost, GradientPipeline, bucket_cost, flats_of
from geartrain.runtime.attachment import Alone, Attachment, Loop
from geartrain.runtime.buckets import Layout
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Roles, Strategy
from geartrain.runtime.worker import Task, Worker
from geartrain.strategies.bucket_times import buckets_cost, price_on
from geartrain.strategies.gradient_worker import GradientLoop, GradientWorker
from geartrain.strategies.text import render
from geartrain.workload.spec import Workload

Feedback = Literal["none", "error_feedback", "momentum_correction"]

CODECS: dict[str, Codec] = {
    codec.name: codec
    for codec in (
        Dense(),
        Cast(dtype=torch.float16),
        Cast(dtype=torch.bfloat16),
        TopK(),
        RandomK(),
        QSGD(),
        TernGrad(),
        SharedTernGrad(),
        Sign(),
        ScaledSign(),
    )
}
"""All codecs by name, with their own settings."""

EXCHANGES: dict[str, Exchange] = {exchange.name: exchange for exchange in (AllReduce(), GatherSum(), GTopKTree())}
"""All exchanges by name."""

_SENDS: dict[Algebra, str] = {
    "sum": "numbers that add up",
    "gather": "packed numbers that do not add up",
    "pairs": "(value, place) pairs that do not add up element by element",
}
_TAKES = {
    "all_reduce": "adds up what workers send",
    "gather_sum": "hands everybody's payload to everybody",
    "gtopk_tree": "merges (value, place) pairs",
}
# Codecs that send the gradient but for a part that is smaller than it: what is left out does not grow.
_FEEDBACK = ("fp16", "bf16", "top_k", "random_k", "scaled_sign")
_NO_FEEDBACK = {
    "none": "leaves nothing out",
    "sign": "sends votes without a size, from which nothing can be subtracted",
}


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a compressed strategy is made of.

    Attributes:
        codec: what goes on the wire.
        exchange: who gets it from whom.
        feedback: "error_feedback": what was left out is added to the next gradient; "momentum_correction": the
            optimizer's momentum is applied to it, too, before the codec chooses.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: buckets are started during backward.
    """

    codec: Codec
    exchange: Exchange
    feedback: Feedback = "none"
    bucket_size: int | None
    overlap: bool

    def check(self, given: object) -> None:
        """IncompatibleParts where they do not fit.

        Args:
            given: the strategy, for the message.
        """
        codec, exchange = self.codec, self.exchange
        if codec.algebra not in exchange.accepts:
            exchanges = [name for name, other in EXCHANGES.items() if codec.algebra in other.accepts]
            codecs = [name for name, other in CODECS.items() if other.algebra in exchange.accepts]
            raise IncompatibleParts(
                f"{exchange.name} {_TAKES[exchange.name]}, but {codec.name} sends {_SENDS[codec.algebra]}.\n"
                f"  given:  {given}\n"
                f"  fits:   exchange={' or '.join(exchanges)};   or codec={', '.join(codecs)}"
            )
        if self.feedback == "error_feedback" and codec.name not in _FEEDBACK:
            why = _NO_FEEDBACK.get(codec.name, "may be off by more than the gradient itself, so that errors would grow")
            raise IncompatibleParts(
                f"error feedback needs a codec that leaves a part of the gradient out, but {codec.name} {why}.\n"
                f"  given:  {given}\n"
                f"  fits:   codec={', '.join(_FEEDBACK)};   or no error feedback"
            )
        if self.feedback == "momentum_correction" and codec.algebra != "pairs":
            raise IncompatibleParts(
                f"momentum correction clears the momentum of what was sent, but {codec.name} does not say which "
                f"elements these are.\n  given:  {given}\n  fits:   codec=top_k;   or no momentum correction"
            )

    def check_workers(self, num_workers: int) -> None:
        """StrategyError for more workers than payloads can be summed of."""
        most = self.codec.most_workers
        if most is not None and num_workers > most:
            raise StrategyError(
                f"{self.codec.name} sums its payloads in a byte, which holds {most} workers, not {num_workers}.\n"
                f"  use at most {most} workers, or codec=terngrad with exchange=gather_sum"
            )

    def whole_codec(self, momentum: float) -> Codec:
        """The codec with its feedback; momentum is for momentum correction alone."""
        if self.feedback == "error_feedback":
            return ErrorFeedback(inner=self.codec)
        if self.feedback == "momentum_correction":
            return MomentumCorrection(inner=self.codec, momentum=momentum)
        return self.codec

    def open(self, ctx: Context, layouts: Sequence[Layout], optimizer: Optimizer) -> GradientPipeline:
        """The running parts of one worker; takes the optimizer's momentum away where it is applied before."""
        momentum = _take_momentum(optimizer) if self.feedback == "momentum_correction" else 0.0
        codec = self.whole_codec(momentum)
        return GradientPipeline(ctx, codec, self.exchange, flats_of(layouts), overlap=self.overlap)


def _take_momentum(optimizer: Optimizer) -> float:
    """The optimizer's momentum, which it has no more afterwards."""
    momenta = {float(group.get("momentum") or 0.0) for group in optimizer.param_groups}
    plain = all(not group.get("nesterov") and not group.get("dampening") for group in optimizer.param_groups)
    if not isinstance(optimizer, SGD) or len(momenta) != 1 or not plain or not 0 < min(momenta) < 1:
        raise IncompatibleParts(
            "momentum correction applies the optimizer's momentum before compression, and this optimizer "
            f"({type(optimizer).__name__}) has none that can be moved there.\n"
            "  fits:   torch.optim.SGD with one momentum in (0, 1), without nesterov and dampening;   or error_feedback"
        )
    for group in optimizer.param_groups:
        group["momentum"] = 0.0
    return min(momenta)


class Recipe(Strategy):
    """A strategy that is made of parts and nothing else.

    A method gives its settings, its `parts` and its `limits`. More workers than the parts can serve are refused, see
    `Parts.check_workers`.
    """

    @property
    @abstractmethod
    def parts(self) -> Parts:
        """What it is made of, by its settings."""

    def __str__(self) -> str:
        return render(self)

    def roles(self, num_workers: int) -> Roles:
        """No services; StrategyError for more workers than payloads can be summed of."""
        self.parts.check_workers(num_workers)
        return Roles()

    def bind(self, ctx: Context, task: Task) -> Worker:
        """A worker that trains a task with the parts."""
        parts = self.parts
        return GradientWorker(
            ctx,
            task,
            bucket_size=parts.bucket_size,
            overlap=parts.overlap,
            make=lambda layouts, optimizer: parts.open(ctx, layouts, optimizer),
        )

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        """The parts in a user's loop; one worker sends nothing, so its loop stays as it is."""
        if ctx.num_workers == 1:
            return Alone()
        parts = self.parts
        return GradientLoop(
            ctx,
            loop,
            bucket_size=parts.bucket_size,
            overlap=parts.overlap,
            make=lambda layouts, optimizer: parts.open(ctx, layouts, optimizer),
        )

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        """The closed form of a step with the parts, bucket by bucket."""
        parts = self.parts
        parts.check_workers(place.num_workers)
        codec, price, known = parts.whole_codec(0.0), price_on(place, model), dict[Flat, BucketCost]()

        def bucket(shapes: tuple[torch.Size, ...], dtype: torch.dtype) -> BucketCost:
            sizes = tuple(shape.numel() for shape in shapes if shape.numel())
            flat = Flat(sizes, dtype, torch.device("meta"))
            if flat not in known:
                known[flat] = bucket_cost(codec, parts.exchange, flat, place, price)
            return known[flat]

        blocks = not parts.overlap and isinstance(parts.exchange, GTopKTree)
        left = 0.0 if parts.feedback == "momentum_correction" and place.num_workers > 1 else 1.0
        size, overlap = parts.bucket_size, parts.overlap
        return buckets_cost(workload, place, batch, model, size, overlap, bucket, blocks=blocks, optimizer=left)
