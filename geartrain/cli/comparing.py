"""`geartrain compare`: from texts to a grid, run it, print it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from geartrain.cli.emulate import Emulated
from geartrain.cli.output import print_json, results, tell, told
from geartrain.cluster import Cluster, load_cluster
from geartrain.compare.folder import read_grid
from geartrain.compare.grid import SAMPLES_PER_WORKER, Grid
from geartrain.compare.runner import Comparison, num_runs, run_grid
from geartrain.compare.table import failures, print_comparison
from geartrain.compare.verdict import verdict
from geartrain.cost.compute import ComputeModel, parse_compute
from geartrain.cost.table import Table
from geartrain.engines.base import Engine
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.report.page import write_report
from geartrain.runtime.targets import Targets
from geartrain.runtime.worker import Task
from geartrain.workload.spec import Workload

TASK_STEPS, TARGET_STEPS, WORKLOAD_STEPS = 50, 500, 3
"""Default steps, and with a target. Those of a workload are all alike: there are no numbers that could change."""

SHAPES = "shapes alone: one walk through the layers is recorded for each number of samples and replayed on every rank"

MEASURED = "compute.json"
"""In the folder of a grid: the times that computing was measured to take."""

LOCAL = "local"
ENGINES = ("emulated", "real", "simulated")


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What stood on the command line."""

    task: str | None
    workload: str | None
    strategies: str
    cluster: str
    ranks: str
    engine: str
    steps: int | None
    batch: int | None
    seed: int
    compute: str | None
    out: Path | None
    resume: Path | None = None
    checkpoint_every: int = 0
    target_loss: float | None = None
    target_metric: float | None = None
    evaluate_every: int = 0
    charge_evaluation: bool = False
    jobs: int = 1

    def kept(self) -> dict[str, Any]:
        """What decides how a grid goes, and is kept with it; not where it is, nor how fast it is done."""
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in ("out", "resume", "jobs")}


def compare(asked: Asked, as_json: bool, given: Collection[str] = ()) -> int:
    """Run the grid and print it; the exit code.

    Args:
        given: names of what stood on the command line, the rest being defaults.
    """
    grid = build(again(asked, given) if asked.resume else asked)
    try:
        comparison = run(grid)
    finally:
        if isinstance(grid.engine, Emulated):
            grid.engine.close()
    if isinstance(grid.engine, Simulated | Emulated):
        tell(*grid.engine.report())
    if as_json:
        print_json([result.as_json() for result in comparison.results])
        tell(*failures(comparison))
    else:
        print_comparison(results(), comparison)
        if len(comparison.grid.cells) > 1:
            results().print(verdict(comparison.results), markup=False, soft_wrap=True)
    write_page(grid, comparison)
    if comparison.interrupted:
        return 130
    return 1 if comparison.failed else 0


def write_page(grid: Grid, comparison: Comparison) -> None:
    """The report of a grid that writes files, beside them."""
    if grid.out is not None and comparison.results:
        tell(f"report: {write_report(grid.out)}")


def run(grid: Grid) -> Comparison:
    """Check and run a grid behind a progress bar."""
    grid.check()
    with told(num_runs(grid)) as progress:
        return run_grid(grid, progress)


def again(asked: Asked, given: Collection[str]) -> Asked:
    """What was asked for when the grid that shall go on was begun; another option now is refused."""
    assert asked.resume is not None, "there is a folder to go on with"
    kept = read_grid(asked.resume)["asked"]
    now = asked.kept()
    different = [
        f"--{name.replace('_', '-')} {now[name]}, there {'nothing' if kept.get(name) is None else kept[name]}"
        for name in now
        if name in given and now[name] != kept.get(name)
    ]
    if asked.out is not None and asked.out.resolve() != asked.resume.resolve():
        different.append(f"--out {asked.out}, there {asked.resume}")
    if different:
        raise ConfigurationError(
            f"the grid in {str(asked.resume)!r} was begun with other options: {'; '.join(different)}\n"
            f"  go on with --resume {asked.resume} alone, or start anew in another folder"
        )
    return Asked(**{**now, **kept}, out=asked.resume, resume=asked.resume, jobs=asked.jobs)


def _steps(asked: Asked) -> int:
    if asked.steps is not None:
        return asked.steps
    if asked.workload:
        return WORKLOAD_STEPS
    return TASK_STEPS if asked.target_loss is None and asked.target_metric is None else TARGET_STEPS


def build(asked: Asked) -> Grid:
    """The grid that was asked for; ConfigurationError when it cannot be."""
    from geartrain.strategies import parse, parse_list

    _check_combination(asked)
    task = _task(asked)
    ranks = _numbers(asked.ranks)
    clusters = [load_cluster(text.strip()) for text in asked.cluster.split(",")]
    steps = _steps(asked)
    batch = asked.batch if asked.batch is not None else SAMPLES_PER_WORKER * max(ranks)
    _check_batch(task, batch, ranks, asked.seed)
    engines = _engines(asked, task, batch, ranks)
    return Grid(
        task=task,
        subject=task.name,
        workload=_shape(task, asked),
        meta=asked.workload is not None,
        strategies=parse_list(asked.strategies),
        clusters=clusters,
        ranks=ranks,
        engine=engines,
        engine_name=asked.engine,
        steps=steps,
        batch=batch,
        seed=asked.seed,
        roofline=engines.is_roofline,
        single=parse("single"),
        out=asked.out,
        resume=asked.resume is not None,
        checkpoint_every=asked.checkpoint_every,
        targets=_targets(asked, task),
        jobs=asked.jobs,
        asked=asked.kept(),
        options={
            "task": asked.task,
            "workload": asked.workload,
            "depth": "shapes" if asked.workload else "numeric",
            "compute": {cluster.name: engines.text(cluster) for cluster in clusters},
        },
    )


def _check_combination(asked: Asked) -> None:
    if (asked.task is None) == (asked.workload is None):
        raise ConfigurationError("give one of --task and --workload, e.g. --task digits or --workload resnet50")
    if asked.engine not in ENGINES:
        raise UnknownName("engine", asked.engine, ENGINES)
    if asked.engine == "simulated":
        return
    if asked.workload:
        raise ConfigurationError(
            f"--workload {asked.workload} has shapes and no numbers, so it cannot run for real; "
            "use --engine simulated, or --task"
        )
    if asked.engine == "emulated":
        if asked.cluster == LOCAL:
            raise ConfigurationError(
                "--engine emulated builds another cluster's wires on this machine: give --cluster, e.g. ethernet-1g"
            )
        return
    if asked.cluster != LOCAL:
        raise ConfigurationError(
            f"--engine real runs on this machine, not on {asked.cluster!r}; leave out --cluster, "
            "or use --engine simulated"
        )
    if asked.compute:
        raise ConfigurationError("--compute prices virtual time; --engine real takes real time, so leave it out")


def _task(asked: Asked) -> Task:
    from geartrain.models import WORKLOADS, get_workload
    from geartrain.tasks import get_task
    from geartrain.tasks.workload_task import WorkloadTask

    if asked.workload is not None:
        return WorkloadTask(get_workload(asked.workload))
    name = asked.task or ""
    if name in WORKLOADS:
        raise ConfigurationError(f"{name!r} is a workload: give --workload {name} instead of --task {name}")
    return get_task(name)


def _check_batch(task: Task, batch: int, ranks: Sequence[int], seed: int) -> None:
    """TaskError where the task has too few samples for the batch."""
    for workers in ranks:
        if 1 <= workers <= batch:  # what is not, the grid refuses
            task.batches(0, workers, batch, seed)


def _targets(asked: Asked, task: Task) -> Targets | None:
    if asked.target_loss is None and asked.target_metric is None and not asked.evaluate_every:
        if asked.charge_evaluation:
            raise ConfigurationError("--charge-evaluation charges nothing without --target-metric or --evaluate-every")
        return None
    if asked.target_metric is not None and not asked.workload and not task.metric(task.model(asked.seed)):
        raise ConfigurationError(f"task {task.name!r} has no metric to reach; give --target-loss instead")
    return Targets(
        loss=asked.target_loss,
        metric=asked.target_metric,
        evaluate_every=asked.evaluate_every,
        charge_evaluation=asked.charge_evaluation,
    )


def _numbers(text: str) -> list[int]:
    """Numbers of workers from "2,4,8"."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigurationError(f"--ranks {text!r} is no list of whole numbers; write it like --ranks 2,4,8") from None
    if min(numbers) < 1:
        raise ConfigurationError(f"--ranks {text!r}: a run needs at least 1 worker")
    return numbers


def _shape(task: Task, asked: Asked) -> Workload:
    from geartrain.models import get_workload
    from geartrain.runtime.tracing import task_workload

    return get_workload(asked.workload) if asked.workload else task_workload(task, asked.seed)


class Real:
    """Makes the engine of this machine."""

    def __call__(self, cluster: Cluster) -> Engine:
        from geartrain.engines.real import RealEngine

        return RealEngine()

    def text(self, cluster: Cluster) -> str:
        return "real time"

    def is_roofline(self, cluster: Cluster) -> bool:
        """Real time is nobody's model."""
        return False


class Simulated:
    """Makes a simulated engine for a cluster; each price list once, since measuring one takes a while.

    Args:
        compute: as on the command line; without it, measured for a task on this machine, a roofline otherwise.
        task: what is measured; None where there are only shapes.
        sizes: numbers of samples that a worker takes at once.
        kept: a file that keeps measured times, so that a grid which goes on does not go on with others.
        again: take them from there.
    """

    def __init__(
        self, compute: str | None, task: Task | None, sizes: Sequence[int], kept: Path | None, again: bool
    ) -> None:
        self._compute, self._task, self._sizes, self._kept, self._again = compute, task, sizes, kept, again
        self._models: dict[str, ComputeModel] = {}

    def __call__(self, cluster: Cluster) -> Engine:
        from geartrain.engines.simulated import SimulatedEngine

        return SimulatedEngine(self.model(self.text(cluster)))

    def text(self, cluster: Cluster) -> str:
        if self._compute:
            return self._compute
        return "measured" if cluster.name == LOCAL and self._task else "roofline"

    def is_roofline(self, cluster: Cluster) -> bool:
        """Whether computing on it is priced as closed forms do."""
        return self.text(cluster) == "roofline"

    def model(self, text: str) -> ComputeModel:
        if text not in self._models:
            self._models[text] = parse_compute(text, self._measure if self._task else None)
        return self._models[text]

    def report(self) -> list[str]:
        """What a reader should know of how it was simulated and of the prices that were used."""
        depth = [] if self._task else [SHAPES]
        return depth + [line for model in self._models.values() for line in model.report()]

    def _measure(self) -> Table:
        from geartrain.runtime.measure import measure_table

        assert self._task is not None
        if self._kept and self._again and self._kept.exists():
            return Table.load(self._kept)
        table = measure_table(self._task, self._sizes)
        if self._kept:
            unfinished = self._kept.with_name(f".{self._kept.name}")
            table.save(unfinished)
            unfinished.replace(self._kept)
        return table


def _engines(asked: Asked, task: Task, batch: int, ranks: Sequence[int]) -> Real | Simulated | Emulated:
    if asked.engine == "real":
        return Real()
    if asked.engine == "emulated":
        return Emulated(asked.compute)
    # Shares of workers differ by one sample where the batch does not divide; one worker alone takes it whole.
    sizes = {batch, *(batch // n for n in ranks), *(-(-batch // n) for n in ranks)}
    kept = asked.out / MEASURED if asked.out else None
    priced = None if asked.workload else task
    engines = Simulated(asked.compute, priced, sorted(size for size in sizes if size > 0), kept, bool(asked.resume))
    if asked.compute not in (None, "measured"):
        engines.model(str(asked.compute))  # a mistake shows before anything runs
    return engines
