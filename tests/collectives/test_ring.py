"""What only the rings promise: the order of sums, and shares given wrongly."""

from itertools import pairwise

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.buckets import even_cuts


def run(main, workers):
    return SimulatedEngine().run(main, load_cluster("ethernet-10g"), workers=workers)


def in_turn(inputs, part, first):
    """The sum of a part over all ranks, beginning with rank `first`."""
    size = len(inputs)
    total = inputs[first % size][part]
    for k in range(1, size):
        total = total + inputs[(first + k) % size][part]
    return total


@pytest.mark.parametrize("size", [3, 4])
def test_chunks_are_summed_in_the_order_that_is_written_down(size):
    def main(ctx):
        flat = torch.randn(11, generator=torch.Generator().manual_seed(ctx.rank))
        given, cuts = flat.clone(), even_cuts(11, size)
        output = torch.empty(cuts[ctx.rank + 1] - cuts[ctx.rank])
        ring_reduce_scatter(output, flat, ctx.workers)
        ring_all_reduce(flat, ctx.workers)
        return given, flat, output

    results = run(main, size).results
    inputs = [given for given, _, _ in results]
    for c, cut in enumerate(pairwise(even_cuts(11, size))):
        assert torch.equal(results[0][1][slice(*cut)], in_turn(inputs, slice(*cut), c))
        assert torch.equal(results[c][2], in_turn(inputs, slice(*cut), c + 1))


def test_a_gathered_shard_may_lie_in_its_place_already():
    def main(ctx):
        flat, cuts = torch.zeros(7), even_cuts(7, 3)
        own = flat[cuts[ctx.rank] : cuts[ctx.rank + 1]]
        own.fill_(ctx.rank + 1)
        ring_all_gather(flat, own, ctx.workers)
        return flat.tolist()

    assert run(main, 3).results == [[1.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]] * 3


def test_a_share_of_the_wrong_length_is_refused():
    def scatter(ctx):
        ring_reduce_scatter(torch.zeros(3), torch.zeros(7), ctx.workers)

    def gather(ctx):
        ring_all_gather(torch.zeros(7), torch.zeros(2), ctx.workers)

    with pytest.raises(Exception, match=r"`output` of rank 1 has shape \(3,\), but its chunk of 7 elements is \(2,\)"):
        run(scatter, 3)
    with pytest.raises(Exception, match=r"`shard` of rank 0 has shape \(2,\), but its chunk of 7 elements is \(3,\)"):
        run(gather, 3)
