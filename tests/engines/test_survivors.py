"""Which deaths a run goes on after; the runs themselves are in tests/strategies/test_gen_async_card.py."""

import pickle
import signal

import pytest

from geartrain.engines.launch import Outcome
from geartrain.engines.rank_process import Ending, Job, ending_path, make_steps, read_endings, read_steps
from geartrain.engines.standstill import Standing, _nobody_goes_on, make_file, tell_lost
from geartrain.engines.survivors import _may_be_lost
from geartrain.errors import RankFailed
from geartrain.record.log import RankLog

ROLES = ("worker", "worker", "server")


@pytest.fixture
def job(tmp_path):
    make_steps(str(tmp_path), 3)
    make_file(str(tmp_path), 3)
    return Job(str(tmp_path), ROLES, 0.0, {}, b"")


def in_steps(job, steps):
    data = b"".join(step.to_bytes(8, "little", signed=True) for step in steps)
    (ending_path(job.folder, 0).parent / "steps").write_bytes(data)
    assert read_steps(job.folder) == steps


def leaves(job, rank, **word):
    ending_path(job.folder, rank).write_bytes(pickle.dumps(Ending(log=RankLog(rank, ROLES[rank]), **word)))


def test_a_worker_in_a_step_may_be_lost_and_nobody_else(job):
    outcome = Outcome(ROLES)
    in_steps(job, [3, 2, 5])
    assert _may_be_lost(job, 1, outcome)
    assert not _may_be_lost(job, 2, outcome)  # a service
    outcome.lost[0] = -9
    assert not _may_be_lost(job, 1, outcome)  # the last worker


def test_a_worker_that_has_not_begun_may_not_be_lost(job):
    in_steps(job, [3, -1, 5])
    assert not _may_be_lost(job, 1, Outcome(ROLES))


def test_what_a_rank_says_of_its_end_counts(job):
    in_steps(job, [3, 2, 5])
    leaves(job, 1, how="stopped", signal=signal.SIGTERM)
    assert _may_be_lost(job, 1, Outcome(ROLES))
    leaves(job, 1, how="stopped", signal=signal.SIGINT)
    assert not _may_be_lost(job, 1, Outcome(ROLES))
    leaves(job, 1, how="raised")
    assert not _may_be_lost(job, 1, Outcome(ROLES))


def test_the_record_says_who_was_lost_and_a_silent_rank_is_still_an_error(job):
    in_steps(job, [3, 2, 5])
    leaves(job, 0, how="returned", result=1)
    leaves(job, 2, how="returned", result=2)
    outcome = Outcome(ROLES, endings=read_endings(job.folder, 3), steps=read_steps(job.folder), lost={1: -9})
    record = outcome.record()
    assert record.lost == {1: "was killed by SIGKILL in step 2"} and record.results == [1, None, 2]
    with pytest.raises(RankFailed, match="rank 1"):
        Outcome(ROLES, endings=outcome.endings, steps=outcome.steps).record()


def test_a_standstill_of_the_others_is_seen_beside_a_lost_rank(job):
    tell_lost(job.folder, 1)
    assert _nobody_goes_on([Standing(1, "waiting", ()), Standing(0, "lost", ())])
    assert not _nobody_goes_on([Standing(1, "running", ()), Standing(0, "lost", ())])
