"""Files of published figures: what is in them, what is refused, and how a figure becomes a row."""

import importlib
from pathlib import Path

import pytest

from geartrain.errors import ConfigurationError, UnknownName
from geartrain.validation.published import HOLDS, MISSED, NOTE, check_published, load_figures

FOLDER = Path(__file__).parents[2] / "validation"
BAR, PREDICTED, ERROR, VERDICT = 4, 6, 7, 8

HEAD = 'paper = "one"\ntitle = "A paper, an author, 2020, somewhere"\n'


def seven(**given):
    return 7.0 * given.get("times", 1)


def broken(**given):
    raise KeyError("no such layer\nand more")


def leaving(**given):
    raise SystemExit(0)


def nothing(**given):
    return float("nan")


def figure(name="a", function="seven", published="7.0", more="tolerance = 0.1", given="{}"):
    return f"""
[[figure]]
name = "{name}"
setting = "one machine"
published = {published}
where = "table 3"
origin = "read"
predict = "{__name__}:{function}"
given = {given}
{more}
"""


def write(folder, *figures, head=HEAD, name="one.toml"):
    path = folder / name
    path.write_text(head + "".join(figures))
    return path


def test_figures_that_hold_and_figures_that_do_not(tmp_path):
    write(
        tmp_path,
        figure("equal"),
        figure("near", published="6.5"),
        figure("far", published="14.0"),
        figure("times", published="14.0", given="{ times = 2 }"),
        figure("least", published="6.0", more='kind = "at_least"'),
        figure("not least", published="7.5", more='kind = "at_least"'),
        figure("least with room", published="7.5", more='kind = "at_least"\ntolerance = 0.1'),
        figure("most", published="8.0", more='kind = "at_most"'),
        figure("not most", published="6.0", more='kind = "at_most"'),
    )
    section = check_published(tmp_path)
    verdicts = {row[1]: row[VERDICT] for row in section.rows}
    missed = {"far", "not least", "not most"}
    assert verdicts == {name: MISSED if name in missed else HOLDS for name in verdicts}
    assert section.missed == 3
    assert section.notes[:2] == [NOTE, "one, far: predicted 7, published 14 (-50.0%)   MISSED"]
    assert {row[BAR] for row in section.rows} == {"within 10 %", "at least", "at least (room of 10 %)", "at most"}
    assert [one["name"] for one in section.details["figures"]] == [row[1] for row in section.rows]
    assert section.details["figures"][0]["setting"] == "one machine"
    assert {row[1]: row[ERROR] for row in section.rows}["near"] == pytest.approx(7 / 6.5 - 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"function": "broken"}, "KeyError: 'no such layer"),
        ({"function": "nothing"}, "returned nan; expected a finite number"),
        ({"function": "absent"}, "AttributeError"),
        ({"function": "leaving"}, "SystemExit"),
    ],
)
def test_what_cannot_be_predicted_is_missed_and_the_others_go_on(tmp_path, changes, words):
    write(tmp_path, figure("first", **changes), figure("second"))
    section = check_published(tmp_path)
    first, second = section.rows
    assert first[VERDICT].startswith("cannot be predicted: ") and words in first[VERDICT]
    assert "\n" not in first[VERDICT]
    assert first[PREDICTED] is None and first[ERROR] is None
    assert second[VERDICT] == HOLDS
    assert section.missed == 1 and "cannot be predicted" in section.notes[1]


def test_a_strategy_that_does_not_exist(tmp_path):
    setting = '{ strategy = "not_yet", cluster = "ethernet-1g", workload = { parameters = 8 }, ranks = 2, batch = 2 }'
    text = figure(given=setting).replace(f"{__name__}:seven", "geartrain.validation.quantities:step_time")
    write(tmp_path, text)
    section = check_published(tmp_path)
    assert section.rows[0][VERDICT].startswith("cannot be predicted: no strategy is called 'not_yet'")
    assert section.missed == 1


@pytest.mark.parametrize(
    ("text", "value"), [("1.27", 1.27), ("3", 3.0), ('"38 ms"', 0.038), ('"10 Gbit/s"', 1.25e9), ('"98 MB"', 98e6)]
)
def test_published_values(tmp_path, text, value):
    assert load_figures(write(tmp_path, figure(published=text))).figure[0].published == value


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ([figure(more="tolerence = 0.1")], r"figure\[0\].tolerence: unknown key \(did you mean 'tolerance'\?\); known"),
        ([figure(more="")], r"figure\[0\]: needs a tolerance"),
        ([figure(more='kind = "about"')], r"figure\[0\].kind: 'about' is not known here"),
        ([figure(published='"38"')], r"figure\[0\].published: '38' is no figure; give a number, or text with a unit"),
        ([figure(published="true")], r"figure\[0\].published: True is no figure"),
        ([figure(published="0")], "relative to 0"),
        ([figure(), figure()], "two figures are called 'a'"),
        ([figure().replace("where =", "# where =")], r"figure\[0\].where: missing"),
        ([figure().replace(":seven", ".seven")], r"figure\[0\].predict: .* names no function"),
        ([figure().replace('"read"', '"guessed"')], r"figure\[0\].origin: 'guessed' is not known here"),
        ([], "figure: missing"),
        (["figure = []"], "figure: is empty"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, figures, words):
    path = write(tmp_path, *figures)
    with pytest.raises(ConfigurationError, match=words):
        load_figures(path)


def test_a_file_that_is_no_toml(tmp_path):
    path = write(tmp_path, "[[figure")
    with pytest.raises(ConfigurationError, match="cannot read the figures"):
        load_figures(path)


def test_which_files_are_read(tmp_path):
    write(tmp_path, figure("a"))
    write(tmp_path, figure("b"), head=HEAD.replace('"one"', '"two"'), name="two.toml")
    (tmp_path / "grid.toml").write_text("ranks = [2, 4]\n")
    assert [row[0] for row in check_published(tmp_path).rows] == ["one", "two"]
    assert [row[0] for row in check_published(tmp_path, ["two"]).rows] == ["two"]
    with pytest.raises(UnknownName, match="did you mean 'two'"):
        check_published(tmp_path, ["twoo"])
    write(tmp_path, figure("c"), name="three.toml")
    with pytest.raises(ConfigurationError, match="'one' has another file"):
        check_published(tmp_path)
    with pytest.raises(ConfigurationError, match="there is no folder"):
        check_published(tmp_path / "absent")


def shipped():
    return [path for path in sorted(FOLDER.glob("*.toml")) if "[[figure]]" in path.read_text()]


@pytest.mark.parametrize("path", shipped(), ids=lambda path: path.stem)
def test_the_files_of_the_project_can_be_read_and_their_functions_exist(path):
    paper = load_figures(path)
    assert paper.paper == path.stem
    for one in paper.figure:
        module, _, name = one.predict.partition(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize("paper", ["leading-edge", "ps-p2p-ring"])
def test_figures_that_must_hold(paper):
    section = check_published(FOLDER, [paper])
    assert section.notes == [NOTE] and section.missed == 0


def test_the_all_reduce_after_backward_of_the_survey_is_within_its_bar():
    figures = [one for one in load_figures(FOLDER / "comm-survey.toml").figure if one.name.startswith("BSP-A2A")]
    assert len(figures) == 24
    assert [one.name for one in figures if not one.holds(one.predicted())] == []
