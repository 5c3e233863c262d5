"""A real run in which nobody goes on ends with who waits for what, and where; a slow rank is no such run."""

import pytest

from geartrain.cluster.load import load_cluster
from geartrain.engines.real import RealEngine
from geartrain.errors import DeadlockError
from geartrain.record.log import RunRecord
from tests.engines import programs

pytestmark = [pytest.mark.multi, pytest.mark.xdist_group("processes")]


def run(main) -> RunRecord:
    return RealEngine(patience=3.0).run(main, load_cluster("ethernet-1g"), workers=2)


def test_a_rank_that_returns_early_is_named():
    with pytest.raises(DeadlockError) as caught:
        run(programs.returns_early)
    text = str(caught.value)
    assert "rank 0 (worker)  waits in all_reduce #0" in text
    assert "programs.py" in text and "in returns_early: dist.all_reduce(" in text
    assert "rank 1 (worker)  has finished" in text
    assert "likely:  rank 1 returned while others still wait for it" in text
    record = caught.value.record
    assert isinstance(record, RunRecord) and [len(log.steps) for log in record.logs] == [1, 1]


def test_a_cycle_of_receives_is_told():
    with pytest.raises(DeadlockError) as caught:
        run(programs.receive_cycle)
    assert "rank 0 (worker)  waits in recv from group rank 1, tag 0" in str(caught.value)
    assert "rank 1 (worker)  waits in recv from group rank 0, tag 0" in str(caught.value)


def test_a_rank_that_computes_long_is_waited_for():
    assert run(programs.slow_but_alive).results == [2.0, 2.0]
