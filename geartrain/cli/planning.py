"""`geartrain plan`: from texts to what is asked, find the plan, print and write it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from geartrain.cli import questions
from geartrain.cli.output import notices, print_json, results, tell
from geartrain.cluster import load_cluster
from geartrain.errors import ConfigurationError
from geartrain.planner.ask import Ask, Candidate, Plan
from geartrain.planner.predictor import Told
from geartrain.planner.search import plan as find_plan
from geartrain.planner.statistics import Statistics
from geartrain.planner.written import Names, as_command, as_json, as_python, as_toml
from geartrain.predict.prediction import Prediction
from geartrain.predict.table import NOTE, predictions_table
from geartrain.record.files import RunFolder, readable, write_together
from geartrain.record.text import print_whole
from geartrain.units import format_time

_MOST_REJECTED = 12
"""Reasons that are printed; all of them stand in plan.json."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What stood on the command line."""

    workload: str | None
    task: str | None
    cluster: str
    ranks: int
    batch: int | None
    efficiency: float
    statistics: Path | None
    compute: str
    out: Path | None


def plan(asked: Asked, json: bool) -> int:
    """Find the plan, print it, write it; the exit code."""
    ask = build(asked)
    if asked.out is not None:
        RunFolder(asked.out)  # before anything is computed
    with _telling() as told:
        found = find_plan(ask, told)
    names = Names(
        kind="task" if asked.task else "workload", subject=asked.task or asked.workload or "", cluster=asked.cluster
    )
    if json:
        print_json(as_json(found, names))
    else:
        _print(results(), found, names)
    if asked.out is not None:
        tell(f"plan: {_write(found, names, asked.out)}")
    tell(*ask.model.report())
    return 0


def build(asked: Asked) -> Ask:
    """What is asked of the planner; ConfigurationError when it cannot be."""
    if not 0 <= asked.efficiency <= 1:
        raise ConfigurationError(f"--efficiency {asked.efficiency:g} is no share; give a number from 0 to 1")
    if asked.ranks < 1:
        raise ConfigurationError(f"--ranks {asked.ranks}: a run needs at least 1 worker")
    # Of a task there are data for so many samples only: the batch is that of the other commands.
    batch = asked.ranks * questions.SAMPLES_PER_WORKER if asked.task and asked.batch is None else asked.batch
    if batch is not None and batch < asked.ranks:
        raise ConfigurationError(f"--batch {batch} leaves some of {asked.ranks} workers without a sample; give more")
    one = questions.Asked(
        workload=asked.workload,
        task=asked.task,
        cluster=asked.cluster,
        strategies="single" if asked.ranks == 1 else "synchronous",
        ranks=str(asked.ranks),
        batch=batch,
        batch_per_rank=None,
        compute=asked.compute,
    )
    statistics = Statistics.read(asked.statistics) if asked.statistics else None
    (question,) = questions.questions(one)
    return Ask(
        workload=question.workload,
        cluster=load_cluster(asked.cluster),
        ranks=asked.ranks,
        batch=batch,
        model=question.model,
        efficiency=asked.efficiency,
        statistics=statistics,
        recompute=asked.workload is not None and "checkpointing=" not in asked.workload,
    )


@contextmanager
def _telling() -> Iterator[Told]:
    """Tells on a terminal what is computed."""
    if not notices().is_terminal:
        yield lambda what: None
        return
    with notices().status("") as status:
        yield status.update


def _print(console: Console, plan: Plan, names: Names) -> None:
    few = [plan.best, *plan.runners_up]
    print_whole(console, predictions_table(_side_by_side(few)))
    console.print(_sentence(plan.best, names), markup=False, soft_wrap=True)
    for title, lines in (
        ("How it was found", plan.notes),
        ("Why the others lost", plan.why),
        ("Shorter steps that learn something else, unknown in how many; see --statistics", _faster(plan)),
        ("What does not compete", [f"{name}: {reason}" for name, reason in plan.rejected[:_MOST_REJECTED]]),
    ):
        if lines:
            console.print(f"\n{title}", style="bold", markup=False)
            for line in lines:
                console.print(f"  {line}", markup=False, soft_wrap=True)
    for title, text in (("Command", as_command(plan, names)), ("TOML", as_toml(plan, names))):
        console.print(f"\n{title}", style="bold", markup=False)
        console.print(text.rstrip(), markup=False, soft_wrap=True)
    console.print("\nPython", style="bold", markup=False)
    console.print(as_python(plan, names).rstrip(), markup=False, soft_wrap=True)
    console.print(f"\n{NOTE}", style="dim", markup=False, highlight=False, soft_wrap=True)


def _side_by_side(candidates: Sequence[Candidate]) -> list[Prediction]:
    """What was found by the same means as of the first one: simulated with all its workers, or else by closed form."""
    whole = [one for one in candidates if one.confirmed and one.confirmed.question.ranks == one.ranks]
    if candidates[0] not in whole:
        return [one.closed for one in candidates]
    return [one.confirmed for one in whole if one.confirmed]


def _sentence(best: Candidate, names: Names) -> str:
    services = f" and {best.services} service(s)" if best.services else ""
    how = "by closed form"
    if best.confirmed:
        some = best.confirmed.question.ranks < best.ranks
        how = f"by closed form and a simulation of {best.confirmed.question.ranks} workers" if some else "simulated"
    return (
        f"Plan for {names.chosen(best.checkpointing)} on {names.cluster}: {best.strategy} with {best.ranks} "
        f"worker(s){services}, {best.batch // best.ranks} sample(s) each, "
        f"{format_time(best.step_time)} a step ({how}), {best.batch / best.step_time:.4g} samples per second"
    )


def _faster(plan: Plan) -> list[str]:
    return [
        f"{one.strategy}: {format_time(one.step_time)} a step of {one.batch} samples with {one.ranks} worker(s), "
        f"so it may need up to {plan.best.score / one.score:.4g} times the steps"
        for one in plan.faster
    ]


def _write(plan: Plan, names: Names, folder: Path) -> Path:
    write_together(
        {
            folder / "plan.json": readable(as_json(plan, names)),
            folder / "plan.toml": as_toml(plan, names).encode(),
            folder / "plan.py": as_python(plan, names).encode(),
            folder / "plan.sh": f"{as_command(plan, names)}\n".encode(),
        }
    )
    return folder / "plan.py"
