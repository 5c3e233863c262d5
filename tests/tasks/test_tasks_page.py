"""The page on tasks: its example is run as it stands there, its lists are complete."""

import re
from pathlib import Path

import pytest

from geartrain.cli import main
from geartrain.models import PRESETS
from geartrain.tasks import TASKS, get_task

PAGE, WORKLOADS = (
    (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8") for page in ("tasks.md", "workloads.md")
)


@pytest.fixture
def tumours(workdir):
    """The page's one Python block, as the file that the page calls it."""
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (workdir / "tumours.py").write_text(block)
    return get_task("tumours.py:Tumours")


def test_the_example_learns(tumours):
    model = tumours.model(0)
    optimizer, batches = tumours.optimizer(model.parameters()), tumours.batches(0, 1, 32, 0)
    for _ in range(50):
        optimizer.zero_grad()
        tumours.loss(model, batches.take()).backward()
        optimizer.step()
    # The page says 0.982; a patient is 0.009, and other processors add up in another order.
    assert tumours.metric(model)["accuracy"] == pytest.approx(0.982, abs=0.02)
    assert tumours.metric(model.to("meta")) == {}


def test_the_command_beside_the_example_runs(tumours, capsys):
    (command,) = re.findall(r"^\$ geartrain (.*)$", PAGE, re.MULTILINE)
    with pytest.raises(SystemExit) as left:
        main([*command.split(), "--steps", "2"])
    assert not left.value.code
    assert "tumours on ethernet-1g" in capsys.readouterr().out


def test_the_pages_name_every_task_and_workload():
    assert set(TASKS) <= set(re.findall(r"`([\w-]+)`", PAGE))
    rows = re.findall(r"^\| (`[^|]*) \| ([\d,]+) \|", WORKLOADS, re.MULTILINE)
    found = {name: count for names, count in rows for name in re.findall(r"`([\w.-]+)`", names)}
    assert found == {name: f"{preset.num_parameters:,}" for name, preset in PRESETS.items()}
