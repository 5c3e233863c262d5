"""A plan as Python, as TOML and as a command: all three say the same and run as they are."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from typing import Any

import tomlkit

from geartrain.planner.ask import Plan, with_setting
from geartrain.runtime.strategy import Strategy
from geartrain.strategies.text import written


@dataclass(frozen=True, kw_only=True)
class Names:
    """What the user called the things that a plan is for.

    Attributes:
        kind: "workload" or "task".
        subject: its name.
        cluster: a preset's name, or a file.
    """

    kind: str
    subject: str
    cluster: str

    def chosen(self, checkpointing: str) -> str:
        """The subject with a choice of checkpointing."""
        return with_setting(self.subject, f"checkpointing={checkpointing}") if checkpointing else self.subject


def as_command(plan: Plan, names: Names) -> str:
    """The command line that runs the plan: of a workload the motions of a few steps, of a task the training."""
    best = plan.best
    words = ["geartrain", "compare", f"--{names.kind}", names.chosen(best.checkpointing)]
    words += ["--cluster", names.cluster, "--ranks", str(best.ranks), "--batch", str(best.batch)]
    words += ["--strategies", str(best.strategy)]
    if str(plan.ask.model) != "roofline":
        words += ["--compute", str(plan.ask.model)]
    return shlex.join(words)


def as_toml(plan: Plan, names: Names) -> str:
    """Workload or task, cluster, ranks and batch, and the strategy as a table that `from_table` reads."""
    best = plan.best
    document = tomlkit.document()
    document[names.kind] = names.chosen(best.checkpointing)
    document["cluster"] = names.cluster
    document["ranks"] = best.ranks
    document["batch"] = best.batch
    table = tomlkit.table()
    table["name"] = best.strategy.name
    for name in _given(best.strategy):
        value = getattr(best.strategy, name)
        # Sizes have a unit, and None is a word.
        plain = isinstance(value, bool | float) or written(best.strategy)[name] == repr(value)
        table[name] = value if plain else written(best.strategy)[name]
    document["strategy"] = table
    return tomlkit.dumps(document)


def as_python(plan: Plan, names: Names) -> str:
    """A program that holds the strategy as a value, and says what a step takes."""
    best = plan.best
    kind = type(best.strategy)
    settings = ", ".join(f"{name}={getattr(best.strategy, name)!r}" for name in _given(best.strategy))
    shape = f"get_workload({names.chosen(best.checkpointing)!r})"
    source = "from geartrain.models import get_workload"
    if names.kind == "task":
        shape = f"task_workload(get_task({names.subject!r}))"
        source = "from geartrain.runtime.tracing import task_workload"
    model = str(plan.ask.model)
    priced = "" if model in ("roofline", "measured") else f"    model=parse_compute({model!r}),\n"
    return _PROGRAM.format(
        module=kind.__module__,
        kind=kind.__name__,
        settings=settings,
        source=source,
        tasks="from geartrain.tasks import get_task\n" if names.kind == "task" else "",
        shape=shape,
        cluster=names.cluster,
        ranks=best.ranks,
        batch=best.batch,
        priced=priced,
        prices="from geartrain.cost.compute import parse_compute\n" if priced else "",
    )


def as_json(plan: Plan, names: Names) -> dict[str, Any]:
    """Plain values under the keys of `geartrain plan --json`."""
    best = plan.best
    return {
        "format": 1,
        names.kind: names.chosen(best.checkpointing),
        "cluster": names.cluster,
        "ranks": best.ranks,
        "services": best.services,
        "batch": best.batch,
        "checkpointing": best.checkpointing or None,
        "strategy": str(best.strategy),
        "settings": written(best.strategy),
        "step_time": best.step_time,
        "steps_factor": best.steps_factor,
        "closed_form": best.closed.as_json(),
        "simulated": best.confirmed.as_json() if best.confirmed else None,
        "command": as_command(plan, names),
        "toml": as_toml(plan, names),
        "python": as_python(plan, names),
        "why": list(plan.why),
        "runners_up": [
            {
                "strategy": str(one.strategy),
                "ranks": one.ranks,
                "batch": one.batch,
                "checkpointing": one.checkpointing or None,
                "step_time": one.step_time,
                "steps_factor": one.steps_factor,
                "simulated": one.confirmed is not None,
            }
            for one in plan.runners_up
        ],
        "faster_per_sample": [
            {"strategy": str(one.strategy), "ranks": one.ranks, "batch": one.batch, "step_time": one.step_time}
            for one in plan.faster
        ],
        "rejected": [{"candidate": candidate, "reason": reason} for candidate, reason in plan.rejected],
        "notes": list(plan.notes),
    }


def _given(strategy: Strategy) -> list[str]:
    """The settings that differ from their defaults."""
    return [
        field.name
        for field in fields(strategy)  # type: ignore[arg-type]  # every strategy is a dataclass
        if getattr(strategy, field.name) != field.default
    ]


_PROGRAM = """\
from geartrain.cluster import load_cluster
{prices}{source}
from geartrain.predict.closed import predict
from geartrain.predict.question import Question
{tasks}from {module} import {kind}

strategy = {kind}({settings})
question = Question(
    workload={shape},
    cluster=load_cluster({cluster!r}),
    strategy=strategy,
    ranks={ranks},
    batch={batch},
{priced})

if __name__ == "__main__":
    print(f"{{question}}: {{predict(question).step_time:.4g}} s a step")
"""
