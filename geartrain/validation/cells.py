"""Running a case on the simulated and on another engine, and the errors between both.

A cell that has ended is kept as `DIR/cells/NAME.json`, so that a validation goes on where it was ended. The same object
stands in `details.cells` of the sections "emulated" and "real" in `validation.json`, with `trustworthy` and `why_not`,
beside `bars` (grid, what, found, met, worst) and `order` (group, tau), for which see `geartrain.validation.verdict`. A
cell:

    grid, engine, task, strategy, cluster, workers, ranks, batch, steps
    simulated, measured     the mean step after the first third of the steps, in which a run warms up, in seconds:
                            step_time, of each step's slowest worker; compute, exposed_communication, wait,
                            hidden_communication, means over all workers, since workers that leave a step together take
                            turns at being slowest; bytes_sent, messages, per worker; null after a failure
    errors                  {step_time, compute, exposed_communication, wait}: simulated - measured, as a fraction of
                            the measured step time
    bandwidth_term          seconds per step in which the busiest link carries bytes at its full rate
    small_collective        seconds of an all-reduce of 4 bytes in each message, among as many ranks and measured on the
                            same cluster
    host_busy               share of the host's cores in use while it was measured
    folders                 {simulated, measured}: folders of the runs below DIR, each with run.json, steps.jsonl and
                            trace.json.gz; null without --out
    failed                  what went wrong, or null
    config                  all that decided how it went
    trustworthy, why_not    whether it is, and if not, why; null on this machine itself, where the rule has no meaning
"""

from __future__ import annotations

import functools
import json
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from geartrain.cluster import Cluster, ServicePlace, load_cluster
from geartrain.compare.cell import Result, run_cell
from geartrain.compare.grid import Cell, Grid
from geartrain.cost.compute import ROOFLINE, ComputeModel, Measured
from geartrain.engines.base import Engine
from geartrain.engines.emulated import EmulatedEngine
from geartrain.engines.real import RealEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError, RunError
from geartrain.record.files import plain, readable, write_together
from geartrain.record.log import RunRecord
from geartrain.record.means import mean_step
from geartrain.record.split import split
from geartrain.runtime.context import Context
from geartrain.runtime.measure import measure_table
from geartrain.runtime.tracing import task_workload
from geartrain.tasks import get_task
from geartrain.validation.grid import Case
from geartrain.workload.spec import Workload

PHASES = ("step_time", "compute", "exposed_communication", "wait")
CELLS, RUNS = "cells", "runs"
"""Folders below DIR."""

_START = 4.0  # seconds that starting and ending an emulated run takes, for estimates: measured, 4 to 12 nodes
_COMMON = "ethernet-1g"  # a cluster that can be emulated wherever anything can
_WARM_UP, _TRIES = 10, 40  # small all-reduces
_WARM_UP_PART = 3  # of the steps a third, rounded up: with eight workers the second and third are slow now and then


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The mean step of a run; see the module."""

    step_time: float
    compute: float
    exposed_communication: float
    wait: float
    hidden_communication: float
    bytes_sent: float
    messages: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case; see the module. None where a run failed or the figure does not apply."""

    case: Case
    simulated: Step | None = None
    measured: Step | None = None
    bandwidth_term: float | None = None
    small_collective: float | None = None
    host_busy: float | None = None
    folders: dict[str, str] = field(default_factory=dict)
    failed: str | None = None
    interrupted: bool = False

    @property
    def step_error(self) -> float | None:
        return self.errors.get("step_time")

    @property
    def errors(self) -> dict[str, float]:
        """Phase -> (simulated - measured) / measured step time; empty when one of both is missing."""
        if self.simulated is None or self.measured is None or self.measured.step_time <= 0:
            return {}
        pairs = {phase: (getattr(self.simulated, phase), getattr(self.measured, phase)) for phase in PHASES}
        return {phase: (ours - theirs) / self.measured.step_time for phase, (ours, theirs) in pairs.items()}

    def as_json(self) -> dict[str, Any]:
        """The object of its file: that of `validation.json` without a verdict."""
        case = self.case
        return {
            "grid": case.grid,
            "engine": case.engine,
            "task": case.task,
            "strategy": str(case.strategy),
            "cluster": case.cluster.name,
            "workers": case.workers,
            "ranks": case.workers + len(_services(case)),
            "batch": case.batch,
            "steps": case.steps,
            "simulated": plain(self.simulated),
            "measured": plain(self.measured),
            "errors": self.errors,
            "bandwidth_term": self.bandwidth_term,
            "small_collective": self.small_collective,
            "host_busy": self.host_busy,
            "folders": self.folders or None,
            "failed": self.failed,
            "config": config(case),
        }


def config(case: Case) -> dict[str, Any]:
    """All that decides how a case goes, in JSON's words."""
    values = {**vars(case), "strategy": str(case.strategy), "cluster": case.cluster.model_dump(mode="json")}
    values |= {"compute": case.compute, "warm_up": f"1/{_WARM_UP_PART}"}
    found: dict[str, Any] = plain(values)
    return found


class Runner:
    """Runs cases one after another, with engines and measurements that are made once.

    Args:
        out: folder for the runs and their results; None keeps nothing.
        resume: take results of the same configuration from `out`.
    """

    def __init__(self, out: Path | None, resume: bool = False) -> None:
        self._out, self._resume = out, resume
        self._emulated = EmulatedEngine(ROOFLINE)
        self._small: dict[tuple[Cluster, int], float] = {}
        self._models: dict[tuple[str, int], ComputeModel] = {}

    def close(self) -> None:
        """Take the networks down."""
        self._emulated.close()

    def known(self, case: Case) -> Outcome | None:
        """The outcome of a case that ended before, where the validation goes on."""
        if self._out is None or not self._resume:
            return None
        try:
            found = json.loads(self._file(case).read_text(encoding="utf-8"))
            if found["config"] != config(case) or found["failed"]:
                return None
            return Outcome(
                case=case,
                simulated=Step(**found["simulated"]),
                measured=Step(**found["measured"]),
                bandwidth_term=found["bandwidth_term"],
                small_collective=found["small_collective"],
                host_busy=found["host_busy"],
                folders=found["folders"] or {},
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def run(self, case: Case) -> Outcome:
        """Simulate a case, run it, and keep what came of it. Failures of runs are told in the outcome."""
        outcome = self._run(case)
        if self._out is not None and not outcome.interrupted:
            file = self._file(case)
            file.parent.mkdir(parents=True, exist_ok=True)
            write_together({file: readable(outcome.as_json())})
        return outcome

    def _run(self, case: Case) -> Outcome:
        model = self._model(case)
        simulated, virtual = self._one(case, "simulated", SimulatedEngine(model))
        if simulated.error or virtual is None:
            return Outcome(case=case, failed=simulated.error, interrupted=simulated.interrupted)
        try:
            small = self._small_collective(case) if case.engine == "emulated" else None
        except RunError as error:
            return Outcome(case=case, failed=f"small all-reduces failed: {error}")
        engine = self._emulated if case.engine == "emulated" else RealEngine()
        measured, record = self._one(case, case.engine, engine)
        folders = {"simulated": simulated.out, "measured": measured.out}
        return Outcome(
            case=case,
            simulated=step_of(virtual) if simulated.mean else None,
            measured=step_of(record) if measured.mean else None,
            bandwidth_term=bandwidth_term(case, virtual),
            small_collective=small,
            host_busy=record.emulation.get("host_busy") if record else None,
            folders={kind: os.path.relpath(path, self._out) for kind, path in folders.items() if path and self._out},
            failed=measured.error,
            interrupted=measured.interrupted,
        )

    def _one(self, case: Case, engine_name: str, engine: Engine) -> tuple[Result, RunRecord | None]:
        watched = _Watched(engine)
        task = get_task(case.task)
        out = None if self._out is None else self._out / RUNS / _folder(case) / engine_name
        grid = Grid(
            task=task,
            subject=case.task,
            workload=workload_of(case.task),
            meta=False,
            strategies=[case.strategy],
            clusters=[case.cluster],
            ranks=[case.workers],
            engine=lambda cluster: watched,
            engine_name=engine_name,
            steps=case.steps,
            batch=case.batch,
            seed=case.seed,
            out=out,
            options={"task": case.task, "grid": case.grid, "compute": case.compute},
        )
        grid.check()
        return run_cell(grid, Cell(case.strategy, case.cluster, case.workers)), watched.record

    def _model(self, case: Case) -> ComputeModel:
        if case.engine == "emulated":
            return ROOFLINE
        samples = case.batch // case.workers
        key = (case.task, samples)
        if key not in self._models:
            self._models[key] = Measured(measure_table(get_task(case.task), [samples]))
        return self._models[key]

    def _small_collective(self, case: Case) -> float:
        ranks = case.workers + len(_services(case))
        key = (case.cluster, ranks)
        if key not in self._small:
            record = self._emulated.run(small_all_reduces, case.cluster, workers=ranks, seed=case.seed)
            if record.interrupted:
                raise KeyboardInterrupt
            # A collective lasts until its last rank has it; the median leaves out what a busy host did to some.
            self._small[key] = statistics.median(max(times) for times in zip(*record.results, strict=True))
        return self._small[key]

    def _file(self, case: Case) -> Path:
        assert self._out is not None, "only what has a folder has files"
        return self._out / CELLS / f"{case.name}.json"


class _Watched(Engine):
    """An engine that shows the record of its run."""

    name = "watched"
    capabilities = frozenset({"real_time", "virtual_time"})

    def __init__(self, inner: Engine) -> None:
        self._inner = inner
        self.record: RunRecord | None = None

    def run(
        self,
        main: Callable[[Context], Any],
        cluster: Cluster,
        *,
        workers: int,
        services: Sequence[ServicePlace] = (),
        seed: int = 0,
        meta: bool = False,
    ) -> RunRecord:
        """See `Engine.run`."""
        self.record = self._inner.run(main, cluster, workers=workers, services=services, seed=seed, meta=meta)
        return self.record


def step_of(record: RunRecord | None) -> Step | None:
    """The mean step of a record; None where no step was finished."""
    if record is None:
        return None
    parts = split(record)
    workers = [rank.steps for rank in parts.ranks if rank.role == "worker" and not rank.lost]
    finished = min(map(len, workers), default=0)
    warm_up = min(-(-finished // _WARM_UP_PART), max(finished - 1, 0))
    mean = mean_step(parts, warm_up)
    if mean is None:
        return None
    shares = [one.shares for steps in workers for one in steps[warm_up:finished]]

    def average(phase: str) -> float:
        return statistics.fmean(getattr(one, phase) for one in shares)

    return Step(
        step_time=mean.step_time,
        compute=average("compute"),
        exposed_communication=average("exposed_communication"),
        wait=average("wait"),
        hidden_communication=average("hidden_communication"),
        bytes_sent=mean.bytes_sent,
        messages=mean.messages,
    )


@functools.cache
def workload_of(task: str) -> Workload:
    """The shape of a task's step."""
    return task_workload(get_task(task))


def small_all_reduces(ctx: Context) -> list[float]:
    """Seconds of each of a row of all-reduces of 4 bytes in each message: a rank's program.

    gloo cuts a tensor in two pieces for each rank and sends no empty ones: of one element, most would be missing.
    """
    tensor, seconds = torch.zeros(2 * dist.get_world_size(ctx.workers)), []
    for _ in range(_WARM_UP + _TRIES):
        begin = ctx.clock.now()
        dist.all_reduce(tensor, group=ctx.workers)
        seconds.append(ctx.clock.now() - begin)
    return seconds[_WARM_UP:]


def bandwidth_term(case: Case, record: RunRecord) -> float | None:
    """Seconds per step in which the busiest link carries a simulated run's bytes, at its full rate."""
    place = Cell(case.strategy, case.cluster, case.workers).place()
    rates = {link.name: link.capacity for link in place.links}
    busy = [nbytes / rates[name] for name, nbytes in record.link_bytes.items()]
    return max(busy) / case.steps if busy else None


def estimate(case: Case) -> float:
    """Seconds of real time that a case will take, roughly: by its closed form."""
    cell = Cell(case.strategy, case.cluster, case.workers)
    step = case.strategy.cost(workload_of(case.task), cell.place(), case.batch).step_time
    return 2 * _START + case.steps * step


def check_possible(engine: str) -> str | None:
    """Why an engine cannot run here at all; None if it can."""
    if engine == "real":
        return None
    try:
        EmulatedEngine().run(small_all_reduces, load_cluster(_COMMON), workers=2)
    except ConfigurationError as error:
        return str(error)
    return None


def _services(case: Case) -> tuple[ServicePlace, ...]:
    return tuple(case.strategy.roles(case.workers).services)


def _folder(case: Case) -> str:
    text = f"{case.grid}--{case.task}"
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)
