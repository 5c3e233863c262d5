"""What a page says of predictions: cells of a validation, and plain runs of one cell on two engines."""

import json
import re

import pytest

from geartrain.errors import TaskError
from geartrain.report.checked import Table, checked_pairs, read_validations
from geartrain.report.page import report_html, write_report
from geartrain.report.pairs import both_timelines, pairs
from geartrain.report.reading import read_runs
from geartrain.report.scatter import BAND, Dot, scatter
from geartrain.report.validated import MOST_NOTES, MOST_PAIRS, MOST_ROWS, _table, cells
from tests.report.folders import cell_of, record_of, section_of, write_run, write_validation
from tests.report.test_page import Page


def write_pair(folder, *, scale=1.2, engine="emulated", strategy="synchronous", ranks=3, steps=4, repeat=""):
    for name, factor in (("simulated", 1.0), (engine, scale)):
        record = record_of(ranks, steps=steps, scale=factor)
        record.engine = name
        write_run(folder / f"{strategy}-{name}{repeat}", record, strategy=strategy)
    return folder


def page_of(folder):
    runs = read_runs([folder])
    return report_html(runs, read_validations([folder], runs))


@pytest.fixture
def validation(tmp_path):
    return write_validation(tmp_path / "checked")


def test_a_validation_as_a_page(validation):
    html = page_of(validation)
    page = Page(html)
    assert page.stack == []
    told = "".join(page.texts)
    assert "1 bar or figure was missed." in told
    assert "2 of 3 cells can be believed. Step times are predicted with an error of 16.9% in the median" in told
    assert "+30.0% at most (digits, peer_to_peer, star-1g, 4 workers, alike); 1 of 2 within 12%." in told
    assert "alike: worst error: 0.3   MISSED" in told and 'class="bad"' in html
    assert "step time (host-bound)" in told and "-66.7%" in told
    assert "digits, synchronous, star-1g, 4 workers, alike: 100 ms predicted, 104 ms measured (emulated), -3.8%" in told
    # Its runs stand in pairs, and not once more by themselves.
    assert "Each run" not in told and "All runs" not in told
    assert html.count('<svg viewBox="0 0 720') == 1


def test_the_table_of_a_section(validation):
    html = page_of(validation)
    assert "104 ms" in html and "-4.0%" in html and ">yes<" in html
    assert re.search(r'<tr class="failed"><th>single</th><td class="n">–</td>', html)


def test_a_validation_beside_other_runs(validation):
    write_run(validation / "other", record_of(2), strategy="other")
    told = "".join(Page(page_of(validation)).texts)
    assert "Validation: checked" in told and "Each run" in told and "other" in told


def test_a_validation_without_cells(tmp_path):
    section = section_of("t", ["a"], [[1.0]])
    (tmp_path / "validation.json").write_text(json.dumps({"format": 1, "missed": 0, "sections": {"network": section}}))
    told = "".join(Page(page_of(tmp_path)).texts)
    assert "No bars and figures were missed." in told and "1 row, 0 missed" in told


def test_many_notes_are_folded(tmp_path):
    section = section_of("t", ["a"], [[1.0]], notes=[f"note {i}" for i in range(MOST_NOTES + 1)])
    (tmp_path / "validation.json").write_text(json.dumps({"format": 1, "missed": 0, "sections": {"network": section}}))
    assert f"<summary>{MOST_NOTES + 1} notes, 0 missed</summary>" in page_of(tmp_path)


@pytest.mark.parametrize(
    "content", [{"format": 2, "sections": {}}, {"format": 1}, [], {"format": 1, "missed": 0, "sections": {"a": {}}}]
)
def test_what_is_no_validation_is_refused(tmp_path, content):
    (tmp_path / "validation.json").write_text(json.dumps(content))
    with pytest.raises(TaskError, match="is no result of a validation"):
        write_report(tmp_path)


def test_when_the_host_decided_everything(tmp_path):
    folder = write_validation(tmp_path, [cell_of("alike", "synchronous", 1.0, 2.0, doubt="host-bound: host busy 95%")])
    assert "None of 1 cells can be believed" in page_of(folder)


def test_runs_of_one_cell_belong_together(tmp_path):
    write_pair(tmp_path)
    write_pair(tmp_path, engine="real", strategy="peer_to_peer")
    write_run(tmp_path / "lonely", record_of(3), strategy="lonely")
    found = pairs(read_runs([tmp_path]))
    assert {(pair.measured.strategy, pair.measured.engine) for pair in found} == {
        ("synchronous", "emulated"),
        ("peer_to_peer", "real"),
    }
    assert all(pair.predicted.engine == "simulated" for pair in found)


def test_the_median_of_repeated_measurements_counts(tmp_path):
    for repeat, scale in enumerate((3.0, 1.5, 1.0)):
        write_pair(tmp_path, scale=scale, repeat=str(repeat))
    (pair,) = pairs(read_runs([tmp_path]))
    assert pair.measured.step_time == pytest.approx(0.004 + 0.001 + 1.5 * 0.002)


def test_a_plain_grid_shows_both_engines_and_claims_no_trust(tmp_path):
    write_pair(tmp_path)
    told = "".join(Page(page_of(tmp_path)).texts)
    assert "One cell was run by two engines. Step times are predicted with an error of 5.4% in the median" in told
    assert "can be believed" not in told and "host-bound" not in told
    assert "Predicted and measured, on one time axis" in told
    assert "Each run" in told


def test_one_engine_alone_has_nothing_to_be_compared_with(tmp_path):
    write_run(tmp_path / "a", record_of(2))
    assert "Predicted and measured" not in page_of(tmp_path)


def test_both_timelines_share_steps_and_axis(tmp_path):
    write_pair(tmp_path)
    (pair,) = pairs(read_runs([tmp_path]))
    line = both_timelines(pair, 8000)
    names = [row.name for row in line.rows]
    assert names[0] == "simulated" and names[4] == "emulated" and len(names) == 8
    assert names[1] == "simulated, rank 0" and line.rows[1].label == "rank 0"
    ends = [max(item.begin + item.length for item in row.main) for row in line.rows if row.main]
    assert ends[:3] == pytest.approx([3 * 7.0e6] * 3, rel=1e-6) and ends[3:] == pytest.approx([3 * 7.4e6] * 3, rel=1e-6)
    assert line.length == max(ends)
    # A small budget leaves fewer steps, the same for both.
    few = both_timelines(pair, 2 * 3 * 9)
    assert few.steps == 1 and few.note.startswith("step 1")


def test_a_trace_that_is_lost(tmp_path):
    write_pair(tmp_path)
    (tmp_path / "synchronous-emulated" / "trace.json.gz").unlink()
    (pair,) = pairs(read_runs([tmp_path]))
    assert both_timelines(pair, 8000) is None
    assert "One of both folders has no trace" in page_of(tmp_path)


def test_of_many_cells_the_worst_are_drawn(tmp_path):
    for index in range(MOST_PAIRS + 2):
        write_pair(tmp_path, strategy=f"s{index:02}", scale=1.0 + index / 100)
    html = cells(checked_pairs(read_runs([tmp_path])))
    assert html.count('class="run both"') == MOST_PAIRS
    assert "2 further cells with smaller errors" in html
    assert html.index("s13") < html.index("s00") and html.count(" open=") == 1


def place(dot, dots):
    drawn = scatter(dots, "t")
    data = json.loads(re.search(r'json">(.*?)</script>', drawn)[1])
    return next(one["at"] for one in data["series"] if one["name"] == dot.name)


def test_marks_lie_where_they_must():
    same, slow, fast = Dot("same", 1.0, 1.0, 0, False), Dot("slow", 1.0, 2.0, 1, True), Dot("fast", 4.0, 2.0, 2, False)
    dots = [same, slow, fast]
    (x, y), (x_slow, y_slow), (x_fast, y_fast) = (place(dot, dots) for dot in dots)
    assert x_slow == x and y_slow < y  # predicted too slow: above
    assert y_fast == y_slow and x_fast > x
    # Both axes are alike: twice the time is as far on one as on the other.
    assert y - y_slow == pytest.approx((x_fast - x) / 2, abs=0.2)
    drawn = scatter(dots, "t")
    assert drawn.count(" full") == 2 and 'class="band"' in drawn


def test_the_band_has_its_width():
    drawn = scatter([Dot("a", 1.0, 1.0, 0, False), Dot("b", 100.0, 100.0, 0, False)], "t")
    path = re.search(r'<path d="M([^"]*?)Z" class="band"', drawn)[1]
    corners = [tuple(map(float, corner.split(","))) for corner in path.split("L")]
    (x, y), (_, above) = corners[:2]
    per_decade = (corners[3][0] - x) / 2.1938  # 1.25 below the least to 1.25 above the largest
    assert 10 ** ((y - above) / per_decade) == pytest.approx(1 + BAND, rel=1e-3)


@pytest.mark.parametrize("num", [MOST_ROWS, MOST_ROWS + 1])
def test_of_a_long_table_the_notes_are_open_instead(num):
    missed = [f"figure {i}   MISSED" for i in range(MOST_NOTES + 1)]
    rows = [(i,) for i in range(num)]
    page = _table(
        Table(name="published", title="figures", columns=("figure",), rows=rows, notes=missed, missed=len(missed))
    )
    notes, table = re.findall(r"<details[^>]*>", page)
    assert ("open" in notes, "open" in table) == ((False, True) if num == MOST_ROWS else (True, False))
