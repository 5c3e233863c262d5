"""The strategy that docs/write-a-strategy.md shows, loaded from its file as a user's, goes through the suite."""

import pickle
import re
from pathlib import Path

import pytest

from geartrain.errors import StrategyError, UnknownName
from geartrain.strategies import parse
from tests.conformance import test_conformance as suite
from tests.conformance.cases import SIMULATED, real_engine
from tests.conformance.harness import train
from tests.conformance.tasks import Curve, Golden

PAGE = Path(__file__).parents[2] / "docs" / "write-a-strategy.md"


@pytest.fixture(scope="module")
def star(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "star.py"
    path.write_text(re.search(r'^```python title="star.py"\n(.*?)^```$', PAGE.read_text(), re.M | re.S)[1])
    return f"{path}:Star"


@pytest.mark.parametrize("task", [Curve(), Golden()], ids=lambda task: task.name)
def test_one_rank(star, task):
    suite.test_one_rank_is_the_plain_loop(star, task)


@pytest.mark.parametrize(
    "check",
    [
        suite.test_same_seed_same_history,
        suite.test_three_ranks_agree_with_one_process,
        suite.test_more_ranks_than_elements_in_some_tensors,
        suite.test_saved_in_mid_run_and_continued,
        suite.test_meta_tensors_take_the_same_time_and_bytes,
        suite.test_a_loss_that_is_not_finite_stops_everybody_in_the_same_step,
    ],
    ids=lambda check: check.__name__.removeprefix("test_"),
)
def test_checks(star, check):
    check(star)


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_bytes_and_awkward_parameters(star, workers):
    suite.test_counted_bytes_and_messages_are_those_of_the_cost(star, workers)
    suite.test_unused_frozen_and_tied_parameters(star, workers)


def test_limits(star):
    for limit in parse(star).limits():
        for workers in (1, 2, 4):
            suite.test_declared_limits(limit, workers)


def test_nothing_is_left_after_close(star):
    for result in train(SIMULATED, parse(star), Golden(awkward=True), 2):
        assert result["hooks"] == 0 and result["gradients"] == 0


@pytest.mark.multi
def test_real_processes_read_the_file_again(star):
    real, simulated = (train(engine, parse(star), Golden(), 2) for engine in (real_engine(), SIMULATED))
    assert suite.equal(real[0]["weights"], simulated[0]["weights"])


def test_it_pickles_as_what_it_was_read_from(star):
    assert pickle.loads(pickle.dumps(parse(star))) == parse(star)


def test_what_is_refused(star, tmp_path):
    path = star.removesuffix(":Star")
    with pytest.raises(UnknownName, match=r"'Sta'.*did you mean 'Star'"):
        parse(f"{path}:Sta")
    with pytest.raises(StrategyError, match="there is no file"):
        parse(f"{tmp_path}/none.py:Star")
    taken = tmp_path / "taken.py"
    taken.write_text("from geartrain.strategies.single import Single\n\n\nclass Mine(Single):\n    pass\n")
    with pytest.raises(StrategyError, match="'single', as one of geartrain's own"):
        parse(f"{taken}:Mine")
