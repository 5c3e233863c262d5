"""Every collective of ours: right, the same to the bit everywhere and at any timing, and sending what it says."""

from itertools import pairwise

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.collectives.registry import ALGORITHMS, collective
from geartrain.cost.collectives import plan_collective
from geartrain.cost.own_collectives import OWN, hierarchy, traffic
from geartrain.cost.terms import Traffic
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import UnknownName
from geartrain.runtime.buckets import even_cuts
from tests.collectives.programs import Program, every_case, given

CLUSTER = load_cluster("ethernet-10g")
SIZES = (1, 2, 3, 4, 5, 8, 11)
PLANNED = [(kind, name) for kind, names in OWN.items() for name in names if name != "hierarchical"]


def run(program, workers, engine=None):
    return (engine or SimulatedEngine()).run(program, CLUSTER, workers=workers)


def expected(case, rank, size):
    inputs = [given(case, other) for other in range(size)]
    total, cuts = sum(inputs, torch.zeros(case.numel)), list(pairwise(even_cuts(case.numel, size)))
    match case.kind:
        case "reduce_scatter":
            return total[slice(*cuts[rank])]
        case "all_gather":
            return torch.cat([flat[slice(*cut)] for flat, cut in zip(inputs, cuts, strict=True)])
        case "broadcast":
            return inputs[case.root]
        case "reduce":
            return total if rank == case.root else None
    return total


def counted(record, cases):
    """What each rank sent in each case."""
    found = []
    for number in range(len(cases)):
        ranks = []
        for log in record.logs:
            step = log.steps[number]
            ops = [op for op in log.ops if step.begin <= op.posted <= step.end and op.kind in ("send", "recv")]
            ranks.append(Traffic(nbytes=sum(op.nbytes for op in ops), messages=sum(op.messages for op in ops)))
        found.append(tuple(ranks))
    return found


def said(cases, size):
    return [traffic(c.kind, c.name, c.numel, 4, c.nodes(size), root=c.root) for c in cases]


@pytest.mark.parametrize("size", SIZES)
def test_each_is_right_and_sends_what_it_says(size):
    cases = every_case(size, (0, 1, 2, 3, 10, 64), integers=True)
    record = run(Program(cases), size)
    for rank, results in enumerate(record.results):
        for case, result in zip(cases, results, strict=True):
            right = expected(case, rank, size)
            assert right is None or torch.equal(result, right), (rank, case)
    assert counted(record, cases) == said(cases, size)


@pytest.mark.parametrize("size", [2, 3, 7])
def test_the_bits_do_not_depend_on_who_is_late(size):
    cases = every_case(size, (1, 10, 33))
    first = run(Program(cases), size).results
    for late in range(size):
        again = run(Program(cases, late=late), size).results
        for one, other in zip(first, again, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("size", [3, 6])
def test_all_ranks_have_the_same_bits(size):
    cases = tuple(case for case in every_case(size, (10, 33)) if case.kind in ("all_reduce", "broadcast", "all_gather"))
    results = run(Program(cases), size).results
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_the_table_of_functions_is_that_of_the_traffic():
    assert {kind: tuple(names) for kind, names in ALGORITHMS.items()} == OWN


@pytest.mark.parametrize(("kind", "name"), PLANNED)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 13])
def test_traffic_is_that_of_the_plan_of_the_same_name(kind, name, size):
    for numel in (size, 40, 1001):
        for root in {0, size - 1}:
            plan = plan_collective(kind, size, 4 * numel, element=4, root=root, algorithm=name)
            sent = traffic(kind, name, numel, 4, range(size), root=root)
            assert tuple(t.nbytes for t in sent) == plan.sent
            assert numel < size or tuple(t.messages for t in sent) == plan.messages


def test_the_hierarchical_one_sends_less_between_nodes():
    # Two nodes of two ranks, 8 elements: 4 to the neighbour, 2 and 2 to the other node, 4 to the neighbour.
    assert traffic("all_reduce", "hierarchical", 8, 4, (0, 0, 1, 1)) == (Traffic(nbytes=48, messages=4),) * 4
    # Three and one: ranks 1 and 2 hand 8 elements to rank 0 and get them back; rings of one rank in each node.
    handing = (Traffic(nbytes=64 + 32, messages=2 + 2), *[Traffic(nbytes=32, messages=1)] * 2)
    assert traffic("all_reduce", "hierarchical", 8, 4, (0, 0, 0, 1)) == (*handing, Traffic(nbytes=32, messages=2))
    # One rank in each node: a ring, and nothing else.
    assert traffic("all_reduce", "hierarchical", 10, 4, range(4)) == traffic("all_reduce", "ring", 10, 4, range(4))
    assert hierarchy((5, 2, 5, 2)).nodes == ((0, 2), (1, 3))


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(UnknownName, match="halving_doubling"):
        collective("all_reduce", "halving")
    with pytest.raises(UnknownName, match="broadcast"):
        collective("brodcast", "tree")
    with pytest.raises(UnknownName, match="tree"):
        traffic("reduce", "ring", 1, 4, range(2))


@pytest.mark.multi
@pytest.mark.parametrize("size", [2, 3, 4])
def test_real_processes_give_the_bits_and_bytes_of_simulated_ranks(size):
    from geartrain.engines.real import RealEngine

    cases = every_case(size, (1, 10, 1001))
    real, simulated = run(Program(cases), size, RealEngine()), run(Program(cases), size)
    for mine, theirs in zip(real.results, simulated.results, strict=True):
        for case, a, b in zip(cases, mine, theirs, strict=True):
            assert torch.equal(a, b), case
    assert counted(real, cases) == counted(simulated, cases) == said(cases, size)
