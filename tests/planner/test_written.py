"""A plan in three languages reads back to the same strategy."""

import runpy
import shlex
import tomllib

import pytest

from geartrain.cost.compute import Roofline
from geartrain.planner.ask import Candidate, Plan
from geartrain.planner.written import Names, as_command, as_json, as_python, as_toml
from geartrain.predict.closed import predict
from geartrain.strategies import from_table, parse
from tests.planner import made

NAMES = Names(kind="workload", subject="resnet18", cluster="ethernet-10g")
STRATEGIES = [
    "synchronous",
    "synchronous:overlap=false,bucket_size=none",
    "dear:threshold=50MiB,exchange=ring",
    "parameter_server:servers=3,placement=colocated,overlap=true",
    "top_k:density=0.001",
    "mg_wfbp",
]


def plan_of(text, **changes):
    asked = made.ask(**changes)
    closed = predict(asked.question(parse(text), 4, 8))
    return Plan(ask=asked, best=Candidate(closed=closed), why=("slow: slower",))


@pytest.mark.parametrize("text", STRATEGIES)
def test_all_three_read_back(text, tmp_path):
    plan = plan_of(text)
    words = shlex.split(as_command(plan, NAMES))
    assert words[:2] == ["geartrain", "compare"]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    assert parse(given.pop("--strategies")) == plan.best.strategy
    assert given == {"--workload": "resnet18", "--cluster": "ethernet-10g", "--ranks": "4", "--batch": "8"}

    table = tomllib.loads(as_toml(plan, NAMES))
    assert from_table(table.pop("strategy")) == plan.best.strategy
    assert table == {"workload": "resnet18", "cluster": "ethernet-10g", "ranks": 4, "batch": 8}

    assert as_json(plan, NAMES)["strategy"] == text
    program = as_python(plan, Names(kind="task", subject="digits", cluster="ethernet-10g"))
    (tmp_path / "plan.py").write_text(program)
    found = runpy.run_path(str(tmp_path / "plan.py"))
    assert found["strategy"] == plan.best.strategy
    assert (found["question"].ranks, found["question"].batch) == (4, 8)
    assert found["question"].workload.name == "digits"
    assert found["question"].cluster.name == "ethernet-10g"


def test_what_differs_from_defaults_stands_in_them():
    plan = plan_of("dear", model=Roofline(0.5))
    assert as_command(plan, NAMES).endswith("--strategies dear --compute roofline:efficiency=0.5")
    assert "strategy = DeAR()" in as_python(plan, NAMES)
    assert "model=parse_compute('roofline:efficiency=0.5')," in as_python(plan, NAMES)


def test_checkpointing_is_a_setting_of_the_workload():
    assert NAMES.chosen("blocks") == "resnet18:checkpointing=blocks"
    other = Names(kind="workload", subject="gpt2-xl:dtype=bf16", cluster="dgx-a100")
    assert other.chosen("0-3+7") == "gpt2-xl:dtype=bf16,checkpointing=0-3+7"
    assert Names(kind="workload", subject="a/b.py:make", cluster="").chosen("all") == "a/b.py:make:checkpointing=all"
