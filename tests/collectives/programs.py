"""Every collective of ours on tensors whose sums depend on their order, for ranks that are threads or processes."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from geartrain.collectives.registry import ALGORITHMS, collective
from geartrain.runtime.buckets import even_cuts
from geartrain.runtime.context import Context


@dataclass(frozen=True)
class Case:
    """One call. `per_node` lays ranks on nodes in order, so many on each; `integers` makes sums exact in any order."""

    kind: str
    name: str
    numel: int
    root: int = 0
    per_node: tuple[int, ...] = ()
    integers: bool = False

    def nodes(self, size: int) -> tuple[int, ...]:
        """The node of each of `size` ranks; the last pattern is repeated."""
        per_node = self.per_node or (1,)
        found: list[int] = []
        while len(found) < size:
            node = found[-1] + 1 if found else 0
            found += [node] * per_node[min(node, len(per_node) - 1)]
        return tuple(found[:size])


def given(case: Case, rank: int) -> Tensor:
    """What a rank begins with: `numel` elements, or what it gives to an all-gather of so many in all."""
    generator = torch.Generator().manual_seed(100 + rank)
    if case.integers:
        return torch.randint(-50, 50, (case.numel,), generator=generator).float()
    return torch.randn(case.numel, generator=generator)


def chunk(flat: Tensor, rank: int, size: int) -> Tensor:
    begin, end = list(pairwise(even_cuts(flat.numel(), size)))[rank]
    return flat[begin:end]


def call(case: Case, ctx: Context) -> Tensor:
    """Run one case; what this rank has in the end."""
    function, size = collective(case.kind, case.name, case.nodes(ctx.num_workers)), ctx.num_workers
    flat = given(case, ctx.rank)
    if case.kind == "reduce_scatter":
        output = torch.empty_like(chunk(flat, ctx.rank, size))
        function(output, flat, ctx.workers)
        assert torch.equal(flat, given(case, ctx.rank)), "the input is only read"
        return output
    if case.kind == "all_gather":
        output = torch.empty_like(flat)
        function(output, chunk(flat, ctx.rank, size), ctx.workers)
        return output
    if case.kind in ("broadcast", "reduce"):
        function(flat, ctx.workers, case.root)
    else:
        function(flat, ctx.workers)
    return flat


@dataclass(frozen=True)
class Program:
    """`main(ctx)`: all cases, each as a step, so that what it sends can be told from the log."""

    cases: tuple[Case, ...]
    late: int = -1

    def __call__(self, ctx: Context) -> list[Tensor]:
        results = []
        for number, case in enumerate(self.cases):
            ctx.clock.sleep(1e-6 + (1e-3 * (number % 3) if ctx.rank == self.late else 0.0))
            ctx.mark_step(number, "begin")
            results.append(call(case, ctx))
            ctx.mark_step(number, "end")
        return results


def every_case(size: int, numels: tuple[int, ...], *, integers: bool = False) -> tuple[Case, ...]:
    """Each algorithm at each length; roots at both ends, nodes equal and not."""
    cases = []
    for kind, names in ALGORITHMS.items():
        roots = dict.fromkeys((0, size - 1)) if kind in ("broadcast", "reduce") else (0,)
        for name in names:
            layouts = ((1,), (2,), (1, 2), (3, 1)) if name == "hierarchical" else ((),)
            cases += [
                Case(kind, name, numel, root, layout, integers)
                for numel in numels
                for root in roots
                for layout in layouts
            ]
    return tuple(cases)
