"""`geartrain sweep`: ask every point behind a progress bar, print and write what came of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from geartrain.cli.output import notices, print_json, results, tell, told
from geartrain.cli.questions import Asked, questions
from geartrain.errors import ConfigurationError
from geartrain.predict.closed import predict
from geartrain.predict.question import Question
from geartrain.predict.simulated import simulate
from geartrain.record.files import RunFolder
from geartrain.record.text import print_whole
from geartrain.strategies.text import written
from geartrain.sweep.axis import SETTING, Axis, check_axis, parse_vary
from geartrain.sweep.files import as_json, write
from geartrain.sweep.points import Swept
from geartrain.sweep.run import sweep as run_sweep
from geartrain.sweep.table import NOTE, sweep_table
from geartrain.sweep.words import verdict

MOST_ROWS = 60
"""Points up to which the table is printed; of more, it stands in the folder."""


def sweep(asked: Asked, vary: Sequence[str], simulated: bool, out: Path | None, json: bool) -> int:
    """Run the sweep, print it, write it; the exit code."""
    axes = [parse_vary(text) for text in vary]
    _check(axes, asked)
    base = questions(asked)
    if len({question.cluster.name for question in base}) > 1:
        raise ConfigurationError("a sweep is of one cluster: give one --cluster, and vary its places")
    for axis in axes:
        check_axis(axis, base[0].cluster)
        _check_setting(axis, base)
    if out is not None:
        RunFolder(out)  # before anything is computed
    swept = _run(base, axes, simulated, weak=asked.batch is None)
    title = f"{base[0].workload.name} on {base[0].cluster.name}"
    if json:
        print_json(as_json(swept))
    else:
        _print(swept, title, simulated)
    if out is not None:
        tell(f"page: {write(swept, out, title, _machine(base[0], simulated, asked))}")
    tell(*base[0].model.report())
    return 0 if all(point.winner is not None for point in swept.points) else 1


def _run(base: Sequence[Question], axes: Sequence[Axis], simulated: bool, weak: bool) -> Swept:
    total = math.prod(len(axis.values) for axis in axes)
    by = simulate if simulated else predict
    if not notices().is_terminal:  # a line for each of hundreds of points would say nothing
        return run_sweep(base, axes, by=by, weak=weak)
    with told(total) as progress:
        return run_sweep(base, axes, by=by, weak=weak, told=lambda: progress.done(""))


def _check(axes: Sequence[Axis], asked: Asked) -> None:
    keys = [axis.key for axis in axes]
    if not 1 <= len(axes) <= 2 or len(set(keys)) < len(keys):
        raise ConfigurationError(f"--vary is given once or twice, each time another thing, not {', '.join(keys)}")
    given = asked.batch if asked.batch is not None else asked.batch_per_rank
    if given is not None and any(key.startswith("batch") for key in keys):
        raise ConfigurationError("the batch is varied: leave out --batch and --batch-per-rank")
    if {"batch", "batch_per_rank"} <= set(keys):
        raise ConfigurationError("batch and batch_per_rank are one thing: vary one of them")
    if asked.batch is not None and "batch_per_rank" in keys:
        raise ConfigurationError("--batch is of all workers, and batch_per_rank is varied: give one of them")


def _check_setting(axis: Axis, base: Sequence[Question]) -> None:
    """ConfigurationError where no strategy has a setting that is varied."""
    name = axis.key.removeprefix(SETTING)
    if axis.key.startswith(SETTING) and not any(name in written(question.strategy) for question in base):
        known = sorted({key for question in base for key in written(question.strategy)})
        raise ConfigurationError(
            f"--vary {axis.key}: none of {', '.join(str(q.strategy) for q in base)} has a setting {name!r}\n"
            f"  they have {', '.join(known) or 'none'}"
        )


def _machine(question: Question, simulated: bool, asked: Asked) -> str:
    how = "simulated on shapes" if simulated else "by closed form"
    each = f"{question.batch // question.ranks} samples each"
    batch = each if asked.batch is None else f"a global batch of {asked.batch}"
    return (
        f"{question.workload.name} on {question.cluster.name} ({question.cluster.summary or question.cluster.source}), "
        f"{question.ranks} workers with {batch} unless that is varied; {how}, computing priced by {question.model}."
    )


def _print(swept: Swept, title: str, simulated: bool) -> None:
    console = results()
    if len(swept.points) <= MOST_ROWS:
        how = "simulated" if simulated else "closed form"
        print_whole(console, sweep_table(swept, f"{title}, {how}"))
        console.print(NOTE, style="dim", markup=False, highlight=False, soft_wrap=True)
    for line in verdict(swept):
        console.print(line[:1].upper() + line[1:], markup=False, soft_wrap=True)
    for line in swept.warnings:
        console.print(f"note: {line}", style="yellow", markup=False, soft_wrap=True)
    for line in dict.fromkeys(_failures(swept)):
        console.print(line, style="red", markup=False, soft_wrap=True)


def _failures(swept: Swept) -> list[str]:
    """Why there is no prediction, once for each strategy and reason."""
    return [
        f"{name}: {one}"
        for point in swept.points
        for name, one in zip(swept.strategies, point.predictions, strict=True)
        if isinstance(one, str)
    ]
