"""What shall be compared: a grid of strategies, clusters and numbers of workers, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from geartrain.cluster import Cluster, Placement, ServicePlace
from geartrain.engines.base import Engine
from geartrain.errors import ConfigurationError, TaskError
from geartrain.record.means import WARM_UP
from geartrain.runtime.strategy import Strategy, check_shapes
from geartrain.runtime.targets import Targets
from geartrain.runtime.worker import Task
from geartrain.workload.spec import Workload

SAMPLES_PER_WORKER = 32
"""The default global batch: this many for each worker of the largest number of workers, the same in all cells."""

BASELINE_STEPS = 8
"""Steps of the run on one worker that efficiency is measured against."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    strategy: Strategy
    cluster: Cluster
    ranks: int

    @property
    def services(self) -> tuple[ServicePlace, ...]:
        return tuple(self.strategy.roles(self.ranks).services)

    def place(self) -> Placement:
        """Where everyone lives; PlacementError when they do not fit."""
        return Placement(self.cluster, self.ranks, self.services)

    @property
    def folder(self) -> str:
        """A name that every file system takes, different for every cell of a grid."""
        text = f"{self.strategy}--{self.cluster.name}--{self.ranks}"
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)

    def __str__(self) -> str:
        return f"{self.strategy} on {self.cluster.name} with {self.ranks} worker(s)"


def _always(cluster: Cluster) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A comparison.

    Args:
        task: what is trained; of a workload, the shapes to go through the motions with.
        subject: name of the task or workload, for tables and files.
        workload: the shape of one step, for closed forms; None when it could not be traced.
        meta: run on shapes alone, without numbers.
        strategies, clusters, ranks: their product is the grid.
        engine: runs one cell; called for each.
        engine_name: as on the command line.
        steps, batch, seed: of every run; the batch is global.
        roofline: whether a cluster's computing is priced by the roofline that closed forms assume.
        single: the strategy of one worker alone, which efficiency is measured against; None leaves efficiency out.
        out: folder for the runs' files, one below it for each cell; None writes nothing.
        resume: go on with what is in `out`: runs that are complete are read, others go on from their last checkpoint.
        checkpoint_every: steps between the checkpoints of a run; 0 makes none.
        targets: what ends a run early, and what is evaluated on the way.
        jobs: simulated runs at a time, in processes of their own if there are several.
        options: whatever else decided how it went, for the record.
        asked: what a user asked for, kept in `out` so that it need not be said again to go on.
    """

    task: Task
    subject: str
    workload: Workload | None
    meta: bool
    strategies: Sequence[Strategy]
    clusters: Sequence[Cluster]
    ranks: Sequence[int]
    engine: Callable[[Cluster], Engine]
    engine_name: str
    steps: int
    batch: int
    seed: int = 0
    roofline: Callable[[Cluster], bool] = _always
    single: Strategy | None = None
    out: Path | None = None
    resume: bool = False
    checkpoint_every: int = 0
    targets: Targets | None = None
    jobs: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Cluster by cluster, from few workers to many, the strategies beside each other."""
        return tuple(
            Cell(strategy, cluster, ranks)
            for cluster in self.clusters
            for ranks in sorted(self.ranks)
            for strategy in self.strategies
        )

    def check(self) -> None:
        """ConfigurationError when some cell cannot run; nothing has run then."""
        if not (self.strategies and self.clusters and self.ranks):
            raise ConfigurationError(
                "nothing to compare: give at least one strategy, one cluster and one number of workers"
            )
        if self.steps < 1:
            raise TaskError(f"{self.steps} steps train nothing; give --steps 1 or more")
        most = max(self.ranks)
        if self.batch < most:
            raise TaskError(
                f"a global batch of {self.batch} cannot be dealt to {most} workers: each needs at least one sample.\n"
                f"  give --batch {most} or more, or fewer --ranks"
            )
        self._check_saving()
        names = [cell.folder for cell in self.cells]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"the grid holds {name!r} twice; leave one of them")
        for cell in self.cells:
            cell.place()
            if self.meta:
                check_shapes(cell.strategy)

    def _check_saving(self) -> None:
        if self.meta and (self.checkpoint_every or self.targets):
            raise ConfigurationError(
                "a workload has shapes and no numbers: there is nothing to save or to reach, so leave out "
                "--checkpoint-every, --target-loss, --target-metric and --evaluate-every"
            )
        if self.checkpoint_every < 0:
            raise ConfigurationError(f"--checkpoint-every {self.checkpoint_every}: give 1 step or more")
        if self.checkpoint_every and not self.out:
            raise ConfigurationError("--checkpoint-every needs a folder to write to: give --out DIR")
        if self.jobs < 1:
            raise ConfigurationError(f"--jobs {self.jobs}: at least 1 run at a time goes on")
        if self.jobs > 1 and self.engine_name != "simulated":
            raise ConfigurationError(
                "--jobs is for simulated runs: real ones at the same time would take each other's cores, and be slower"
            )

    def config(self, cell: Cell) -> dict[str, Any]:
        """The complete effective configuration of a cell, in JSON's words."""
        strategy = cell.strategy
        names = [field.name for field in fields(strategy)]  # type: ignore[arg-type]  # every strategy is a dataclass
        return {
            "command": "compare",
            "strategy": str(strategy),
            "strategy_fields": {name: getattr(strategy, name) for name in names},
            "subject": self.subject,
            "meta": self.meta,
            "engine": self.engine_name,
            "cluster": cell.cluster.model_dump(mode="json"),
            "ranks": cell.ranks,
            "services": [service.name for service in cell.services],
            "steps": self.steps,
            "warm_up_steps": WARM_UP if self.steps > WARM_UP else 0,
            "batch": self.batch,
            "seed": self.seed,
            "checkpoint_every": self.checkpoint_every,
            "targets": None if self.targets is None else asdict(self.targets),
            **self.options,
        }
