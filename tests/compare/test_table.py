import io
from pathlib import Path

import pytest
from rich.console import Console

from geartrain.compare.runner import run_grid
from geartrain.compare.table import failures, print_comparison
from geartrain.compare.verdict import verdict
from geartrain.errors import DeadlockError
from geartrain.runtime.targets import Targets
from tests.compare.fakes import Fake, FakeEngine, Silent, grid

EXPECTED = Path(__file__).with_name("expected_table.txt")


def printed(comparison, width=80):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_comparison(console, comparison)
    return console.file.getvalue()


def test_table_character_for_character():
    lines = [line.rstrip() for line in printed(run_grid(grid(), Silent())).splitlines()]
    assert lines == EXPECTED.read_text(encoding="utf-8").splitlines()


def test_table_is_the_same_in_every_terminal():
    comparison = run_grid(grid(clusters=("ethernet-1g", "ethernet-10g")), Silent())
    assert printed(comparison, 40).split() == printed(comparison, 300).split()
    narrow = printed(comparison, 40).splitlines()
    assert narrow == printed(comparison, 120).splitlines()
    assert "ethernet-10g" in "".join(narrow[-6:])


def test_failed_cells_are_told_below():
    def trouble(main, workers, run):
        if main.strategy.time == 2.0:
            raise DeadlockError("no rank can continue at t = 0.4 s\n  rank 0  waits")

    comparison = run_grid(grid(engine=FakeEngine(trouble)), Silent())
    text = printed(comparison)
    assert "failed" in text
    assert "fake:time=2,nbytes=4000 on ethernet-1g with 2 worker(s): no rank can continue at t = 0.4 s" in text
    assert len(failures(comparison)) == 1


def test_cells_that_never_ran_are_counted():
    comparison = run_grid(grid(), Silent())
    comparison.results.pop()
    assert failures(comparison) == ["1 of 2 cells did not run"]


def test_a_target_has_its_column_note_and_winner():
    def reach(main, workers, run):
        run.results[0]["time_to_target"] = None if main.strategy.time == 2.0 else 3.0

    comparison = run_grid(grid(engine=FakeEngine(reach), targets=Targets(loss=1.5, metric=0.9)), Silent())
    text = " ".join(printed(comparison).split())
    assert "time to" in text and "target s" in text and "at most 4 steps" in text
    rows = [line for line in printed(comparison).splitlines() if "fake:time" in line]
    assert " 3.000 " in rows[0] and " - " in rows[1]
    assert "until the mean loss of 10 steps is 1.5 and the metric, every 10 steps, is 0.9" in text
    assert "Evaluations are not charged." in text
    assert verdict(comparison.results).endswith(
        "The target is reached first by fake:time=1,nbytes=1000 on ethernet-1g with 2 worker(s), in 3 s."
    )


def sentence(*strategies, **values):
    return verdict(run_grid(grid(strategies=strategies, **values), Silent()).results)


def test_verdict_names_bytes_of_the_busiest_rank():
    assert sentence(Fake(), Fake(time=2.0, comm=1.25, nbytes=4000)) == (
        "On ethernet-1g with 2 workers fake:time=1,nbytes=1000 wins with 1 s a step, 2 times as fast as "
        "fake:time=2,nbytes=4000 (its busiest rank sends 1 kB a step instead of 4 kB)."
    )


def test_verdict_on_next_and_slowest_for_most_workers_of_each_cluster():
    text = sentence(
        Fake(),
        Fake(time=2.0, comm=0.25),
        Fake(time=4.0, comm=3.25),
        ranks=(2, 4),
        clusters=("ethernet-1g", "ethernet-10g"),
    )
    half = (
        "with 4 workers fake:time=1,nbytes=1000 wins with 1 s a step, 2 times as fast as fake:time=2,nbytes=1000 (it "
        "computes 750 ms a step instead of 1.75 s) and 4 times as fast as fake:time=4,nbytes=1000 (it stands still "
        "250 ms a step for communication instead of 3.25 s)"
    )
    assert text == f"On ethernet-1g {half}; on ethernet-10g {half}."


@pytest.mark.parametrize(
    ("strategies", "words"),
    [
        ((Fake(),), "fake:time=1,nbytes=1000 takes 1 s a step"),
        ((Fake(), Fake(nbytes=5)), "all strategies take about 1 s a step"),
        (
            (Fake(), Fake(nbytes=5), Fake(time=3.0, comm=2.25)),
            "(no clear lead over fake:time=1,nbytes=5), 3 times as fast",
        ),
    ],
)
def test_verdict_on_few_or_equal(strategies, words):
    assert words in sentence(*strategies)


def test_verdict_without_results():
    assert verdict([]) == "No run came far enough to compare."
