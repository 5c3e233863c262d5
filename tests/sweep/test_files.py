"""What a sweep leaves in its folder: well-formed, complete, and asking the network for nothing."""

import csv
import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from geartrain.errors import TaskError
from geartrain.sweep.axis import parse_vary
from geartrain.sweep.files import write
from geartrain.sweep.run import sweep
from tests.predict.small import cluster, question

NAMES = ("synchronous", "local_sgd:period=4", "single")  # the last one fails at every point
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SVG = "{http://www.w3.org/2000/svg}"


def left(folder, *vary, names=NAMES):
    found = sweep([question(name, cluster=cluster(latency=1e-4)) for name in names], [parse_vary(one) for one in vary])
    write(found, folder, "small", "on a machine")
    return found


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return left(folder, "links.rate=10Mbit/s..100Gbit/s:9"), folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    return left(folder, "links.rate=10Mbit/s..100Gbit/s:5", "ranks=2..16"), folder


class Page(HTMLParser):
    """Counts what a page is made of, and notes elements that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.count, self.wrong = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def test_files(one, two):
    names = {"index.html", "curves.svg", "sweep.json", "sweep.csv"}
    assert {path.name for path in one[1].iterdir()} == names
    assert {path.name for path in two[1].iterdir()} == names | {"map.svg"}


@pytest.mark.parametrize("which", ["one", "two"])
def test_page(which, request):
    found, folder = request.getfixturevalue(which)
    text = (folder / "index.html").read_text()
    page = Page(text)
    assert (page.open, page.wrong) == ([], [])
    assert not re.findall(r"(?:src|href)=|https?://(?!www\.w3\.org)|@import", text)
    assert page.count["tr"] == 1 + len(found.points)
    assert ("Who wins where" in text) == (which == "two")


def test_map_has_a_cell_for_each_point_told_by_more_than_colour(two):
    found, folder = two
    root = ElementTree.parse(folder / "map.svg").getroot()
    titles = [one.text for one in root.iter(f"{SVG}title")]
    assert len(titles) == len(found.points)
    patterns = {one.get("id") for one in root.iter(f"{SVG}pattern")}
    used = {one.get("fill")[5:-1] for one in root.iter(f"{SVG}rect") if (one.get("fill") or "").startswith("url")}
    assert used <= patterns and len(used) > 1
    letters = [one.text for one in root.iter(f"{SVG}text") if one.get("class") == "halo"]
    assert len(letters) == len(found.points) and set(letters) <= {"A", "B", "1"}


def test_figures_alone_are_svg_of_their_own_size(one):
    root = ElementTree.parse(one[1] / "curves.svg").getroot()
    assert root.tag == f"{SVG}svg"
    inside = [child for child in root if child.tag == f"{SVG}svg"]
    assert len(inside) == 2  # samples per second, and what is exposed
    assert float(inside[1].get("y")) == float(inside[0].get("height"))
    assert "--paper" in root.find(f"{SVG}style").text


def test_json_and_csv_say_the_same(two):
    found, folder = two
    told = json.loads((folder / "sweep.json").read_text())
    assert told["format"] == 1 and told["strategies"] == [str(question(name).strategy) for name in NAMES]
    assert [axis["key"] for axis in told["axes"]] == ["links.rate", "ranks"]
    rows = list(csv.DictReader(io.StringIO((folder / "sweep.csv").read_text())))
    assert len(rows) == len(found.points) * len(NAMES)
    first, failed = told["points"][0], rows[2]
    step_time = found.points[0].predictions[0].step_time
    assert float(rows[0]["step_time"]) == first["predictions"][0]["step_time"] == step_time
    assert first["predictions"][2] is None
    assert "trains in one process" in first["errors"][2] == failed["error"]
    assert {one["key"] for one in told["crossings"]} <= {"links.rate"}


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="cannot write"):
        left(tmp_path / "file", "ranks=2,4")


@pytest.mark.multi
@pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to look at sweeps")
@pytest.mark.parametrize("width", [1280, 500])
def test_nothing_sticks_out_in_a_browser(two, tmp_path, width):
    look = "document.title = document.documentElement.scrollWidth - document.documentElement.clientWidth"
    probe = f"<script>addEventListener('load', () => {{ {look} }})</script>"
    page = tmp_path / "page.html"
    page.write_text((two[1] / "index.html").read_text().replace("</body>", probe + "</body>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--window-size={width},900"]
    done = subprocess.run(
        [BROWSER, *flags, f"--user-data-dir={tmp_path / 'home'}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "<title>0</title>" in done.stdout, done.stderr
    assert "CONSOLE" not in done.stderr
