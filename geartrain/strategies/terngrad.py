"""TernGrad: every number becomes -s, 0 or s at random, s the largest of its tensor.

    s   = max |x| per tensor,   t_j = sgn(x_j) Bernoulli(|x_j| / s)
    g  <- sum_i s_i t_i                                 scaler=own: 2 bits a number, one all-gather
    g  <- (max_i s_i) sum_i t_i                         scaler=shared: sums in [-W, W], one all-reduce of bytes

The mean over draws is the gradient.

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247 lists it; the
rule is recalled (Wen et al., 2017, arXiv 1705.07878). Limits: one worker is `single`.
Differs from the paper: no clipping at 2.5 standard deviations; workers exchange gradients without a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from geartrain.codecs import terngrad
from geartrain.exchange.all_reduce import AllReduce
from geartrain.exchange.gather_sum import GatherSum
from geartrain.runtime.strategy import Limit, Needs, Paper
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.parts import Parts, Recipe
from geartrain.strategies.single import Single
from geartrain.strategies.text import Size, check_fields


@dataclass(frozen=True, kw_only=True)
class TernGrad(Recipe):
    """Gradients in three values.

        g <- sum_i s_i t_i,   t_i in {-1, 0, 1} with mean weight_i * g_i / s_i

    Args:
        scaler: "shared": the largest of the workers' s, which a small all-reduce finds first, so that payloads add up,
            for 127 workers at most; "own": each worker's own s.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: start a bucket during backward.

    Costs, per worker and step, for n numbers in T tensors: shared, by a ring, 2 (W - 1)/W (n + T element) bytes in 4
    (W - 1) messages per bucket; own (W - 1) (n/4 + T element) bytes in W - 1. Nothing is kept.

    Use "own" with up to 8 workers, beyond which shared sends less. It has more variance than `qsgd` at 4 bits. With
    "shared", only the agreement is hidden behind backward: encoding waits for it.

    Example:
        >>> str(TernGrad(scaler="own"))
        'terngrad:scaler=own'

    Source: Wen et al., 2017, arXiv 1705.07878, recalled.
    """

    name: ClassVar[str] = "terngrad"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(attachable=True)

    scaler: Literal["shared", "own"] = "shared"
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, bucket_size=1)

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        shared = self.scaler == "shared"
        return Parts(
            codec=terngrad.SharedTernGrad() if shared else terngrad.TernGrad(),
            exchange=AllReduce() if shared else GatherSum(),
            bucket_size=self.bucket_size,
            overlap=self.overlap,
        )

    def limits(self) -> Sequence[Limit]:
        return (Limit(TernGrad(), "equals", Single(), num_workers=1),)
