"""Compressed: gradients through a codec and an exchange of one's choice, bucket by bucket, beside backward.

    u_i  = weight_i * g_i (+ e_i)        e_i: what earlier steps left out, with error feedback
    g   <- exchange over the workers of codec(u_i)
    w   <- w - lr * g                    on every worker, with the task's optimizer

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, IEEE Network 35(3), arXiv
2005.13247: its taxonomy of codecs, architectures and scheduling as parts. Limits: codec none, and density 1, are
`synchronous`; one worker sends nothing and compresses nothing.
Differs from the paper: buckets of one byte are WFBP, and one bucket without overlap is BSP with all-reduce; its tensor
partition with priorities is not here, and its merge rule is `mg_wfbp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from geartrain.codecs.base import Codec
from geartrain.codecs.qsgd import QSGD
from geartrain.codecs.random_k import RandomK
from geartrain.codecs.top_k import TopK
from geartrain.errors import IncompatibleParts
from geartrain.runtime.strategy import Limit, Needs, Paper
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.parts import CODECS, EXCHANGES, Feedback, Parts, Recipe
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import Size, check_fields, check_most, check_share

CodecName = Literal[
    "none",
    "fp16",
    "bf16",
    "top_k",
    "random_k",
    "qsgd",
    "terngrad",
    "terngrad_shared",
    "sign",
    "scaled_sign",
]
ExchangeName = Literal["all_reduce", "gather_sum", "gtopk_tree"]


@dataclass(frozen=True, kw_only=True)
class Compressed(Recipe):
    """Gradients through any codec and exchange that fit.

        g <- exchange of codec(weight_i * g_i + what was left out before)

    Args:
        codec: "none"; "fp16", "bf16": rounded; "top_k": the largest numbers and their places; "random_k": numbers at
            places that all workers draw alike; "qsgd": levels of a norm at random; "terngrad": -s, 0 or s at random,
            "terngrad_shared" with the same s on all workers; "sign": votes; "scaled_sign": signs and a mean size.
        density: share of the elements that "top_k" and "random_k" send, in (0, 1]; none: 0.01 there.
        levels: of "qsgd", 1 to 127; none: 7 there, which makes 4 bits.
        exchange: "all_reduce": the backend's sum; "gather_sum": all payloads to all; "gtopk_tree": k pairs of all.
        error_feedback: what is left out is added to the next gradient.
        momentum_correction: error feedback that applies the optimizer's momentum before the codec chooses.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket; 1B: one tensor each (WFBP).
        overlap: start a bucket during backward.

    Costs, per worker and step, for a payload of P bytes on W workers, per bucket: all_reduce 2 P (W - 1)/W bytes by a
    ring; gather_sum P (W - 1); gtopk_tree P at most log2 W + 1 times. What is counted is what is sent: bits are packed,
    pairs have their places with them, and sums are as wide as they must be. Feedback keeps one copy of the gradients,
    momentum correction two. Encoding takes the device's time, in the middle of backward.

    Use it to compare parts with each other, and where the wire is what a step waits for. Not where encoding takes
    longer than what it saves: many small tensors, fast wires. Gathering grows with W, all-reduce does not.

    Example:
        >>> str(Compressed(codec="top_k", exchange="gather_sum", error_feedback=True))
        'compressed:codec=top_k,exchange=gather_sum,error_feedback=true'

    Source: Shi et al., 2021, arXiv 2005.13247; the codecs as in the code of its authors and of epfml/powersgd where
    that was read, QSGD, TernGrad and momentum correction recalled.
    """

    name: ClassVar[str] = "compressed"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(lanes=True, attachable=True)

    codec: CodecName = "fp16"
    density: float | None = None
    levels: int | None = None
    exchange: ExchangeName = "all_reduce"
    error_feedback: bool = False
    momentum_correction: bool = False
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, bucket_size=1, levels=1)
        check_most(self, levels=127)
        check_share(self, "density")
        self._refuse_ignored()
        self.parts.check(self)

    def _refuse_ignored(self) -> None:
        for key, fitting in (("density", ("top_k", "random_k")), ("levels", ("qsgd",))):
            value = getattr(self, key)
            if value is not None and self.codec not in fitting:
                raise IncompatibleParts(
                    f"{key}={value} means nothing to codec={self.codec}.\n  fits:   codec={' or '.join(fitting)}"
                )
        if self.error_feedback and self.momentum_correction:
            raise IncompatibleParts(
                "momentum correction is error feedback already.\n"
                "  fits:   momentum_correction=true with error_feedback=false, or the other way round"
            )

    @property
    def parts(self) -> Parts:
        """The parts that the settings name."""
        feedback: Feedback = "error_feedback" if self.error_feedback else "none"
        return Parts(
            codec=self._codec(),
            exchange=EXCHANGES[self.exchange],
            feedback="momentum_correction" if self.momentum_correction else feedback,
            bucket_size=self.bucket_size,
            overlap=self.overlap,
        )

    def _codec(self) -> Codec:
        codec = CODECS[self.codec]
        if isinstance(codec, RandomK):
            codec = replace(codec, unbiased=not self.error_feedback)
        if isinstance(codec, RandomK | TopK) and self.density is not None:
            return replace(codec, density=self.density)
        if isinstance(codec, QSGD) and self.levels is not None:
            return replace(codec, levels=self.levels)
        return codec

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(Compressed(codec="none"), "equals", Synchronous()),
            Limit(Compressed(codec="none", exchange="gather_sum", bucket_size=64), "equals", Synchronous()),
            Limit(Compressed(codec="none", bucket_size=1), "equals", Synchronous(bucket_size=1)),
            Limit(Compressed(codec="random_k", density=1.0), "equals", Synchronous()),
            Limit(Compressed(codec="top_k", density=1.0, exchange="gather_sum"), "equals", Synchronous()),
            Limit(Compressed(), "equals", Single(), num_workers=1),
        )
