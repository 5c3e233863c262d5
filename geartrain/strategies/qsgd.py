"""QSGD: every number is rounded at random to one of s levels of its block's norm.

    Q(x_i) = ||x|| sgn(x_i) xi_i / s,   r_i = s |x_i| / ||x||,   xi_i = floor(r_i) + 1 with probability r_i - floor(r_i)
    g     <- sum_i Q(weight_i * g_i),   one all-gather

The mean over draws is the gradient; in a block of d the variance is at most min(d/s^2, sqrt(d)/s) ||x||^2.

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247 lists it; the
rule is recalled (Alistarh et al., 2017, arXiv 1610.02132). Limits: one worker is `single`.
Differs from the paper: levels are packed in as many bits each, without entropy coding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from geartrain.codecs import qsgd
from geartrain.exchange.gather_sum import GatherSum
from geartrain.runtime.strategy import Limit, Needs, Paper
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.parts import Parts, Recipe
from geartrain.strategies.single import Single
from geartrain.strategies.text import Size, check_fields, check_most


@dataclass(frozen=True, kw_only=True)
class QSGD(Recipe):
    """Gradients in a few bits per number.

        g <- sum_i Q(weight_i * g_i)

    Args:
        levels: s, 1 to 127; a number takes 1 + ceil(log2(s + 1)) bits. 7 is chosen, which makes 4.
        block: numbers under one norm. 512 is chosen.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: start a bucket during backward.

    Costs, per worker and step, for n numbers: (W - 1) (n (1 + ceil(log2(s + 1)))/8 + n/block * element) bytes in W - 1
    messages per bucket, and decoding W payloads. Nothing is kept.

    Use it with few workers on slow wires, where an unbiased gradient matters more than a small one: 4 bits are an
    eighth of fp32, and gathering sends W/2 times what a ring all-reduce of the same bytes would.

    Example:
        >>> str(QSGD(levels=1))
        'qsgd:levels=1'

    Source: Alistarh et al., 2017, arXiv 1610.02132, recalled.
    """

    name: ClassVar[str] = "qsgd"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(attachable=True)

    levels: int = 7
    block: int = 512
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, levels=1, block=1, bucket_size=1)
        check_most(self, levels=127)

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        codec = qsgd.QSGD(levels=self.levels, block=self.block)
        return Parts(codec=codec, exchange=GatherSum(), bucket_size=self.bucket_size, overlap=self.overlap)

    def limits(self) -> Sequence[Limit]:
        return (Limit(QSGD(), "equals", Single(), num_workers=1),)
