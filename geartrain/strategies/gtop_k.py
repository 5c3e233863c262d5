"""gTop-k: of all workers' largest numbers only the k largest of their sum are applied, the same on all workers.

    u_i  = weight_i * g_i + e_i,   S_i = places of the k largest |u_i|,   e_i <- u_i with S_i zeroed
    tree: in round d = 1, 2, 4, ... pairs of workers merge their k (value, place) pairs: values at common places are
          added, and the k largest of the union go on; worker 0 broadcasts its k pairs, places S
    g   <- those values
    e_i <- e_i + u_i on S_i without S

so that sum_i e_i + g = sum_i u_i, but for numbers cut inside the tree whose place survives through another branch: they
are in S, so nobody takes them back.

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247, as in the code
of hclhkbu/gtopkssgd. Limits: density 1 is `synchronous` (to the bit where sums are exact in any order); one worker is
`single`.
Differs from the paper: any number of workers; places travel as whole numbers, not as floats; k is counted per bucket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from geartrain.codecs import top_k
from geartrain.exchange.gtopk_tree import GTopKTree
from geartrain.runtime.strategy import Limit, Needs, Paper
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.parts import Feedback, Parts, Recipe
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import Size, check_fields, check_share


@dataclass(frozen=True, kw_only=True)
class GTopK(Recipe):
    """Sparse gradients whose traffic does not grow with the workers but by their logarithm.

        g <- the k largest of sum_i top_k(weight_i * g_i + e_i)

    Args:
        density: share of the elements that is sent and applied, in (0, 1]. 0.001 in the authors' code; 0.01 is chosen.
        feedback: as for `top_k`.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: a bucket travels in a lane beside what the worker computes, merging included.

    Costs, per worker and step, for P = k (element + 4) bytes per bucket: at most P up and P log2 W down the tree. The
    same memory as `top_k`.

        T = 2 ceil(log2 W) (alpha + P/B) + ceil(log2 W) merges

    exact for a power of two on links alike; otherwise rounds overlap, and it is above what a step takes.

    Use it where `top_k` would be right but for the number of workers. Applying k numbers in place of up to W k makes
    progress per step smaller.

    Example:
        >>> str(GTopK(density=0.001))
        'gtop_k:density=0.001'

    Source: Shi et al., 2021, arXiv 2005.13247; the method's own paper is Shi et al., 2019, arXiv 1901.04359 (recalled).
    """

    name: ClassVar[str] = "gtop_k"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(lanes=True, attachable=True)

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
            exchange=GTopKTree(),
            feedback=self.feedback,
            bucket_size=self.bucket_size,
            overlap=self.overlap,
        )

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(GTopK(density=1.0), "equals", Synchronous()),
            Limit(GTopK(density=1.0, feedback="none", bucket_size=64, overlap=False), "equals", Synchronous()),
            Limit(GTopK(), "equals", Single(), num_workers=1),
        )
