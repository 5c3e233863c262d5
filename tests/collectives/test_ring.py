"""The ring against sums that can be done in the head, and what it sends against what it says."""

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.collectives.ring import RingLane, ring_all_gather, ring_all_reduce, ring_reduce_scatter, ring_traffic
from geartrain.cost.collectives import plan_collective
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.buckets import even_cuts

CLUSTER = load_cluster("ethernet-10g")


def run(main, workers, engine=None):
    return (engine or SimulatedEngine()).run(main, CLUSTER, workers=workers)


def numbers(rank, numel):
    """Integers that differ by rank and place."""
    return torch.arange(numel, dtype=torch.float32) * (rank + 1) + rank


def total(workers, numel):
    return sum((numbers(rank, numel) for rank in range(workers)), torch.zeros(numel))


def reduce_numbers(ctx, numel=10):
    flat = numbers(ctx.rank, numel)
    ring_all_reduce(flat, ctx.workers)
    return flat


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("numel", [0, 1, 2, 3, 10, 64])
def test_all_reduce_is_the_sum_and_sends_what_it_says(workers, numel):
    record = run(lambda ctx: reduce_numbers(ctx, numel), workers)
    assert all(torch.equal(result, total(workers, numel)) for result in record.results)
    for log, traffic in zip(record.logs, ring_traffic(numel, 4, workers), strict=True):
        assert sum(op.nbytes for op in log.ops) == traffic.nbytes
        assert sum(op.messages for op in log.ops) == traffic.messages


@pytest.mark.parametrize("numel", [12, 13])
def test_the_halves_of_an_all_reduce(numel):
    def main(ctx):
        flat = numbers(ctx.rank, numel)
        ring_reduce_scatter(flat, ctx.workers)
        cuts, mine = even_cuts(numel, 4), (ctx.rank + 1) % 4
        chunk = slice(cuts[mine], cuts[mine + 1])
        summed = torch.equal(flat[chunk], total(4, numel)[chunk])
        ring_all_gather(flat, ctx.workers)
        return summed and torch.equal(flat, total(4, numel))

    assert all(run(main, 4).results)


def test_every_rank_gets_the_same_bits_where_the_order_of_a_sum_shows():
    def main(ctx):
        flat = torch.randn(50, generator=torch.Generator().manual_seed(ctx.rank))
        ring_all_reduce(flat, ctx.workers)
        return flat

    first, second = run(main, 5).results, run(main, 5).results
    assert all(torch.equal(first[0], flat) for flat in [*first, *second])


def test_chunks_are_summed_in_the_order_that_is_written_down():
    def main(ctx):
        flat = torch.randn(6, generator=torch.Generator().manual_seed(ctx.rank))
        given = flat.clone()
        ring_all_reduce(flat, ctx.workers)
        return given, flat

    results = run(main, 3).results
    for chunk in range(3):
        part = slice(2 * chunk, 2 * chunk + 2)
        order = [results[(chunk + k) % 3][0][part] for k in range(3)]
        assert torch.equal(results[0][1][part], (order[0] + order[1]) + order[2])


@pytest.mark.parametrize(("numel", "workers"), [(40, 4), (41, 4), (1000, 7)])
def test_traffic_agrees_with_the_plan_of_the_closed_forms(numel, workers):
    plan = plan_collective("all_reduce", workers, 4 * numel, element=4, algorithm="ring")
    assert tuple(t.nbytes for t in ring_traffic(numel, 4, workers)) == plan.sent
    assert tuple(t.messages for t in ring_traffic(numel, 4, workers)) == plan.messages


def test_a_lane_reduces_in_order_beside_the_main_lane():
    def main(ctx):
        lane = RingLane(ctx, ctx.group(range(ctx.num_workers)))
        flats = [numbers(ctx.rank, numel) for numel in (5, 300_000, 2)]
        for flat in flats:
            lane.start(flat)
        started = ctx.clock.now()
        lane.wait()
        lane.close()
        sums = all(torch.equal(flat, total(3, len(flat))) for flat in flats)
        return sums, started, ctx.clock.now()

    for sums, started, ended in run(main, 3).results:
        assert sums and started == 0.0 and ended > 1e-3


@pytest.mark.multi
def test_real_processes_give_the_same_sums():
    from geartrain.engines.real import RealEngine

    assert all(torch.equal(flat, total(3, 10)) for flat in run(reduce_numbers, 3, RealEngine()).results)
