"""Real gloo beside the simulator: its results come from one run of processes per test session."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from geartrain.cluster.load import load_cluster
from geartrain.record.log import RunRecord
from geartrain.sim.script import simulate_script

ROOT = Path(__file__).parents[2]
CLUSTER = load_cluster("ethernet-10g")


@pytest.fixture(scope="session")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `tests.sim.references` leaves."""
    out = tmp_path_factory.mktemp("gloo")
    done = subprocess.run(
        [sys.executable, "-m", "tests.sim.references", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="session")
def gloo_results(gloo: Path) -> Callable[[int, str], list[Any]]:
    """(world size, name of a case) -> what each rank of real gloo got."""
    loaded: dict[int, list[Any]] = {}

    def of(size: int, name: str) -> list[Any]:
        if size not in loaded:
            files = [gloo / str(size) / f"{rank}.pt" for rank in range(size)]
            loaded[size] = [torch.load(file, weights_only=False) for file in files]
        return [results[name] for results in loaded[size]]

    return of


@pytest.fixture
def simulated_results(tmp_path: Path) -> Callable[[int, str], list[Any]]:
    """(world size, name of a case) -> what each simulated rank got."""

    def of(size: int, name: str) -> list[Any]:
        simulate_script(str(ROOT / "tests/sim/two_worlds.py"), [str(tmp_path), name], CLUSTER, size)
        return [torch.load(tmp_path / f"{rank}.pt", weights_only=False)[name] for rank in range(size)]

    return of


@pytest.fixture
def simulate(tmp_path: Path) -> Callable[..., RunRecord]:
    """Simulate a script given as text; keyword arguments are those of `simulate_script`."""

    def run(text: str, *args: str, ranks: int = 2, cluster: Any = CLUSTER, **options: Any) -> RunRecord:
        path = tmp_path / "script.py"
        path.write_text(text)
        return simulate_script(str(path), list(args), cluster, ranks, **options)

    return run
