"""Top-k: each worker sends its k largest numbers with their places, and keeps the rest for later.

    u_i  = weight_i * g_i + e_i
    S_i  = places of the k largest |u_i|,   k = max(1, floor(density * n))  per bucket
    g   <- sum_i u_i on S_i,                one all-gather of (values, places)
    e_i <- u_i with S_i zeroed              so that  sent + new e = gradient + old e, to the bit

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247, as in the code
of hclhkbu/gtopkssgd. Limits: density 1 is `synchronous`; one worker is `single`.
Differs from the paper: k is counted per bucket, not over the whole gradient, unless there is one bucket; gradients are
weighted by samples before, so nothing is divided by W; densities do not warm up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from geartrain.codecs import top_k
from geartrain.exchange.gather_sum import GatherSum
from geartrain.runtime.strategy import Limit, Needs, Paper
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.parts import Feedback, Parts, Recipe
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import Size, check_fields, check_share


@dataclass(frozen=True, kw_only=True)
class TopK(Recipe):
    """Sparse gradients: the largest numbers now, the others when they have grown.

        g <- sum_i top_k(weight_i * g_i + e_i),   e_i <- what was not sent

    Args:
        density: share of the elements that is sent, in (0, 1]. The survey's code has 0.001; 0.01 is chosen.
        feedback: "error_feedback" as above; "momentum_correction" applies the optimizer's momentum to what is kept, too
            (DGC), and wants SGD with momentum; "none" drops what is not sent.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: start a bucket during backward.

    Costs, per worker and step: (W - 1) k (element + 4) bytes in W - 1 messages per bucket. With fp32 and density 0.01 a
    payload has 2 % of the gradients' bytes; a ring all-reduce sends 2 (W - 1)/W times those, so that what goes on the
    wire is W % of it. One copy of the gradients is kept, two with momentum correction. Choosing reads a bucket several
    times.

        T = (W - 1) alpha + (W - 1) P/B,   P = k (element + 4)        by the cluster's all-gather

    Use it on slow wires with few workers: traffic grows with W, which `gtop_k` avoids. Not with small layers or fast
    wires, where choosing takes longer than sending. With momentum in the optimizer, late numbers arrive without their
    momentum; momentum correction mends that.

    Example:
        >>> str(TopK(density=0.001))
        'top_k:density=0.001'

    Source: Shi et al., 2021, arXiv 2005.13247; momentum correction: Lin et al., 2018 (DGC), as recalled.
    """

    name: ClassVar[str] = "top_k"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(attachable=True)

    density: float = 0.01
    feedback: Feedback = "error_feedback"
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, bucket_size=1)
        check_share(self, "density")

    @property
    def parts(self) -> Parts:
        """What it is made of."""
        return Parts(
            codec=top_k.TopK(density=self.density),
            exchange=GatherSum(),
            feedback=self.feedback,
            bucket_size=self.bucket_size,
            overlap=self.overlap,
        )

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(TopK(density=1.0), "equals", Synchronous()),
            Limit(TopK(density=1.0, feedback="none", bucket_size=64, overlap=False), "equals", Synchronous()),
            Limit(TopK(), "equals", Single(), num_workers=1),
        )
