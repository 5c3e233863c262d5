"""One cell of a grid: run it, divide its time, put the closed form beside it, write its files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from geartrain.compare.grid import BASELINE_STEPS, Cell, Grid
from geartrain.cost.terms import Cost
from geartrain.errors import GeartrainError, RunError
from geartrain.record.files import RunFolder
from geartrain.record.log import RunRecord
from geartrain.record.means import MeanStep, mean_step
from geartrain.record.split import Split, split
from geartrain.runtime.checkpoint import Checkpoints, latest, read_info, whole_record
from geartrain.runtime.loop import Training

KEYS = (
    "strategy",
    "engine",
    "cluster",
    "ranks",
    "steps",
    "step_time",
    "compute",
    "exposed_communication",
    "wait",
    "bytes_sent_per_rank",
    "messages_per_rank",
    "final_loss",
    "metric",
    "time_to_target",
    "closed_form_step_time",
    "out",
)
"""Keys of one object of `--json`, in order."""

CHECKPOINTS = "checkpoints"
"""Folder of a run's checkpoints, below its own."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a cell. SI units; None where it does not apply or was not reached.

    Attributes:
        steps: steps that all workers finished.
        final_loss: of the global batch of the last of them.
        metric: the task's main quality on held-out data; `metrics` has all by name.
        time_to_target: seconds from the begin of training until the targets were reached.
        evaluations: [step, metrics] of each evaluation on the way.
        closed_form: the strategy's own account of a step, its computing priced by a roofline.
        closed_form_time: seconds of a step by that account; where computing is not priced so, with this run's own.
        busiest: bytes per step sent by the rank, services included, that sends most.
        error: why the cell failed or was cut short.
        interrupted: the user stopped it.
        read: it was complete already, and its files were read.
    """

    cell: Cell
    engine: str
    steps: int = 0
    mean: MeanStep | None = None
    final_loss: float | None = None
    metrics: dict[str, float]
    time_to_target: float | None = None
    evaluations: Sequence[tuple[int, dict[str, float]]] = ()
    closed_form: Cost | None = None
    closed_form_time: float | None = None
    busiest: float = 0.0
    out: str | None = None
    error: str | None = None
    interrupted: bool = False
    read: bool = False

    @property
    def metric(self) -> float | None:
        return next(iter(self.metrics.values()), None)

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`: the keys of KEYS."""
        mean = self.mean
        values: dict[str, Any] = dict.fromkeys(KEYS)
        values.update(
            strategy=str(self.cell.strategy),
            engine=self.engine,
            cluster=self.cell.cluster.name,
            ranks=self.cell.ranks,
            steps=self.steps,
            final_loss=self.final_loss,
            metric=self.metric,
            time_to_target=self.time_to_target,
            closed_form_step_time=self.closed_form_time,
            out=self.out,
        )
        if mean:
            values.update(
                step_time=mean.step_time,
                compute=mean.compute,
                exposed_communication=mean.exposed_communication,
                wait=mean.wait,
                bytes_sent_per_rank=mean.bytes_sent,
                messages_per_rank=mean.messages,
            )
        return values

    def summary(self) -> dict[str, Any]:
        """All that `geartrain.compare.finished` needs to know the result again."""
        mean = self.mean
        return {
            **self.as_json(),
            "metrics": self.metrics,
            "evaluations": self.evaluations,
            "error": self.error,
            "stopped_by_user": self.interrupted,
            "counted_steps": mean.steps if mean else 0,
            "hidden_communication": mean.hidden_communication if mean else None,
            "wire": mean.wire if mean else None,
            "codec": mean.codec if mean else None,
            "residual_memory": self.closed_form.memory.get("residual", 0) if self.closed_form else None,
            "busiest_rank_sends": self.busiest,
        }


def run_cell(grid: Grid, cell: Cell) -> Result:
    """Run one cell. What goes wrong while it runs is told in the result, with whatever was measured until then.

    Of a grid that goes on, a run that has a checkpoint goes on from there.
    """
    folder = RunFolder(grid.out / cell.folder) if grid.out else None
    if folder:
        folder.begin()
    try:
        form = closed_form(grid, cell)
    except GeartrainError as problem:
        return Result(cell=cell, engine=grid.engine_name, metrics={}, error=str(problem))
    record, error, interrupted = _run(grid, cell, folder)
    parts = split(record) if record else Split(())
    result = _result(grid, cell, record, parts, form, error, folder, interrupted)
    if folder and record:
        folder.write(
            record,
            parts,
            config=grid.config(cell),
            summary=result.summary(),
            cost=asdict(form) if form else None,
        )
    return result


def whole_batch_compute(grid: Grid, cell: Cell) -> float | None:
    """Seconds that one worker of the cluster computes for the whole batch, run on the same engine; None if it fails."""
    if grid.single is None:
        return None
    main = Training(
        strategy=grid.single,
        task=grid.task,
        steps=min(grid.steps, BASELINE_STEPS),
        batch=grid.batch,
        seed=grid.seed,
        evaluate=False,
    )
    try:
        record = grid.engine(cell.cluster).run(main, cell.cluster, workers=1, seed=grid.seed, meta=grid.meta)
    except GeartrainError:
        return None
    mean = mean_step(split(record))
    return mean.compute if mean else None


def _run(grid: Grid, cell: Cell, folder: RunFolder | None) -> tuple[RunRecord | None, str | None, bool]:
    """The record, or as much of it as there is; what went wrong; whether it was the user who stopped it."""
    checkpoints = _checkpoints(grid, folder)
    saved = None
    try:
        main = Training(
            strategy=cell.strategy.planned(grid.workload, cell.place(), grid.batch),
            task=grid.task,
            steps=grid.steps,
            batch=grid.batch,
            seed=grid.seed,
            checkpoints=checkpoints,
            targets=grid.targets,
        )
        saved = read_info(checkpoints.resume) if checkpoints and checkpoints.resume else None
        engine = grid.engine(cell.cluster)
        record = engine.run(
            main, cell.cluster, workers=cell.ranks, services=cell.services, seed=grid.seed, meta=grid.meta
        )
        record = whole_record(record, saved)
    except RunError as error:
        broken = error.record if isinstance(error.record, RunRecord) else None
        return whole_record(broken, saved) if broken else None, str(error), False
    except GeartrainError as error:
        return None, str(error), False
    return record, record.interrupted, record.interrupted is not None


def _checkpoints(grid: Grid, folder: RunFolder | None) -> Checkpoints | None:
    if folder is None or not grid.checkpoint_every:
        return None
    path = folder.path / CHECKPOINTS
    return Checkpoints(folder=path, every=grid.checkpoint_every, resume=latest(path) if grid.resume else None)


def _result(
    grid: Grid,
    cell: Cell,
    record: RunRecord | None,
    parts: Split,
    form: Cost | None,
    error: str | None,
    folder: RunFolder | None,
    interrupted: bool,
) -> Result:
    finished, mean = _finished_steps(parts), mean_step(parts)
    return Result(
        cell=cell,
        engine=grid.engine_name,
        steps=len(finished),
        mean=mean,
        final_loss=_loss(parts, finished[-1]) if finished else None,
        metrics=_told(record, "metric") or {},
        time_to_target=_told(record, "time_to_target"),
        evaluations=_told(record, "evaluations") or (),
        closed_form=form,
        closed_form_time=_closed_form_time(form, mean, grid.roofline(cell.cluster)),
        busiest=_busiest(record, parts, len(finished)) if record and finished else 0.0,
        out=str(folder.path) if folder and record else None,
        error=error,
        interrupted=interrupted,
    )


def closed_form(grid: Grid, cell: Cell) -> Cost | None:
    """The strategy's own account of a step of a cell; None where the shape of a step is not known."""
    if grid.workload is None:
        return None
    place = cell.place()
    return cell.strategy.planned(grid.workload, place, grid.batch).cost(grid.workload, place, grid.batch)


def _closed_form_time(form: Cost | None, mean: MeanStep | None, roofline: bool) -> float | None:
    """A closed form knows what is sent and when; what computing takes on a host it cannot know."""
    if form is None or roofline:
        return form.step_time if form else None
    return mean.compute + form.step_time - form.compute - form.codec if mean else None


def _finished_steps(parts: Split) -> list[int]:
    """Steps that all workers finished; one that the others went on without does not count."""
    done = [{step.step for step in rank.steps} for rank in parts.ranks if rank.role == "worker" and not rank.lost]
    return sorted(set.intersection(*done)) if done else []


def _loss(parts: Split, step: int) -> float | None:
    """Mean loss of a step's global batch: the workers' means, weighted by their samples."""
    total, samples = 0.0, 0
    for rank in parts.ranks:
        for one in rank.steps:
            if one.step == step and one.values.get("loss") is not None:
                total += one.values["loss"] * one.values.get("samples", 1)
                samples += one.values.get("samples", 1)
    return total / samples if samples and math.isfinite(total) else None


def _told(record: RunRecord | None, key: str) -> Any:
    """What worker 0, which evaluates, has handed back under a key."""
    first = record.results[0] if record and record.results else None
    return first.get(key) if isinstance(first, dict) else None


def _busiest(record: RunRecord, parts: Split, num_steps: int) -> float:
    """Bytes per step of the rank that sends most, between the first step's begin and the last one's end."""
    shares = [step.shares for rank in parts.ranks for step in rank.steps]
    begin, end = min(one.begin for one in shares), max(one.end for one in shares)
    sent = [sum(op.nbytes for op in log.ops if begin <= op.posted < end) for log in record.logs]
    return max(sent) / num_steps
