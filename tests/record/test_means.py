from geartrain.record.log import Blocked
from geartrain.record.means import mean_step
from geartrain.record.split import split
from tests.record.logs import late_rank, op, rank, record


def test_the_first_step_is_left_out():
    log = rank(0, steps=[(0.0, 5.0), (5.0, 6.0), (6.0, 8.0)])
    mean = mean_step(split(record(log)))
    assert (mean.steps, mean.step_time, mean.compute) == (2, 1.5, 1.5)


def test_a_run_of_one_step_counts_it():
    mean = mean_step(split(record(rank(0, steps=[(0.0, 5.0)]))))
    assert (mean.steps, mean.step_time) == (1, 5.0)


def test_the_slowest_worker_of_each_step_is_told():
    steps = [(0.0, 1.0), (1.0, 3.0), (3.0, 4.0)]
    key = ("g", 9)
    waits = rank(0, ops=[op(key, 1.0, -1.0)], blocked=[Blocked(1.0, 1.5, None, "", "queue")], steps=steps)
    slow = rank(1, steps=[(0.0, 1.0), (1.0, 2.0), (3.0, 6.0)])
    mean = mean_step(split(record(waits, slow)))
    assert (mean.step_time, mean.wait, mean.compute) == (2.5, 0.25, 2.25)


def test_among_equals_the_one_that_did_not_wait():
    mean = mean_step(split(late_rank()))
    assert (mean.step_time, mean.compute, mean.wait, mean.exposed_communication) == (10.0, 7.0, 0.0, 3.0)


def test_bytes_are_whole_when_equal_and_means_otherwise():
    mean = mean_step(split(late_rank()))
    assert (mean.bytes_sent, mean.messages) == (100, 2)
    assert isinstance(mean.bytes_sent, int)
    uneven = record(rank(0, ops=[op(("g", 1), 1.0, 2.0, nbytes=3)], steps=[(0.0, 4.0)]), rank(1, steps=[(0.0, 4.0)]))
    assert mean_step(split(uneven)).bytes_sent == 1.5


def test_services_do_not_count():
    server = rank(1, ops=[op(("g", 1), 1.0, 2.0, nbytes=1000)], steps=[(0.0, 9.0)], role="server")
    mean = mean_step(split(record(rank(0, steps=[(0.0, 4.0)]), server)))
    assert (mean.step_time, mean.bytes_sent) == (4.0, 0)


def test_without_a_finished_step_there_is_no_mean():
    assert mean_step(split(record(rank(0)))) is None
    assert mean_step(split(record(rank(0, steps=[(0.0, 1.0)]), rank(1)))) is None
