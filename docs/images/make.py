"""Make the pictures of the docs from a report, in a browser without a window.

    python docs/images/make.py runs/first/report.html

docs/report.md says which run it is. One picture of the page's top, and one of each figure that the page on reports
speaks of.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from pathlib import Path

HERE = Path(__file__).parent
WIDTH, MARGIN = 1280, 8
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--virtual-time-budget=2000",
)
TOP = "report"
FIGURES = {  # picture -> how the title of its figure begins
    "report-split": "Where a step",
    "report-scaling": "Step time against workers",
    "report-loss": "Loss against time",
    "report-timeline": "Timeline of",
    "report-ranks": "Where each rank",
    "report-waits": "Who waited for whom",
    "report-links": "Bytes per link",
}
# Says where the wanted parts are, to the page around it.
PROBE = """<script>
addEventListener("load", () => setTimeout(() => {
  const figures = [...document.querySelectorAll("figure")], found = { height: document.documentElement.scrollHeight };
  for (const [name, title] of Object.entries(%s)) {
    const node = figures.find((figure) => figure.querySelector("h3").textContent.startsWith(title));
    const box = node && node.getBoundingClientRect();
    if (box) found[name] = [box.left, box.top, box.width, box.height];
  }
  parent.postMessage(JSON.stringify(found), "*");
}, 300));
</script>"""
# Lays the page out as wide as a desk's screen, whatever the window, and moves the wanted part into the window.
FRAME = """<!doctype html><body style="margin: 0; overflow: hidden"><iframe src="page.html"
style="position: absolute; border: 0; width: {width}px; height: {height}px; left: {left}px; top: {top}px"></iframe>
<script>addEventListener("message", (event) => {{ document.body.dataset.found = event.data; }});</script></body>"""


def browse(browser: str, folder: Path, frame: dict[str, float], *flags: str) -> str:
    """Open the page in a frame; what the browser writes to standard output."""
    outer = folder / "frame.html"
    outer.write_text(FRAME.format(width=WIDTH, **frame), encoding="utf-8")
    command = [browser, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, f"file://{outer}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def main(report: Path) -> int:
    """Write all pictures beside this file."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("no browser: install chromium", file=sys.stderr)
        return 2
    page = report.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "page.html").write_text(page.replace("</body>", PROBE % json.dumps(FIGURES) + "</body>"))
        dom = browse(browser, folder, {"height": 900, "left": 0, "top": 0}, f"--window-size={WIDTH},900", "--dump-dom")
        found = re.search(r'data-found="([^"]*)"', dom)
        assert found, "the page did not say where its parts are"
        boxes = json.loads(unescape(found[1]))
        tall = boxes.pop("height")
        boxes[TOP] = [MARGIN, MARGIN, WIDTH - 2 * MARGIN, 900]
        for picture, (left, top, width, height) in boxes.items():
            frame = {"height": tall, "left": MARGIN - left, "top": MARGIN - top}
            size = f"--window-size={round(width + 2 * MARGIN)},{round(height + 2 * MARGIN)}"
            target = HERE / f"{picture}.png"
            scale = 1 if picture == TOP else 1.25
            browse(browser, folder, frame, size, f"--force-device-scale-factor={scale}", f"--screenshot={target}")
            print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
