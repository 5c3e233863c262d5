import pytest

from geartrain.record.chrome import chrome_trace
from geartrain.record.split import split
from geartrain.record.summary import summarise
from geartrain.report.drawing import draw
from geartrain.report.timeline import Item, shown_ranks, timeline
from tests.report.folders import record_of


def line_of(record, budget=10_000):
    parts = split(record)
    return timeline(chrome_trace(record, parts), summarise(record, parts)["ranks"], budget)


def test_three_steps_after_the_first():
    line = line_of(record_of(2, steps=5, late=0.001))
    assert line.note == "steps 1 to 3 on all 2 ranks"
    assert (line.begin, line.length) == (7_000_000, 21_000_000)
    assert line.rows[0].main[:1] == [Item(0, 4_000_000, "compute", "compute")]
    kinds = [item.kind for item in line.rows[0].main]
    assert kinds.count("wait") == kinds.count("exposed") == 3
    assert line.rows[1].steps[0].tip == "step 1, loss 1"


def test_the_only_step_is_drawn():
    assert line_of(record_of(2, steps=1)).note == "step 0 on all 2 ranks"


def test_names_and_bytes_are_told():
    tips = {item.tip for item in line_of(record_of(2)).rows[1].wire}
    assert tips == {"all_reduce\nsends 2 kB in 2 message(s)\ntensor of 4 kB\nbetween ranks 0, 1"}


def test_lanes_have_a_band_unless_there_are_many_ranks():
    few, many = line_of(record_of(3, lanes=True)), line_of(record_of(20, lanes=True))
    assert "lane averaging: mix <b>models</b>" in {item.tip for item in few.rows[0].lanes}
    assert not any(row.lanes for row in many.rows)
    assert many.note == "steps 1 to 3 on all 20 ranks, without their lanes"


def test_a_small_budget_shows_fewer_steps_then_a_part_of_one():
    assert line_of(record_of(2, steps=5), budget=20).note == "steps 1 to 2 on all 2 ranks"
    part = line_of(record_of(8, steps=5), budget=20)
    assert part.note == "the first part of step 1 on all 8 ranks"
    assert sum(len(row.main) + len(row.wire) + len(row.steps) for row in part.rows) <= 20


@pytest.mark.parametrize(("count", "shown"), [(64, 64), (65, 12), (1000, 12)])
def test_of_many_ranks_extremes_and_median(count, shown):
    ranks = [{"rank": i, "role": "worker", "wait": float(count - i)} for i in range(count)]
    chosen = shown_ranks(ranks)
    assert len(chosen) == shown
    assert {0, count - 1} <= set(chosen)
    if shown < count:
        assert count // 2 in chosen


def test_servers_are_always_among_them():
    ranks = [{"rank": i, "role": "server" if i == 99 else "worker", "wait": 1.0} for i in range(100)]
    assert 99 in shown_ranks(ranks)


def test_an_empty_trace_has_no_timeline():
    assert timeline({"traceEvents": []}, [], 100) is None
    assert timeline({}, [], 100) is None


def test_drawing_holds_every_interval_for_the_script():
    line = line_of(record_of(2, steps=3, lanes=True))
    drawn = draw(line, "Timeline")
    assert drawn.count("<svg") == 1
    assert "\\u003cb>models" in drawn and "<b>models" not in drawn
    for kind in ("compute", "exposed", "wait", "wire", "lane"):
        assert f'class="k-{kind}"' in drawn
