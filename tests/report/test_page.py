import gzip
import json
import re
from html.parser import HTMLParser

import pytest

from geartrain.cli import main
from geartrain.errors import TaskError
from geartrain.report.page import report_html, write_report
from geartrain.report.reading import read_runs
from tests.report.folders import record_of, write_grid, write_run

EVIL = 'x:note=<img src=x onerror="alert(1)">\'&</script>'


class Page(HTMLParser):
    """Collects tags and checks that they are closed in order."""

    VOID = frozenset({"meta", "br", "img", "wbr", "link", "input"})

    def __init__(self, text):
        super().__init__()
        self.tags, self.stack, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def grid(tmp_path):
    return write_grid(tmp_path / "grid", strategies=("synchronous", EVIL), failed=("ring",))


def test_the_page_is_whole_and_asks_the_network_for_nothing(grid):
    text = report_html(read_runs([grid]))
    page = Page(text)
    assert page.stack == []
    headings = [data for data in page.texts if data in ("In words", "All runs", "Compared", "Each run")]
    assert headings == ["In words", "All runs", "Compared", "Each run"]
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset", "xlink:href"} & set(attributes)
    assert "@import" not in text and not re.search(r"url\((?!#)", text)
    assert not re.search(r"https?://", text)


def test_text_of_the_user_is_text(grid):
    text = report_html(read_runs([grid]))
    page = Page(text)
    assert "<img" not in text
    assert EVIL in "".join(page.texts)
    assert sum(tag == "script" for tag, _ in page.tags) == text.count("<script")


def test_figures_and_the_reason_for_missing_ones(grid, tmp_path):
    page = "".join(Page(report_html(read_runs([grid]))).texts)
    for title in ("Loss against time", "Throughput against workers", "Timeline of steps 1 to 3", "Who waited for whom"):
        assert title in page
    lonely = write_run(tmp_path / "lonely", record_of(1, late=0.0))
    (lonely / "trace.json.gz").unlink()
    page = "".join(Page(report_html(read_runs([lonely]))).texts)
    assert "The folder has no trace that can be read." in page
    assert "No rank waited for another one." in page
    assert "No efficiency column" in page


def test_the_same_folders_give_the_same_bytes(grid):
    assert report_html(read_runs([grid])) == report_html(read_runs([grid]))


def test_sixty_four_ranks_stay_small(tmp_path):
    for i in range(4):
        write_run(tmp_path / str(i), record_of(64, lanes=True), strategy=f"s{i}")
    assert len(report_html(read_runs([tmp_path]))) < 3e6


def test_where_the_report_is_written(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert write_report(grid) == grid / "report.html"
    assert write_report([grid, grid / "synchronous--2"]).resolve() == tmp_path / "report.html"
    assert write_report(grid, tmp_path / "new" / "page.html").is_file()
    assert write_report(grid, tmp_path / "new") == tmp_path / "new" / "report.html"
    with pytest.raises(TaskError, match="no folder to report on"):
        write_report([])


def test_the_command(grid, tmp_path, capsys):
    target = tmp_path / "page.html"
    with pytest.raises(SystemExit) as left:
        main(["report", str(grid), "--out", str(target)])
    assert left.value.code == 0
    assert capsys.readouterr().out.strip() == str(target)
    with pytest.raises(SystemExit) as left:
        main(["report", str(tmp_path / "nothing")])
    assert left.value.code == 2
    assert "there is no run in" in capsys.readouterr().err.replace("\n", " ")


def test_traces_are_what_perfetto_reads(tmp_path):
    """Chrome's trace format: metadata names every process and thread; complete events have ts and dur in microseconds.

    Those of one thread nest or follow each other, else they would be drawn wrongly or dropped.
    """
    folder = write_run(tmp_path, record_of(3, lanes=True, server=True))
    trace = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    named, threads = set(), {}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int) and isinstance(event["args"], dict)
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ph"] == "X"
        assert event["ts"] >= 0 and event["dur"] >= 0
        assert event["name"] and isinstance(event["name"], str)
        threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], -event["dur"]))
    assert {pid for pid, _ in threads} == {0, 1, 2}
    for (pid, tid), slices in threads.items():
        assert ("process_name", pid, 0) in named and ("thread_name", pid, tid) in named
        assert_nested(sorted(slices))


def assert_nested(slices):
    open_until = []
    for begin, minus_length in slices:
        end = begin - minus_length
        while open_until and open_until[-1] <= begin + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3
        open_until.append(end)
