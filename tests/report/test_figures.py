import json
import re

import pytest

from geartrain.report.bars import MOST_SQUARES, Bar, link_bars, note_on_links, split_bars, wait_matrix
from geartrain.report.figures import MOST_POINTS, Looks, losses, scaling, step_split, thinned
from geartrain.report.plot import Axis, Series, axis_of, embedded, line_plot
from geartrain.report.reading import Point, read_runs
from geartrain.report.svg import MARKS, Scale, element, log_ticks, mark, number, ticks, unit
from geartrain.report.words import facets
from tests.report.folders import record_of, write_grid, write_run


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0, 0.7, [0, 0.2, 0.4, 0.6]), (2.19, 2.31, [2.2, 2.25, 2.3]), (3, 3, [3])],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_log_ticks():
    assert log_ticks(1, 20) == pytest.approx([1, 2, 5, 10, 20])
    assert log_ticks(1, 1e6) == pytest.approx([10.0**i for i in range(7)])


def test_scales():
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(1, 100, 0, 200, log=True)(10) == pytest.approx(100)
    assert Scale(3, 3, 0, 200)(3) == 100


def test_units_and_numbers():
    assert unit("time", 0.0021) == (1e-3, "ms")
    assert unit("count", 3.0) == (1.0, "")
    assert number(12.0) == "12"
    assert number(1 / 3) == "0.33"


def test_text_is_escaped_everywhere():
    assert element("g", cls="a", data_t='<"&') == '<g class="a" data-t="&lt;&quot;&amp;"/>'
    assert "<" not in embedded("</script>&").removeprefix('<script type="application/json">').removesuffix("</script>")


def test_every_shape_is_its_own():
    assert len({mark(i, 0, 0, "") for i in range(len(MARKS))}) == len(MARKS)


def test_far_apart_values_get_a_logarithmic_axis():
    assert axis_of([1.0, 100.0], "t", "time").log
    assert not axis_of([0.0, 100.0], "t", "time").log
    assert not axis_of([50.0, 100.0], "t", "time").log


def test_a_plot_holds_its_points():
    drawn = line_plot(
        [Series(name="a", points=[(1.0, 2.0), (2.0, 4.0)], colour=0, shape=0)], Axis(title="x"), Axis(title="y"), "plot"
    )
    data = json.loads(re.search(r'json">(.*?)</script>', drawn)[1])
    assert data["series"][0]["of"] == [1.0, 2.0, 2.0, 4.0]
    assert len(data["series"][0]["at"]) == 4


def test_one_point_and_equal_values_can_be_plotted():
    for points in ([(1.0, 0.0)], [(1.0, 3.0), (2.0, 3.0)]):
        series = [Series(name="a", points=points, colour=0, shape=0)]
        assert "nan" not in line_plot(series, Axis(title="x"), Axis(title="y", zero=False), "plot")


def test_bars_add_up_and_may_be_empty():
    drawn = split_bars([Bar(name="a", parts=(1.0, 2.0, 1.0), form=4.0), Bar(name="b", parts=(0.0, 0.0, 0.0))], "t")
    widths = [float(width) for width in re.findall(r'<rect [^>]*?width="([\d.]+)"', drawn)]
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.02)
    assert "50.0% of 4 s" in drawn
    assert 'class="form"' in drawn


def test_long_names_are_cut_but_keep_their_number():
    drawn = split_bars([Bar(name="n" * 80, parts=(1.0, 0.0, 0.0), suffix=", 4 workers")], "t")
    assert ".., 4 workers<" in drawn
    assert "n" * 80 + ", 4 workers\ncompute" in drawn


def test_wait_matrix_is_darkest_where_most_was_waited():
    waits = {(0, 1): 2.0, (1, 0): 1.0, (1, None): 0.5}
    drawn = wait_matrix(waits, [0, 1], {0: "rank 0", 1: "rank 1 (server)"}, "t")
    assert re.findall(r'fill-opacity="([\d.]+)"', drawn) == ["1", "0.6", "0.4"]
    assert "rank 0 waited 2 s for rank 1 (server)" in drawn
    assert "rank 1 (server) waited 500 ms for another rank, a queue or a sleep" in drawn


def test_a_dense_matrix_keeps_its_longest_waits():
    waits = {(i, j): float(64 * i + j) for i in range(64) for j in range(64) if i != j}
    drawn = wait_matrix(waits, list(range(64)), {}, "t")
    assert drawn.count("data-t") == MOST_SQUARES
    assert "rank 63 waited 68.23 min for rank 62" in drawn
    assert "rank 0 waited" not in drawn


def test_busiest_links_first_and_a_word_on_the_rest():
    links = {f"l{i}": float(i) for i in range(40)}
    drawn = link_bars(links, 2, "t")
    assert drawn.index("l39") < drawn.index("l30")
    assert "l3<" not in drawn
    assert "24 further links carried no more than these" in note_on_links(links)
    assert note_on_links({"a": 1.0}) == ""


def test_long_curves_are_means_of_their_parts():
    curve = [Point(i, float(i), float(i % 2)) for i in range(10 * MOST_POINTS)]
    short = thinned(curve)
    assert len(short) == MOST_POINTS
    assert short[-1].step == curve[-1].step
    assert all(point.loss == 0.5 for point in short)
    assert thinned(curve[:5]) == curve[:5]


def test_figures_of_a_grid(tmp_path):
    runs = read_runs([write_grid(tmp_path)])
    (facet,), looks = facets(runs), Looks.of(runs)
    assert step_split(facet).count('class="form"') == 5  # four bars and the legend
    assert scaling(facet, looks).count('<svg viewBox="0 0 400') == 2
    assert "closed form" in scaling(facet, looks)
    both = losses(facet, looks)
    assert both.count('<svg viewBox="0 0 400') == 2
    assert "virtual time" in both


def test_what_cannot_be_drawn_says_why(tmp_path):
    runs = read_runs([write_run(tmp_path, record_of(2, steps=1))])
    (facet,), looks = facets(runs), Looks.of(runs)
    assert "a strategy with at least two numbers of workers" in scaling(facet, looks)
    assert "recorded no loss" in losses(facet, looks)
