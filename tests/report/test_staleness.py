"""The histogram of staleness is that of the run's steps, and is not there where there is none."""

import json

from geartrain.record.files import RUN, STEPS
from geartrain.report.page import report_html
from geartrain.report.reading import read_run
from geartrain.report.staleness import MOST_BARS, run_staleness


def folder(path, rows):
    path.mkdir(exist_ok=True)
    (path / RUN).write_text(json.dumps({"summary": {"strategy": "async_sgd", "ranks": 2}}))
    (path / STEPS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_run(path)


def test_numbers_and_lists_of_all_ranks_are_counted(tmp_path):
    rows = [
        {"rank": 0, "step": 0, "staleness": 2.0},
        {"rank": 2, "step": 0, "staleness": [0, 1, 1], "dropped": [5]},
        {"rank": 1, "step": 0, "loss": 1.0},
    ]
    drawn = run_staleness(folder(tmp_path, rows))
    for words in (
        "0 updates old: 1 used",
        "1 updates old: 2 used",
        "2 updates old: 1 used",
        "5 updates old: 1 dropped",
    ):
        assert words in drawn
    assert "1 on average of 4; 1 more were too old" in drawn


def test_a_run_without_ages_has_no_figure(tmp_path):
    run = folder(tmp_path, [{"rank": 0, "step": 0, "loss": 1.0}])
    assert run_staleness(run) == "" and "Staleness" not in report_html([run])


def test_many_ages_share_bars_and_the_page_shows_them(tmp_path):
    run = folder(tmp_path, [{"rank": 0, "step": 0, "staleness": list(range(100))}])
    drawn = run_staleness(run)
    assert drawn.count("<rect") == 20 <= MOST_BARS
    assert "0 to 4 updates old: 5 used" in drawn and drawn in report_html([run])
