"""Plans as text and values, and who hands samples to whom."""

import pickle

import pytest

from geartrain.errors import StrategyError
from geartrain.parallel.partition import Plan, Stage, deliveries, parse_plan
from geartrain.parallel.planning import even_pieces


@pytest.mark.parametrize("text", ["3@0", "2@0/1@1+2", "1.1@1/2.1@0", "1@3/1@0+1+2"])
def test_a_plan_prints_reads_back_and_pickles(text):
    plan = parse_plan(text)
    assert str(plan) == text and pickle.loads(pickle.dumps(plan)) == plan


def test_pieces_of_an_interleaved_plan_go_round_the_stages():
    plan = parse_plan("1.2@0/3.1@1")
    assert plan.pieces == (range(0, 1), range(1, 4), range(4, 6), range(6, 7))
    assert [plan.ranks_of(piece) for piece in range(4)] == [(0,), (1,), (0,), (1,)]
    assert plan.idle(4) == (2, 3)


@pytest.mark.parametrize("text", ["", "2@", "@1", "2@0/1@0", "1.1@0/1@1", "0@1", "a@b"])
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(StrategyError):
        parse_plan(text)
    with pytest.raises(StrategyError):
        Plan((Stage(parts=(1,), ranks=(0,)), Stage(parts=(1,), ranks=(0,))))


@pytest.mark.parametrize(("senders", "receivers"), [(1, 1), (2, 3), (3, 2), (4, 1), (1, 4)])
def test_every_sample_is_handed_over_once(senders, receivers):
    found = deliveries(7, senders, receivers)
    assert sorted(sample for one in found for sample in range(one.begin, one.end)) == list(range(7))
    assert len({(one.sender, one.receiver) for one in found}) == len(found)


def test_even_pieces_have_the_least_largest_work():
    assert even_pieces([1, 1, 4, 1, 1, 3], 4) == (2, 1, 1, 2)
    with pytest.raises(StrategyError, match="cannot be cut"):
        even_pieces([1, 1], 3)
