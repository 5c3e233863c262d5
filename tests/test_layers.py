"""Imports go downward only, the low layers do without torch, and private torch names stand in one file.

Files are parsed, not run: an import inside a function or under TYPE_CHECKING counts like any other.
"""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "geartrain"

# Low to high. A part imports lower layers and itself.
LAYERS = (
    {"errors", "units"},
    {"cluster", "workload"},
    {"cost", "record"},
    {"torch_private"},
    {"runtime"},
    {"collectives", "emu", "sim"},
    {"codecs", "exchange", "models", "parallel", "schedules", "tasks"},
    {"engines", "strategies"},
    {"calibration", "compare", "planner", "predict", "report", "sweep", "validation"},
    {"__main__", "cli"},
    {"__init__", "api"},
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}
WITHOUT_TORCH = sorted(set().union(*LAYERS[:3]))

# (importer, imported) within one layer -> why. All other pairs of one layer know nothing of each other.
SIDEWAYS = {
    ("units", "errors"): "a text that is no quantity is one of the package's errors",
    ("exchange", "codecs"): "an exchange moves the payload that a codec makes",
    ("schedules", "codecs"): "schedules stand above codecs",
    ("schedules", "exchange"): "a schedule says when an exchange starts and how late it is applied",
    ("tasks", "models"): "a task trains a model, and a workload's task is made from one",
    ("sweep", "predict"): "a sweep is many predictions",
    ("sweep", "report"): "its page is drawn with the report's figures",
    ("planner", "predict"): "a plan is the best of many predictions",
    ("planner", "compare"): "steps to a target are read off grids that compare has run",
    ("validation", "predict"): "a published step time is predicted as any other",
    ("validation", "compare"): "what is validated are cells of a grid, run as compare runs them",
    ("validation", "planner"): "lemmas and programmes of a paper are those that plans are made with",
    ("__main__", "cli"): "python -m geartrain is the command line",
    ("__init__", "api"): "the public names come from the public functions",
}


def sources(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """`geartrain.sim.kernel` -> `sim`; the package itself is `__init__`."""
    return [*module.split("."), "__init__"][1]


def imported(tree: ast.AST, package: str) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of every import; name is empty for `import module`. `package` is what a dot stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, module, alias.name) for alias in node.names)


def misplaced_imports(text: str, module: str, package: str) -> list[str]:
    """The imports of a module that go up or sideways, as messages."""
    importer, found = part_of(module), []
    if importer not in LEVEL:
        return [f"{importer} stands in no layer: give it one in LAYERS"]
    for line, target, name in imported(ast.parse(text), package):
        if target.split(".")[0] != "geartrain" or (target == "geartrain" and name == "__version__"):
            continue
        part = part_of(target)
        if target == "geartrain" and name in LEVEL:  # `from geartrain import units` means the module
            part = name
        allowed = part == importer or LEVEL.get(part, len(LAYERS)) < LEVEL[importer] or (importer, part) in SIDEWAYS
        if not allowed:
            found.append(f"{module}:{line} {importer} must not import {part}")
    return found


def torch_imports(text: str, package: str) -> list[int]:
    return [line for line, module, _ in imported(ast.parse(text), package) if module.split(".")[0] == "torch"]


def is_private(dotted: str) -> bool:
    return any(name.startswith("_") and not name.endswith("__") for name in dotted.split("."))


def private_torch_names(text: str) -> list[str]:
    """`line name` of each private torch name: imported, reached as an attribute, or by getattr with a constant."""
    tree = ast.parse(text)
    names = {"torch": "torch"}  # what a name of this file stands for
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        for alias in node.names:
            dotted = alias.name if isinstance(node, ast.Import) else f"{node.module}.{alias.name}"
            if dotted.split(".")[0] != "torch" or getattr(node, "level", 0):
                continue
            if is_private(dotted):
                found.append(f"{node.lineno} {dotted}")
            elif alias.asname or isinstance(node, ast.ImportFrom):
                names[alias.asname or alias.name] = dotted
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr", "setattr", "delattr"}:
            dotted = ".".join([ast.unparse(node.args[0]), *(str(a.value) for a in node.args[1:2] if is_text(a))])
        else:
            continue
        head, _, rest = dotted.partition(".")
        # Only the attribute itself is looked at: what it stands on is visited as a node of its own.
        if head in names and rest.replace(".", "").isidentifier() and is_private(rest.rpartition(".")[2]):
            found.append(f"{node.lineno} {names[head]}.{rest}")
    return found


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def dots_of(path: Path) -> str:
    """What a single dot means in an import of this file."""
    return ".".join(path.relative_to(ROOT).parts[:-1])


@pytest.mark.parametrize("path", sources(PACKAGE), ids=module_name)
def test_imports_go_downward(path):
    assert misplaced_imports(path.read_text(encoding="utf-8"), module_name(path), dots_of(path)) == []


def test_sideways_pairs_share_a_layer_and_make_no_circle():
    graph: dict[str, set[str]] = {}
    for importer, part in SIDEWAYS:
        assert LEVEL[importer] == LEVEL[part]
        graph.setdefault(importer, set()).add(part)
    graphlib.TopologicalSorter(graph).prepare()


@pytest.mark.parametrize(
    ("text", "module", "fault"),
    [
        ("from geartrain.runtime import context", "geartrain.strategies.dasgd", None),
        ("from geartrain.units import seconds", "geartrain.cluster.spec", None),
        ("from geartrain import __version__", "geartrain.record.folder", None),
        ("from geartrain import units", "geartrain.cluster.spec", None),
        ("from . import kernel", "geartrain.sim.network", None),
        ("from geartrain.codecs import topk", "geartrain.exchange.gather", None),
        ("import geartrain.sim", "geartrain.emu.relay", "emu must not import sim"),
        ("from geartrain.exchange import gather", "geartrain.codecs.topk", "codecs must not import exchange"),
        ("from geartrain import engines", "geartrain.strategies.dasgd", "strategies must not import engines"),
        ("from geartrain import Strategy", "geartrain.cost.terms", "cost must not import __init__"),
        ("from ..runtime import context", "geartrain.cost.terms", "cost must not import runtime"),
        ("def f():\n    from geartrain.sim import kernel", "geartrain.runtime.worker", "runtime must not import sim"),
        ("if TYPE_CHECKING:\n    import geartrain.cli", "geartrain.report.page", "report must not import cli"),
        ("import math", "geartrain.utils", "utils stands in no layer"),
    ],
)
def test_layer_check_sees(text, module, fault):
    found = misplaced_imports(text, module, module.rpartition(".")[0])
    assert (fault in found[0]) if fault else (found == [])


@pytest.mark.parametrize("path", sources(*(PACKAGE / part for part in WITHOUT_TORCH)), ids=module_name)
def test_low_layers_name_no_torch(path):
    assert torch_imports(path.read_text(encoding="utf-8"), dots_of(path)) == []


def low_modules() -> list[str]:
    paths = [path for path in sources(PACKAGE) if part_of(module_name(path)) in {*WITHOUT_TORCH, "__init__"}]
    return [module_name(path) for path in paths]


def test_low_layers_load_no_torch():
    lines = [*(f"import {module}" for module in low_modules()), "import sys", "sys.exit('torch' in sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"torch is loaded by one of {low_modules()}"


def users_of_torch() -> list[Path]:
    folders = [PACKAGE, *(ROOT / name for name in ("benchmarks", "examples", "tests"))]
    return [path for path in sources(*folders) if path.name not in {"torch_private.py", "test_torch_private.py"}]


@pytest.mark.parametrize("path", users_of_torch(), ids=module_name)
def test_private_torch_names_stand_in_one_file(path):
    assert private_torch_names(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch.nn.Linear, torch.__version__, self._hook", []),
        ("from torch import nn\nnn.Linear(1, 1)._modules", []),  # an object's attribute has no module to be known by
        ("import torch._dynamo", ["1 torch._dynamo"]),
        ("from torch._C import Future", ["1 torch._C.Future"]),
        ("from torch.testing._internal.common_utils import run", ["1 torch.testing._internal.common_utils.run"]),
        ("import torch\ntorch._C._distributed_c10d.Work", ["2 torch._C", "2 torch._C._distributed_c10d"]),
        ("import torch.distributed as dist\ndist._functional", ["2 torch.distributed._functional"]),
        ("from torch import distributed as d\ngetattr(d, '_world')", ["2 torch.distributed._world"]),
        (
            "def f():\n from torch.distributed import ProcessGroup as P\n P._x",
            ["3 torch.distributed.ProcessGroup._x"],
        ),
    ],
)
def test_private_name_check_sees(text, found):
    assert sorted(private_torch_names(text)) == found


BANNED = ("import time", "import os", "from threading import Thread", "import random", "from os.path import join")
RANK = "import torch.distributed as dist\n\nRANK = dist.get_rank()"


@pytest.mark.parametrize("folder", ["codecs", "collectives", "exchange", "schedules", "strategies", "engines"])
@pytest.mark.parametrize("text", [*BANNED, RANK])
def test_linter_bans_the_world_in_rank_code(folder, text):
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251", "--output-format", "concise"]
    name = f"geartrain/{folder}/new_method.py"
    done = subprocess.run(
        [*command, "--stdin-filename", name, "-"], cwd=ROOT, input=text, capture_output=True, text=True
    )
    assert ("TID251" in done.stdout) == (folder != "engines"), done.stdout + done.stderr
