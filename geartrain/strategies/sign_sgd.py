"""signSGD: one bit per number.

    kind=error_feedback:   u_i = weight_i * g_i + e_i,   c_i = (||u_i||_1 / n) sgn(u_i)  per tensor
                           g <- sum_i c_i,   e_i <- u_i - c_i
    kind=majority:         g <- sgn(sum_i sgn(g_i))      each worker has a vote, whatever its share of the samples

Zero counts as positive; where votes are even, g is 0.

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247 lists it; as in
the code of epfml/powersgd. Limits: one worker is `single`.
Differs from the paper: votes are gathered by all workers, so that one bit goes up and W - 1 come down, where a server
would send one down; no sign of the momentum (Signum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from geartrain.codecs.sign import ScaledSign, Sign
from geartrain.exchange.gather_sum import GatherSum
from geartrain.runtime.strategy import Limit, Needs, Paper
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.parts import Parts, Recipe
from geartrain.strategies.single import Single
from geartrain.strategies.text import Size, check_fields


@dataclass(frozen=True, kw_only=True)
class SignSGD(Recipe):
    """Gradients as signs.

        g <- sum_i mean|u_i| sgn(u_i), with error feedback;   or   g <- sgn(sum_i sgn(g_i))

    Args:
        kind: "error_feedback": signs with the mean size of each tensor, what they miss is added to the next gradient;
            "majority": bare votes.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: start a bucket during backward.

    Costs, per worker and step, for n numbers in T tensors: (W - 1) (n/8 + T element) bytes in W - 1 messages per
    bucket, majority (W - 1) (n + 1)/8; decoding W payloads. Error feedback keeps one copy of the gradients.

    Use it with few workers on very slow wires. "majority" makes every step as large as the learning rate in each
    element, so the rate must be one for signs, far below that of plain SGD (as with Adam). Not beyond 32 workers, where
    gathering bits sends as much as summing fp32.

    Example:
        >>> str(SignSGD(kind="majority"))
        'sign_sgd:kind=majority'

    Source: epfml/powersgd's code; Bernstein et al., 2018, arXiv 1810.05165, and Karimireddy et al., 2019, arXiv
    1901.09847, as recalled.
    """

    name: ClassVar[str] = "sign_sgd"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(attachable=True)

    kind: Literal["error_feedback", "majority"] = "error_feedback"
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, bucket_size=1)

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        votes = self.kind == "majority"
        return Parts(
            codec=Sign() if votes else ScaledSign(),
            exchange=GatherSum(),
            feedback="none" if votes else "error_feedback",
            bucket_size=self.bucket_size,
            overlap=self.overlap,
        )

    def limits(self) -> Sequence[Limit]:
        return (Limit(SignSGD(), "equals", Single(), num_workers=1),)
