"""The page in a real browser without a window: nothing is complained about, nothing sticks out, pointing answers.

The page is copied with a script at its end that points at things and tells what it saw to a page around it, which
frames it as wide as a desk's or a phone's screen (a window cannot be made as narrow as a phone). Without a browser the
tests are skipped, and say so.
"""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from geartrain.report.page import write_report
from tests.report.folders import record_of, write_grid, write_run, write_validation

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
pytestmark = [
    pytest.mark.multi,
    pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to look at reports"),
]

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
)

PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const tip = document.getElementById("tip"), seen = {};
  const point = (node, x, y) => {
    const box = node.getBoundingClientRect();
    const where = { clientX: box.left + x * box.width, clientY: box.top + y, bubbles: true };
    node.dispatchEvent(new PointerEvent("pointermove", where));
    return getComputedStyle(tip).display === "block" ? tip.textContent : "";
  };
  const timeline = document.querySelector(".timeline"), unit = () => timeline.viewBox.baseVal.width;
  seen.width = document.documentElement.scrollWidth - innerWidth;
  // The run with 64 ranks is shown first: three steps of 7 ms, of which 0 to 4 is compute and 5 to 7 in flight.
  const at = (moment) => (70 + moment / 21 * (unit() - 78)) / unit();
  seen.compute = point(timeline, at(2), 26);
  seen.exposed = point(timeline, at(6), 26);
  seen.wire = point(timeline, at(6), 30.5);
  const plot = document.querySelector(".plot"), mark = plot.querySelector(".mark").getBoundingClientRect();
  const left = plot.getBoundingClientRect();
  seen.plot = point(plot, (mark.left + 4 - left.left) / left.width, mark.top + 4 - left.top);
  seen.bar = point(document.querySelector("rect.k-compute[data-t]"), 0.5, 2);
  const before = timeline.querySelector("text").textContent + timeline.querySelectorAll("path").length;
  const path = timeline.querySelector("path.k-compute").getAttribute("d");
  document.querySelector(".zoom button").click();
  seen.zoomed = timeline.querySelector("path.k-compute").getAttribute("d") !== path;
  document.querySelector(".zoom button:last-child").click();
  seen.restored = timeline.querySelector("path.k-compute").getAttribute("d") === path;
  seen.fits = Math.abs(unit() - timeline.getBoundingClientRect().width) < 2;
  dispatchEvent(new Event("beforeprint"));
  seen.opened = !document.querySelector("details:not([open])");
  dispatchEvent(new Event("afterprint"));
  seen.folded = document.querySelectorAll("details:not([open])").length > 0;
  seen.inside = tip.getBoundingClientRect().right <= innerWidth;
  parent.postMessage(JSON.stringify(seen), "*");
}, 300));
</script>"""


CHECKED_PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const tip = document.getElementById("tip"), seen = {};
  const point = (node, x, y) => {
    const box = node.getBoundingClientRect();
    const where = { clientX: box.left + x * box.width, clientY: box.top + y, bubbles: true };
    node.dispatchEvent(new PointerEvent("pointermove", where));
    return getComputedStyle(tip).display === "block" ? tip.textContent : "";
  };
  seen.width = document.documentElement.scrollWidth - innerWidth;
  const plot = document.querySelector(".scatter"), box = plot.getBoundingClientRect();
  seen.marks = [...plot.querySelectorAll(".mark")].map((mark) => {
    const at = mark.getBoundingClientRect();
    const told = point(plot, (at.left + at.width / 2 - box.left) / box.width, at.top + at.height / 2 - box.top);
    return [getComputedStyle(mark).fill === getComputedStyle(mark).stroke, told];
  });
  const both = document.querySelector(".timeline"), unit = both.viewBox.baseVal.width;
  // Seven rows of 26: a heading and three ranks for each engine. Three steps of 7 ms above, of 7.4 ms below.
  const at = (moment) => (70 + moment / 22.2 * (unit - 78)) / unit;
  seen.above = point(both, at(20.5), 22 + 26 + 4);
  seen.below = point(both, at(21.8), 22 + 5 * 26 + 4);
  const ends = () => [...both.querySelectorAll("path.k-compute")].map((path) => path.getAttribute("d")).join();
  const before = ends();
  document.querySelector(".both .zoom button").click();
  seen.zoomed = ends() !== before;
  seen.labels = [...both.querySelectorAll("text")].map((one) => one.textContent).filter((one) => /ed$/.test(one));
  seen.cut = Math.min(...[...both.querySelectorAll("text")].map((one) => one.getBBox().x));
  parent.postMessage(JSON.stringify(seen), "*");
}, 300));
</script>"""


FRAME = """<!doctype html><body><iframe src="page.html" style="width: {width}px; height: 1300px; border: 0"></iframe>
<script>addEventListener("message", (event) => {{ document.body.dataset.seen = event.data; }});</script></body>"""


def browse(page, tmp_path, *flags):
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, f"file://{page}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, complaints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    strategies = ("synchronous", "parameter_server:servers=4,placement=own,shard=even,overlap=true")
    write_grid(root, strategies=strategies, ranks=(2, 4), failed=("ring",))
    write_run(root / "many", record_of(64, server=True), strategy="many")
    return root


def probe(report, script, width, tmp_path):
    """What a script at the end of a page tells of it."""
    page = tmp_path / "page.html"
    page.write_text(report.read_text().replace("</body>", script + "</body>"))
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.format(width=width))
    dom, complaints = browse(frame, tmp_path, "--window-size=1400,1400", "--dump-dom")
    assert complaints == []
    found = re.search(r'data-seen="([^"]*)"', dom)
    assert found, dom[-2000:]
    return json.loads(unescape(found[1]))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("width", [1280, 360])
def test_predicted_and_measured(tmp_path, width):
    seen = probe(write_report(write_validation(tmp_path / "checked")), CHECKED_PROBE, width, tmp_path)
    assert seen["width"] <= 0
    assert [full for full, _ in seen["marks"]] == [False, True, True]
    doubtful, first, second = (told for _, told in seen["marks"])
    assert "parameter_server" in doubtful and "host busy 95%" in doubtful and "measured: 30 ms" in doubtful
    assert "synchronous" in first and "error -3.8%" in first and "predicted: 100 ms" in first
    assert "peer_to_peer" in second and "error +30.0%" in second
    assert "simulated, rank 0, step 3" in seen["above"] and "exposed communication" in seen["above"]
    assert "emulated, rank 0, step 3" in seen["below"] and "exposed communication" in seen["below"]
    assert seen["zoomed"] and seen["labels"] == ["simulated", "emulated"] and seen["cut"] >= 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_sticks_out_and_pointing_answers(folder, tmp_path, width):
    seen = probe(write_report(folder), PROBE, width, tmp_path)
    assert seen["width"] <= 0 and seen["inside"]
    assert "compute" in seen["compute"] and "rank 0" in seen["compute"]
    assert "exposed communication: all_reduce" in seen["exposed"] and "sends 1 kB" in seen["exposed"]
    assert "all_reduce" in seen["wire"] and "sends 1 kB" in seen["wire"]
    assert "synchronous" in seen["plot"] and "workers: 2" in seen["plot"]
    assert "compute" in seen["bar"]
    assert seen["zoomed"] and seen["restored"] and seen["fits"]
    assert seen["opened"] and seen["folded"]


@pytest.mark.timeout(120)
def test_paper(folder, tmp_path):
    target = tmp_path / "page.pdf"
    _, complaints = browse(write_report(folder), tmp_path, f"--print-to-pdf={target}")
    assert complaints == []
    assert target.read_bytes().startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", target.read_bytes())) >= 4
