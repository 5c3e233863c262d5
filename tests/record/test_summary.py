import io

from rich.console import Console

from geartrain.record.log import Blocked
from geartrain.record.split import split
from geartrain.record.summary import summarise, summary_table
from tests.record.logs import late_rank, rank, record


def printed(run, width=90):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(summary_table(summarise(run, split(run))))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_table_of_few_ranks():
    assert printed(late_rank()) == [
        "simulated: 10 s of virtual time on 2 rank(s)",
        "┏━━━━━━┳━━━━━━┳━━━━━━━━━┳━━━━━━━━━━━━━━━┳━━━━━━┳━━━━━━━━━━━━┳━━━━━━━━━━┓",
        "┃ rank ┃ time ┃ compute ┃ exposed comm. ┃ wait ┃ bytes sent ┃ messages ┃",
        "┡━━━━━━╇━━━━━━╇━━━━━━━━━╇━━━━━━━━━━━━━━━╇━━━━━━╇━━━━━━━━━━━━╇━━━━━━━━━━┩",
        "│ 0    │ 10 s │     4 s │           3 s │  3 s │      100 B │        2 │",
        "│ 1    │ 10 s │     7 s │           3 s │  0 s │      100 B │        2 │",
        "└──────┴──────┴─────────┴───────────────┴──────┴────────────┴──────────┘",
    ]


def test_table_of_many_ranks_shows_extremes_and_median():
    blocked = [[Blocked(0.0, 0.25 * n, None, "", "sleep")] for n in range(17)]
    lines = printed(record(*(rank(n, blocked=blocked[n]) for n in range(17))))
    assert len(lines) == 8
    assert [line.split("│")[1].strip() for line in lines[4:7]] == ["least", "median", "most"]
    assert [line.split("│")[5].strip() for line in lines[4:7]] == ["0 s", "2 s", "4 s"]


def test_sentence_names_the_slowest_rank_and_its_reason():
    run = late_rank()
    assert summarise(run, split(run))["sentence"] == (
        "Slowest is rank 1: 10 s, 70% of it computing; it stood still longest, 3 s, for bytes in flight in all_reduce "
        "with rank 0; others waited 3 s in all for it."
    )


def test_sentence_of_a_rank_that_waits():
    run = late_rank()
    run.logs[0].end = 20.0
    assert summarise(run, split(run))["sentence"] == (
        "Slowest is rank 0: 20 s, 70% of it computing; it waited longest, 3 s, in all_reduce for rank 1."
    )


def test_sentence_of_ranks_that_end_together():
    """Rank 0 ends 0.5 % later, and stood still; rank 1 did not."""
    waited = rank(0, blocked=[Blocked(1.0, 3.0, None, "", "queue")])
    waited.end, other = 10.05, rank(1)
    run = record(waited, other)
    begin = "Slowest is rank 1 (of those that ended within 1%, it stood still least): 10 s, "
    assert summarise(run, split(run))["sentence"].startswith(begin)


def test_sentence_without_standing_still():
    run = record(rank(0))
    assert summarise(run, split(run))["sentence"].endswith("100% of it computing; it never stood still.")
    assert summarise(record(), split(record()))["sentence"] == "No rank has run."
