"""Two lanes and ranks that walk together: what must hold, by hand."""

import random

import pytest

from geartrain.cost.lanes import Fronts, Launch, Meet, Walked, walk
from geartrain.errors import ConfigurationError


def alone(launches):
    fronts = Fronts()
    for launch in launches:
        fronts.run(launch)
    return fronts


def test_the_host_runs_ahead_and_is_caught_up_with():
    launches = [Launch(1.0, 5.0), Launch(1.0, 5.0), Launch(20.0, 2.0)]
    assert alone(launches[:2]) == Fronts(host=2.0, device=11.0)
    assert alone(launches) == Fronts(host=22.0, device=24.0)


def test_a_launch_that_blocks_holds_up_the_host():
    assert alone([Launch(1.0, 5.0, blocks=True), Launch(1.0, 1.0)]) == Fronts(host=7.0, device=8.0)


def test_without_overheads_a_step_takes_the_sum_of_its_kernels():
    seconds = [random.Random(1).random() for _ in range(50)]
    walked = walk([[Launch(0.0, one) for one in seconds]])
    assert walked.seconds == walked.active[0] == pytest.approx(sum(seconds))


def test_bound_by_the_host_a_longer_kernel_changes_nothing_until_it_fills_the_gap():
    def step(kernel):
        return walk([[Launch(3.0, kernel), Launch(3.0, 1.0)]]).seconds

    assert step(0.0) == step(2.9) == 7.0
    assert step(4.0) == 8.0


def test_never_faster_than_host_or_device_alone():
    draw = random.Random(2)
    for _ in range(20):
        launches = [Launch(draw.random(), draw.random(), draw.random() < 0.2) for _ in range(10)]
        seconds = walk([launches]).seconds
        assert seconds >= max(sum(one.host for one in launches), sum(one.device for one in launches)) - 1e-12


def test_equal_ranks_wait_for_nobody():
    rank = [Launch(1.0, 2.0), Meet(4.0), Launch(1.0, 2.0)]
    one, four = walk([rank]), walk([rank] * 4)
    assert one.seconds == four.seconds == 3.0 + 4.0 + 2.0
    assert four == Walked(9.0, (4.0,) * 4, (4.0,) * 4, (0.0,) * 4)


def test_a_slow_rank_moves_all_others_by_exactly_its_delay():
    def ranks(late):
        return [[Launch(0.0, 2.0 + (late if rank == 1 else 0.0)), Meet(1.0), Launch(0.0, 2.0)] for rank in range(3)]

    usual, late = walk(ranks(0.0)), walk(ranks(0.75))
    assert late.seconds == usual.seconds + 0.75
    assert late.waited == (0.75, 0.0, 0.75)
    assert late.exposed == usual.exposed == (1.0, 1.0, 1.0)


def test_what_is_not_needed_at_once_is_hidden():
    hidden = walk([[Launch(0.0, 1.0), Meet(2.0, needs=False), Launch(0.0, 5.0)]])
    assert (hidden.seconds, hidden.exposed) == (6.0, (0.0,))
    short = walk([[Launch(0.0, 1.0), Meet(2.0, needs=False), Launch(0.0, 0.5)]])
    assert (short.seconds, short.exposed) == (3.0, (1.5,))
    # A second one queues behind the first, and is needed: 1 + 2 + 2, of which half a second was beside a kernel.
    both = walk([[Launch(0.0, 1.0), Meet(2.0, needs=False), Launch(0.0, 0.5), Meet(2.0), Launch(0.0, 1.0)]])
    assert (both.seconds, both.exposed, both.active) == (6.0, (3.5,), (2.5,))


def test_ranks_that_do_not_meet_are_refused():
    with pytest.raises(ConfigurationError, match=r"a \| none"):
        walk([[Meet(1.0, "a")], [Launch(0.0, 1.0)]])


def test_nobody_takes_no_time():
    assert walk([]) == Walked(0.0, (), (), ())
