"""Simulated times of our collectives against the closed forms of the same names."""

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Cluster, Device, NodeGroup, Star, Wire
from geartrain.collectives.registry import collective
from geartrain.cost.collectives import plan_collective
from geartrain.cost.compute import Roofline
from geartrain.cost.own_collectives import stages
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.buckets import even_cuts
from tests.collectives.test_algorithms import PLANNED

STAR = load_cluster("ethernet-10g")
ALPHA, RATE = 50e-6, 1.25e9
GAMMA = 3 / 900e9  # adding reads two numbers and writes one; from the device of the cluster


def seconds(kind, name, numel, workers, cluster=STAR, compute=None):
    """From the first rank's begin to the last rank's end, on tensors without numbers."""

    def main(ctx):
        function = collective(kind, name, ctx.nodes)
        flat = torch.empty(numel, device=ctx.device)
        cuts = even_cuts(numel, workers)
        share = torch.empty(cuts[ctx.rank + 1] - cuts[ctx.rank], device=ctx.device)
        function(*{"reduce_scatter": (share, flat), "all_gather": (flat, share)}.get(kind, (flat,)), ctx.workers)
        return ctx.clock.now()

    return max(SimulatedEngine(compute).run(main, cluster, workers=workers, meta=True).results)


# A tree's senders go on when the last byte has left, so off powers of two a broadcast saves a latency of the form.
@pytest.mark.parametrize(("kind", "name"), PLANNED)
@pytest.mark.parametrize(
    ("workers", "numel"), [(2, 1 << 10), (2, 1 << 24), (4, 1 << 10), (8, 1 << 20), (3, 3 << 24), (6, 3 << 24)]
)
def test_times_are_those_of_the_closed_form(kind, name, workers, numel):
    plan = plan_collective(kind, workers, 4 * numel, element=4, algorithm=name)
    assert seconds(kind, name, numel, workers) == pytest.approx(plan.time(ALPHA, RATE), rel=1e-3)
    if kind != "all_gather":  # its copy of its own share is compute, which the form knows nothing of
        charged = seconds(kind, name, numel, workers, compute=Roofline())
        assert charged == pytest.approx(plan.time(ALPHA, RATE, GAMMA), rel=1e-3)


def machines(per_node):
    device = Device(name="d", flops={"fp32": 1e12}, memory=1 << 30, memory_rate=1e12, source="chosen")
    return Cluster(
        name="machines",
        source="chosen",
        nodes=(NodeGroup(name="m", count=4, device=device, devices_per_node=per_node),),
        topology=Star(wire=Wire(rate=RATE, latency=ALPHA), inner=Wire(rate=10 * RATE, latency=ALPHA / 10)),
    )


@pytest.mark.parametrize(("per_node", "nodes"), [(2, 2), (2, 3), (4, 2), (4, 4)])
def test_the_hierarchical_one_takes_what_its_formula_says(per_node, nodes):
    numel = 1 << 12
    nbytes, width = 4 * numel, per_node
    inside = 2 * (width - 1) * (ALPHA / 10 + nbytes / width / (10 * RATE))
    between = 2 * (nodes - 1) * (ALPHA + nbytes / nodes / RATE)
    taken = seconds("all_reduce", "hierarchical", numel, per_node * nodes, machines(per_node))
    assert taken == pytest.approx(inside + between, rel=1e-3)


@pytest.mark.parametrize("workers", [5, 6, 7])
def test_unequal_nodes_take_no_longer_than_their_stages(workers):
    numel, cluster = 1 << 20, machines(4)
    place = Placement(cluster, workers)
    total = 0.0
    for stage in stages("all_reduce", "hierarchical", numel, 4, place.nodes):
        loads, longest = {}, 0.0
        for source, target, nbytes in stage.messages:
            for link in place.route(source, target).links:
                loads[link] = loads.get(link, 0) + nbytes
        for source, target, _ in stage.messages:
            route = place.route(source, target)
            slowest = max(loads[link] / place.links[link].capacity for link in route.links)
            longest = max(longest, route.latency + slowest)
        total += stage.count * longest
    taken = seconds("all_reduce", "hierarchical", numel, workers, cluster)
    assert total * 0.9 < taken <= total * (1 + 1e-9)
