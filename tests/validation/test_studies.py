"""The pages on studies: each paper has one, with its command, and pictures that are there and well-formed."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from geartrain.validation.published import load_figures

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "docs" / "studies"
PAPERS = ("hw-scaling", "large-scale-archs", "leading-edge", "universal-perf")
PICTURES = ROOT / "docs" / "images" / "studies"


def pictures(page):
    text = (STUDIES / f"{page}.md").read_text(encoding="utf-8")
    return {(STUDIES / target).resolve() for target in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_paper_has_a_page_and_its_command(paper):
    assert load_figures(ROOT / "validation" / f"{paper}.toml").paper == paper
    text = (STUDIES / f"{paper}.md").read_text(encoding="utf-8")
    assert f"geartrain validate --only {paper}\n" in text
    names = re.findall(r"`(geartrain\.[\w.]+)`", text)
    assert names and all((ROOT / "/".join(name.split(".")[:3])).with_suffix(".py").exists() for name in names), names
    assert pictures(paper)


def test_pictures_are_those_of_the_pages():
    shown = set().union(*map(pictures, PAPERS))
    assert shown == set(PICTURES.glob("*.svg"))
    for path in shown:
        root = ElementTree.parse(path).getroot()
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for label in root.iter("{http://www.w3.org/2000/svg}text"):
            assert 0 <= float(label.attrib["x"]) <= width and 0 <= float(label.attrib["y"]) <= height, label.text


def test_the_map_counts_what_is_in_the_files():
    text = (STUDIES / "index.md").read_text(encoding="utf-8")
    for paper in PAPERS:
        count, held, missed = map(
            int, re.search(rf"\({paper}\.md\) \|[^|]*\| (\d+) \| (\d+) \| (\d+) \|", text).groups()
        )
        assert count == held + missed == len(load_figures(ROOT / "validation" / f"{paper}.toml").figure)
