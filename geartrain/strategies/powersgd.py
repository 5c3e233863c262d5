"""PowerSGD: each gradient matrix is sent as the product of two thin ones, by one step of a power iteration.

    M_i = weight_i * g_i + e_i                 as n x m: first axis by the rest; vectors go uncompressed
    P   = sum_i M_i Q                          all-reduce; Q (m x r) is that of the step before (warm start)
    P   <- orthonormal columns of P
    Q   = sum_i M_i^T P                        all-reduce
    g   <- P Q^T,   e_i <- M_i - g / W         so that  g + sum_i e_i = sum_i M_i

It communicates inside the compression, so it is no codec: both halves are written out here.

Paper: Shaohuai Shi, Zhenheng Tang, Xiaowen Chu, Chengjian Liu, Wei Wang, Bo Li, 2021, arXiv 2005.13247 lists it; as in
the code of epfml/powersgd. Limits: a rank as large as the matrices, compressed whatever that costs (min_ratio=0), is
`synchronous` to rounding; one worker is `single`.
Differs from the paper: gradients are weighted before, so P and Q are sums; vectors travel with P; columns are made
orthonormal by QR, which also takes matrices of lower rank; no dense steps at the start.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.cluster.placement import Placement
from geartrain.codecs.base import at_least_single
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.memo import Memo
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Cost
from geartrain.exchange.all_reduce import added, begin_all_reduce
from geartrain.exchange.pipeline import BucketCost, shared_stream
from geartrain.runtime.attachment import Alone, Attachment, Loop
from geartrain.runtime.buckets import Layout
from geartrain.runtime.context import Context
from geartrain.runtime.counting import Price, works_of
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Task, Worker
from geartrain.strategies.bucket_times import buckets_cost, price_on
from geartrain.strategies.gradient_worker import GradientLoop, GradientWorker
from geartrain.strategies.papers import COMM_SURVEY
from geartrain.strategies.single import Single
from geartrain.strategies.text import Size, check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Strategy):
    """Low-rank gradients that all-reduces can add.

        P = orthonormal(sum_i M_i Q),   Q = sum_i M_i^T P,   g <- P Q^T,   e_i <- M_i - g / W

    Args:
        rank: columns of P and Q, 1 or more; at most as many as a matrix has rows and columns. The authors' package
            takes 1 to 4.
        warm_start: begin with the Q of the step before; otherwise with a new random one, the same on all workers.
        error_feedback: keep e_i; otherwise what is left out is lost.
        min_ratio: a matrix is compressed if it has more than this many times the elements of P and Q; the package's is
            2; 0 compresses all.
        bucket_size: bytes of gradients with which a bucket is closed; none: one bucket.
        overlap: start a bucket during backward: P. Q comes when backward has ended, as it needs the sum of all P.

    Costs, per worker and step: 2 (W - 1)/W times 4 r (n + m) bytes per matrix (fp32, a ring), and the vectors, in two
    all-reduces per bucket. Error feedback keeps one copy of the matrices' gradients. Three products of r columns with
    each matrix.

    Use it where all-reduce is too slow and layers are large matrices: traffic does not grow with W as that of sparse
    methods does. Not for models of vectors and small convolutions, and not without error feedback for long.

    Example:
        >>> str(PowerSGD(rank=4))
        'powersgd:rank=4'

    Source: epfml/powersgd's code; Vogels, Karimireddy, Jaggi, 2019, arXiv 1905.13727 (recalled).
    """

    name: ClassVar[str] = "powersgd"
    paper: ClassVar[Paper] = COMM_SURVEY
    needs: ClassVar[Needs] = Needs(attachable=True)

    rank: int = 2
    warm_start: bool = True
    error_feedback: bool = True
    min_ratio: float = 2.0
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, rank=1, min_ratio=0, bucket_size=1)

    def __str__(self) -> str:
        return render(self)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return GradientWorker(
            ctx,
            task,
            bucket_size=self.bucket_size,
            overlap=self.overlap,
            make=lambda layouts, _: LowRankExchange(self, ctx, layouts),
        )

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        if ctx.num_workers == 1:
            return Alone()
        return GradientLoop(
            ctx,
            loop,
            bucket_size=self.bucket_size,
            overlap=self.overlap,
            make=lambda layouts, _: LowRankExchange(self, ctx, layouts),
        )

    def limits(self) -> Sequence[Limit]:
        return (Limit(PowerSGD(), "equals", Single(), num_workers=1),)

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        price, known = price_on(place, model), dict[tuple[torch.Size, ...], BucketCost]()

        def bucket(shapes: tuple[torch.Size, ...], dtype: torch.dtype) -> BucketCost:
            if shapes not in known:
                key = (self, shapes, dtype)
                low_rank = _buckets.get(key, lambda: LowRankBucket(*key, torch.device("meta"), torch.Generator()))
                known[shapes] = _bucket_cost(low_rank, place, price)
            return known[shapes]

        return buckets_cost(workload, place, batch, model, self.bucket_size, self.overlap, bucket)


@dataclass(frozen=True)
class _Matrix:
    """A compressed tensor: where it lies in its bucket, and its P and Q in theirs."""

    place: slice
    rows: int
    columns: int
    p: Tensor
    q: Tensor

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.place].view(self.rows, self.columns)


class LowRankBucket:
    """The tensor code of one bucket: P, then Q, then their product.

    Args:
        strategy: the settings.
        shapes: of the tensors in the bucket, in order.
        dtype, device: of all of them.
        shared: random numbers that are the same on all workers.

    Attributes:
        first: what is summed first: the vectors, then all P.
        second: what is summed then: all Q.
        residual: e_i of all matrices, one after another.
    """

    def __init__(
        self,
        strategy: PowerSGD,
        shapes: Sequence[torch.Size],
        dtype: torch.dtype,
        device: torch.device,
        shared: torch.Generator,
    ) -> None:
        self._strategy, self._shared = strategy, shared
        ends = [sum(shape.numel() for shape in shapes[: k + 1]) for k in range(len(shapes))]
        places = [slice(end - shape.numel(), end) for end, shape in zip(ends, shapes, strict=True)]
        ranks = [_rank(strategy, shape) for shape in shapes]
        self._vectors = [place for place, rank in zip(places, ranks, strict=True) if not rank]
        matrices = [
            (place, *_sides(shape), rank) for place, shape, rank in zip(places, shapes, ranks, strict=True) if rank
        ]
        num_dense = sum(place.stop - place.start for place in self._vectors)

        def zeros(count: int) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        self.first = zeros(num_dense + sum(n * r for _, n, _, r in matrices))
        self.second = zeros(sum(m * r for _, _, m, r in matrices))
        self._dense = self.first[:num_dense]
        ps = self.first[num_dense:].split([n * r for _, n, _, r in matrices])
        qs = self.second.split([m * r for _, _, m, r in matrices])
        self._matrices = [
            _Matrix(place, n, m, p.view(n, r), q.view(m, r))
            for (place, n, m, r), p, q in zip(matrices, ps, qs, strict=True)
        ]
        self.residual = zeros(sum(n * m for _, n, m, _ in matrices) * strategy.error_feedback)
        self._errors = self.residual.split([n * m for _, n, m, _ in matrices] if strategy.error_feedback else [0])
        self.numel = ends[-1] if ends else 0
        self._draw()

    @property
    def has_matrices(self) -> bool:
        return bool(self._matrices)

    @property
    def num_p(self) -> int:
        """Elements of all P."""
        return self.first.numel() - self._dense.numel()

    def _draw(self) -> None:
        if self.has_matrices:
            self.second.normal_(generator=self._shared)

    def project(self, flat: Tensor) -> None:
        """M <- gradient + e in place; `first` becomes this worker's vectors and M Q."""
        if not self._strategy.warm_start:
            self._draw()
        if self._vectors:
            torch.cat([flat[place] for place in self._vectors], out=self._dense)
        for k, matrix in enumerate(self._matrices):
            if self._strategy.error_feedback:
                flat[matrix.place].add_(self._errors[k])
            torch.mm(matrix.of(flat), matrix.q, out=matrix.p)

    def project_back(self, flat: Tensor) -> None:
        """P, now the sum, gets orthonormal columns; `second` becomes this worker's M^T P."""
        for matrix in self._matrices:
            wide = matrix.p.to(at_least_single(matrix.p.dtype))  # there is no QR of narrow types
            matrix.p.copy_(torch.linalg.qr(wide).Q)
            torch.mm(matrix.of(flat).t(), matrix.p, out=matrix.q)

    def reconstruct(self, flat: Tensor, num_workers: int) -> None:
        """`flat` becomes the vectors' sums and P Q^T; e <- M - P Q^T / W."""
        for k, matrix in enumerate(self._matrices):
            target = matrix.of(flat)
            if self._strategy.error_feedback:
                error = self._errors[k].view(matrix.rows, matrix.columns)
                error.copy_(target)
                torch.mm(matrix.p, matrix.q.t(), out=target)
                error.sub_(target, alpha=1 / num_workers)
            else:
                torch.mm(matrix.p, matrix.q.t(), out=target)
        if self._vectors:
            parts = self._dense.split([place.stop - place.start for place in self._vectors])
            for place, part in zip(self._vectors, parts, strict=True):
                flat[place].copy_(part)


def _sides(shape: torch.Size) -> tuple[int, int]:
    return shape[0], math.prod(shape[1:])


def _rank(strategy: PowerSGD, shape: torch.Size) -> int:
    """The rank at which a tensor is compressed, 0 if it is not."""
    if len(shape) < 2 or not shape.numel():
        return 0
    rows, columns = _sides(shape)
    rank = min(strategy.rank, rows, columns)
    return rank if rows * columns > strategy.min_ratio * rank * (rows + columns) else 0


class LowRankExchange:
    """Makes buckets of gradients global, in place, each by two all-reduces."""

    def __init__(self, strategy: PowerSGD, ctx: Context, layouts: Sequence[Layout]) -> None:
        self._ctx, self._shared = ctx, shared_stream(ctx)
        self.buckets = [
            LowRankBucket(
                strategy,
                [parameter.shape for parameter in layout.parameters],
                layout.parameters[0].dtype,
                layout.parameters[0].device,
                self._shared,
            )
            for layout in layouts
        ]
        self._started: list[tuple[Tensor, LowRankBucket, dist.Work | None]] = []

    @torch.no_grad()
    def start(self, flat: Tensor) -> None:
        """Begin with the next bucket; does not wait."""
        bucket, work = self.buckets[len(self._started)], None
        if not bucket.has_matrices:
            work = self._sum(flat) if flat.numel() else None
        else:
            with self._ctx.trace.span("compress"):
                bucket.project(flat)
            work = self._sum(bucket.first)
        self._started.append((flat, bucket, work))

    def _sum(self, tensor: Tensor) -> dist.Work:
        return begin_all_reduce(tensor, self._ctx.workers, dist.ReduceOp.SUM)

    @torch.no_grad()
    def wait(self) -> None:
        """Until all that was started is global."""
        second = []
        for flat, bucket, work in self._started:
            if work is not None:
                work.wait()
            if bucket.has_matrices:
                with self._ctx.trace.span("compress"):
                    bucket.project_back(flat)
                second.append((flat, bucket, self._sum(bucket.second)))
        for flat, bucket, last in second:
            last.wait()
            with self._ctx.trace.span("decompress"):
                bucket.reconstruct(flat, self._ctx.num_workers)
        self._started.clear()

    def state_dict(self) -> dict[str, Any]:
        """Residuals, and the Q that the next step begins with."""
        buckets = [{"residual": bucket.residual, "q": bucket.second} for bucket in self.buckets]
        return {"buckets": buckets, "shared": self._shared.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for bucket, saved in zip(self.buckets, state["buckets"], strict=True):
            bucket.residual.copy_(saved["residual"])
            bucket.second.copy_(saved["q"])
        self._shared.set_state(state["shared"])

    def close(self) -> None:
        """Nothing runs beside."""


_buckets: Memo[LowRankBucket] = Memo(512)
"""For closed forms, on the meta device."""


def _bucket_cost(bucket: LowRankBucket, place: Placement, price: Price) -> BucketCost:
    flat = torch.empty(bucket.numel, dtype=bucket.first.dtype, device="meta")
    size = flat.element_size()
    if not bucket.has_matrices:
        seconds, sent = native_collective(place, "all_reduce", flat.nbytes, size)
        return BucketCost(encode=0.0, wire=seconds, decode=0.0, sent=sent)
    first, sent_first = native_collective(place, "all_reduce", bucket.first.nbytes, size)
    second, sent_second = native_collective(place, "all_reduce", bucket.second.nbytes, size)
    return BucketCost(
        agree=price(works_of(lambda: bucket.project(flat), "project", bucket)),
        agreement=first,
        encode=price(works_of(lambda: bucket.project_back(flat), "project back", bucket)),
        wire=second,
        decode=price(works_of(lambda: bucket.reconstruct(flat, place.num_workers), "reconstruct", bucket)),
        sent=added([sent_first, sent_second]),
        residual=bucket.residual.nbytes,
        held=bucket.first.nbytes + bucket.second.nbytes,
        working=bucket.first.nbytes,
    )
