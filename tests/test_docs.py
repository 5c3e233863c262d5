"""The pages: links lead somewhere, commands exist, every output shown is what the command prints, nothing is missing.

A block that begins with `$ geartrain` and shows lines below it is run; its lines must come in that order, where `...`
stands for lines left out. A Python block with a title is a file of that name. Blocks that take long are run by
`make slow`. With GEARTRAIN_REWRITE_DOCS=1 the lines are replaced by those that the command prints now.
"""

import dataclasses
import difflib
import importlib.util
import inspect
import itertools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer

from geartrain import errors
from geartrain.cli import main
from geartrain.cli.app import app
from geartrain.cluster import list_presets, load_cluster, parse_cluster
from geartrain.strategies import TABLE, parse_list

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]}
EXAMPLES = sorted((ROOT / "examples" / "clusters").glob("*.toml"))

BLOCK = re.compile(r"^```(\w*)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
MISTAKE = (
    'wire = { rate = "1 Gbit/s", latency = "50 us", mtu = "1500 B" }',
    'wire = { rate = 10, latencey = "50 us" }',
)


def path_of(page):
    return ROOT / page if page == "README.md" else DOCS / page


def prose(text):
    return BLOCK.sub("", text)


def anchors(text):
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def commands(text):
    """Every command of geartrain in blocks and in running text, as lists of words after `geartrain`."""
    lines = [
        line.removeprefix("$ ")
        for _, title, body in BLOCK.findall(text)
        if not title
        for line in body.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`(geartrain [^`]+)`", prose(text).replace("\n", " "))
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("geartrain ")]


def shown(text):
    """(command, lines below it) of the blocks that show what a command prints."""
    for _, _, body in BLOCK.findall(text):
        command, _, output = body.replace("\\\n", " ").partition("\n")
        if command.startswith("$ geartrain ") and output.strip() and not output.startswith("$"):
            yield " ".join(command.removeprefix("$ geartrain ").split()), output


SHOWN = dict(pair for text in PAGES.values() for pair in shown(text))
FIRST = next(command for command in SHOWN if command.endswith("--out runs/first"))


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures(page):
    for target in LINK.findall(prose(PAGES[page])):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = path_of(page).parent / name if name else path_of(page)
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text(encoding="utf-8")), target
        assert path.suffix != ".png" or path.stat().st_size < 200_000, target


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_flags_exist(page, workdir):
    prepare(workdir)
    group = typer.main.get_command(app)
    for words in commands(PAGES[page]):
        if words[0].startswith("-"):
            continue
        assert words[0] in group.commands, words
        known = {flag for param in group.commands[words[0]].params for flag in param.opts} | {"--help"}
        ours = words[: next((i for i, word in enumerate(words) if word.endswith(".py")), len(words))]
        assert {word for word in ours if word.startswith("--")} <= known, words
        given = dict(itertools.pairwise(ours)) if page != "errors.md" else {}  # there, names are wrong on purpose
        assert parse_list(given.get("--strategies", "single"))
        for cluster in given.get("--cluster", "local").split(","):
            assert (ROOT / cluster).is_file() if "/" in cluster else cluster in (*presets(), "lab.toml"), words
        scripts = [word for word in words if word.startswith("examples/") and word.endswith(".py")]
        assert all((ROOT / script).exists() for script in scripts), words


def presets():
    return [preset.name for preset in list_presets()]


def seconds_long(command):
    return "--workload resnet50 --cluster" in command or "runs/first" in command


@pytest.mark.parametrize(
    "command", [pytest.param(command, marks=[pytest.mark.slow] * seconds_long(command)) for command in SHOWN]
)
def test_what_commands_print(command, workdir, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    prepare(workdir)
    if command.startswith("report"):
        printed(FIRST, capsys)
    found = printed(command, capsys).replace(f"{ROOT}/", "").replace(f"{workdir.resolve()}/", "")
    actual = [line.rstrip() for line in found.splitlines() if line.strip()]
    if os.environ.get("GEARTRAIN_REWRITE_DOCS"):
        rewrite(command, actual)
        return
    place = 0
    for part in parts(SHOWN[command]):
        where = [i for i in range(place, len(actual)) if all(map(alike, part, actual[i : i + len(part)]))]
        where = [i for i in where if i + len(part) <= len(actual)]
        assert where, "not printed:\n" + "\n".join(part) + "\nbut:\n" + "\n".join(actual)
        place = where[0] + len(part)


def parts(output):
    """The lines shown, without empty ones, between the places where lines are left out."""
    pieces = re.split(r"^\.\.\.\n", output, flags=re.MULTILINE)
    return [[line for line in piece.splitlines() if line.strip()] for piece in pieces if piece.strip()]


def alike(shown, actual):
    """The same words; numbers may differ by half a per cent, as processors do not round alike."""
    words = [re.sub(r"[━─]+", "-", re.sub(r"\s+", " ", NUMBER.sub("#", line))) for line in (shown, actual)]
    numbers = [[float(number) for number in NUMBER.findall(line)] for line in (shown, actual)]
    close = all(abs(a - b) <= 0.005 * max(abs(a), abs(b)) for a, b in zip(*numbers, strict=False))
    return words[0] == words[1] and len(numbers[0]) == len(numbers[1]) and close


def rewrite(command, actual):
    """Put what is printed now into the page, line by line where the most similar lines are."""
    place, text = 0, {name: path_of(name).read_text(encoding="utf-8") for name in PAGES}
    for part in parts(SHOWN[command]):
        starts = range(place, len(actual) - len(part) + 1)
        place = max(starts, key=lambda i: sum(map(similarity, part, actual[i : i + len(part)])))
        for old, new in zip(part, actual[place:], strict=False):
            text = {name: page.replace(f"\n{old}\n", f"\n{new}\n") for name, page in text.items()}
        place += len(part)
    for name, page in text.items():
        if page != path_of(name).read_text(encoding="utf-8"):
            path_of(name).write_text(page, encoding="utf-8")


def similarity(shown, actual):
    return difflib.SequenceMatcher(None, shown.split(), actual.split()).ratio()


def prepare(workdir):
    """The files that the pages speak of."""
    (workdir / "examples").symlink_to(ROOT / "examples")
    for text in PAGES.values():
        for _, title, body in BLOCK.findall(text):
            if title:
                (workdir / title).write_text(body)
    right = (ROOT / "examples/clusters/slow-device.toml").read_text()
    assert MISTAKE[0] in right and f"`{MISTAKE[1]}`" in PAGES["clusters.md"]
    (workdir / "lab.toml").write_text(right.replace(*MISTAKE))


def printed(command, capsys):
    # Filling fresh memory, which the other tests ask for, is one more operation that the clock would charge.
    torch.use_deterministic_algorithms(False)
    try:
        main(shlex.split(command))
    except SystemExit:
        pass
    finally:
        torch.use_deterministic_algorithms(True)
    out, err = capsys.readouterr()
    return out + err


def test_every_error_has_a_heading():
    classes = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    titles = re.findall(r"^##+ (\w+)$", PAGES["errors.md"], re.MULTILINE)
    assert sorted(classes) == sorted(titles)


def test_every_strategy_has_a_heading_and_its_settings():
    parts = re.split(r"^## ", PAGES["strategies.md"], flags=re.MULTILINE)
    for name, entry in TABLE.items():
        part = next(part for part in parts if part.startswith(f"`{name}`\n"))
        for setting in dataclasses.fields(entry.kind):
            assert f"| `{setting.name}` |" in part, (name, setting.name)


def test_every_preset_is_told():
    assert set(presets()) <= set(re.findall(r"`([\w-]+)`", PAGES["clusters.md"]))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_clusters(path):
    assert load_cluster(path).name == path.stem
    assert f"`examples/clusters/{path.name}`" in PAGES["clusters.md"]


def test_what_the_page_on_clusters_shows_of_the_examples():
    blocks = [body for language, _, body in BLOCK.findall(PAGES["clusters.md"]) if language == "toml"]
    texts = [path.read_text(encoding="utf-8") for path in EXAMPLES]
    assert blocks and all(any(block in text for text in texts) for block in blocks)
    assert parse_cluster(blocks[0]).name == "slow-device"


def test_the_map_names_every_page():
    assert set(LINK.findall(PAGES["index.md"])) >= {page for page in PAGES if page not in ("README.md", "index.md")}


@pytest.mark.multi
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed")
def test_the_site_builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "quickstart.html").is_file()
