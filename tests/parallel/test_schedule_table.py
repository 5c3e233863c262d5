"""Tables: their shape, what the check refuses, words and back."""

import pytest

from geartrain.errors import StrategyError
from geartrain.parallel.list_order import Channel, Times, list_order, replay
from geartrain.parallel.schedule_table import Block, ScheduleTable, from_words, gpipe, interleaved, one_f_one_b

TABLES = [gpipe(3, 5), one_f_one_b(4, 3), one_f_one_b(3, 8), interleaved(2, 3, 4), interleaved(4, 2, 8)]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{len(table.rows)}-{table.num_pieces}")
def test_makers_place_every_block_once_in_an_order_that_can_be_run(table):
    table.check()
    assert sum(map(len, table.rows)) == 2 * table.num_pieces * table.num_micro_batches


def test_1f1b_holds_as_many_micro_batches_as_there_are_stages_after_it():
    for stage, row in enumerate(one_f_one_b(4, 8).rows):
        held = most = 0
        for block in row:
            held += 1 if block.kind == "F" else -1
            most = max(most, held)
        assert most == 4 - stage


def uniform(stages, chunks=1):
    """Stages of one second forward and two back, in `chunks` pieces, on a network that takes no time."""
    pieces = stages * chunks
    forward, backward = (1 / chunks,) * pieces, (2 / chunks,) * pieces
    return Times(forward=forward, backward=backward, channels=(Channel(),) * (pieces - 1), sums=(0.0,) * stages)


def test_bubbles_of_the_three_schedules():
    """M + N - 1 times a micro-batch; interleaving divides the N - 1 by the number of chunks."""
    assert replay(gpipe(4, 8), uniform(4)).total == replay(one_f_one_b(4, 8), uniform(4)).total == (8 + 3) * 3
    assert replay(interleaved(4, 2, 8), uniform(4, chunks=2)).total == 8 * 3 + 3 * 3 / 2


def test_a_row_that_lacks_a_block_or_has_another_stages_is_refused():
    rows = gpipe(2, 2).rows
    with pytest.raises(StrategyError, match=r"stage 1 must compute each of its blocks once; look at B1\.1"):
        ScheduleTable((rows[0], rows[1][:-1]), 2, 2).check()
    with pytest.raises(StrategyError, match="stage 0 computes a block twice"):
        ScheduleTable((rows[0] + rows[0][:1], rows[1]), 2, 2).check()
    with pytest.raises(StrategyError, match=r"look at F1\.0"):
        ScheduleTable(((*rows[0], Block("F", 1, 0)), rows[1]), 2, 2).check()


def test_an_order_in_which_all_wait_is_refused():
    forward = [Block("F", 0, 0), Block("B", 0, 0), Block("F", 0, 1), Block("B", 0, 1)]
    last = [Block("F", 1, 1), Block("B", 1, 1), Block("F", 1, 0), Block("B", 1, 0)]
    stuck = ScheduleTable((tuple(forward), tuple(last)), 2, 2)
    with pytest.raises(StrategyError, match=r"at B0\.0, which needs B1\.0; stage 1 at F1\.1, which needs F0\.1"):
        stuck.check()
    with pytest.raises(StrategyError, match="cannot be run"):
        replay(stuck, uniform(2))


def test_interleaved_takes_micro_batches_by_the_number_of_stages():
    with pytest.raises(StrategyError, match="give micro_batches=6"):
        interleaved(3, 2, 4)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_words_read_back_to_the_order_that_was_found(stages):
    table = list_order(uniform(stages), 5).table
    assert from_words(table.words, 5) == table
    with pytest.raises(StrategyError, match="is no order of blocks"):
        from_words("F2X", 2)
