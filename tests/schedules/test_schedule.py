"""When exchanges start and are applied."""

import pytest

from geartrain.errors import StrategyError
from geartrain.schedules.schedule import Every


def starts(schedule):
    return [step for step in range(1, 13) if schedule.due(step)]


def test_every_period_from_a_start_on():
    assert starts(Every()) == list(range(1, 13))
    assert starts(Every(period=5)) == [5, 10]
    assert starts(Every(period=4, start=3)) == [7, 11]


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_applied_so_many_steps_after_it_started(delay):
    schedule = Every(period=4, start=1, delay=delay)
    applied = [step for step in range(1, 30) if schedule.applied(step)]
    assert applied == [step + delay for step in range(1, 30 - delay) if schedule.due(step)]


@pytest.mark.parametrize("wrong", [{"period": 0}, {"period": 2, "start": -1}, {"period": 2, "delay": 3}, {"delay": -1}])
def test_schedules_that_cannot_be(wrong):
    with pytest.raises(StrategyError, match="cannot be: the period is 1 or more"):
        Every(**wrong)
