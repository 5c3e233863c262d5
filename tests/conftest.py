"""What holds for every test: one thread a process, deterministic numerics, a process left as it was found."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Traces of models are kept apart from the user's own; what decides them is in their names, so none can be stale.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir()) / f"geartrain-tests-{os.getuid()}")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads; processes that a test starts inherit it

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)  # also fills fresh memory with NaN, so that reading it shows

# Same examples in every run: a failure on one machine is a failure on all.
hypothesis.settings.register_profile("gate", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.load_profile("gate")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("emu"):
        from tests.emu.possible import why_not

        reason = why_not()
        if reason and os.environ.get("GEARTRAIN_TEST_EMU") == "must":
            pytest.fail(reason)
        if reason:
            pytest.skip(reason)


@pytest.fixture(autouse=True)
def left_as_found() -> Iterator[None]:
    """A test that leaves a process group or a changed default behind fails itself, not the next one."""
    before = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())
    yield
    assert not torch.distributed.is_initialized(), "the test left a process group behind"
    assert before == (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads())


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
