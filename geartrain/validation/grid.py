"""What is simulated and run, to compare both: cases, fixed in a file before anything is measured.

    seed = 0
    [trust]    factor = 5.0, host_busy = 0.8
    [bars]     trustworthy = 0.5, median = 0.05, worst = 0.12, tie = 0.03
    [wire]     latency, mtu, header, framing: of a cluster's wires, as in a cluster file; `rate` comes from the grid
    [[task]]   task = "characters", samples = 1, flops = "1 GFLOP/s"    of an emulated device, for that task
    [[grid]]   name, engine, tasks, strategies, workers, rates, steps, samples, quick, judged, overrides

A grid is the product of its tasks, strategies, numbers of workers and rates. The global batch is `samples` for each
worker, so that computing takes the same time whatever the number of workers. `engine = "emulated"` builds a star of
`rate`; `engine = "real"` runs on this machine and has no rates.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from geartrain.cluster import Cluster, Device, NodeGroup, Star, Wire, load_cluster
from geartrain.cluster.overrides import Overrides
from geartrain.errors import ConfigurationError, GeartrainError
from geartrain.runtime.strategy import Strategy
from geartrain.strategies import parse
from geartrain.units import format_rate, parse_flops, parse_rate, parse_size, parse_time

GRID_FILE = "emulated-grid.toml"
"""In the folder of validation files."""

FOLDER = Path(__file__).parents[2] / "validation"
"""The project's validation files, where the package lies in a checkout."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Trust(_Table):
    """When a cell measures the network and not the host.

    Attributes:
        factor: times that the bandwidth term must be as long as a collective of 4-byte messages.
        host_busy: share of the host's cores in use, which must be less; above 1 it never matters.
    """

    factor: Annotated[float, Field(gt=0)] = 5.0
    host_busy: Annotated[float, Field(gt=0)] = 0.8


class Bars(_Table):
    """What must be reached; fractions.

    Attributes:
        trustworthy: of the cells, at least.
        median, worst: of the absolute errors of the step time over the trustworthy cells, at most.
        tie: strategies whose measured step times differ by less are not told apart in the order.
    """

    trustworthy: Annotated[float, Field(ge=0, le=1)] = 0.5
    median: Annotated[float, Field(gt=0)] = 0.05
    worst: Annotated[float, Field(gt=0)] = 0.12
    tie: Annotated[float, Field(ge=0)] = 0.03


class WireOptions(_Table):
    """Of the wires of emulated clusters; see `geartrain.cluster.Wire`."""

    latency: Annotated[float, BeforeValidator(parse_time)] = 50e-6
    mtu: Annotated[int, BeforeValidator(parse_size)] = 1500


class TaskOptions(_Table):
    """How a task is run: samples for each worker, and the device that is emulated."""

    task: str
    samples: Annotated[int, Field(ge=1)]
    flops: Annotated[float, BeforeValidator(parse_flops)]
    memory_rate: Annotated[float, BeforeValidator(parse_rate)]


class GridOptions(_Table):
    """One grid; see the module.

    Attributes:
        steps: of every run, the first third of which warms up.
        samples: for each worker, where it is not what the task has.
        quick: belongs to `geartrain validate --quick`; the others to the whole validation.
        judged: whether the bars hold for it; without, its errors are shown.
        overrides: of the cluster: other wires and devices of single nodes.
    """

    name: str
    engine: Literal["emulated", "real"] = "emulated"
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    strategies: Annotated[tuple[str, ...], Field(min_length=1)]
    workers: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)]
    rates: tuple[Annotated[float, BeforeValidator(parse_rate)], ...] = ()
    steps: Annotated[int, Field(ge=2)]
    samples: Annotated[int, Field(ge=1)] | None = None
    quick: bool = False
    judged: bool = True
    overrides: Overrides = Overrides()


class GridFile(_Table):
    """All that the file says."""

    seed: Annotated[int, Field(ge=0)] = 0
    trust: Trust = Trust()
    bars: Bars = Bars()
    wire: WireOptions = WireOptions()
    task: tuple[TaskOptions, ...]
    grid: Annotated[tuple[GridOptions, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell: what runs twice, on the simulated engine and on `engine`."""

    grid: str
    engine: Literal["emulated", "real"]
    judged: bool
    strategy: Strategy
    task: str
    cluster: Cluster
    workers: int
    batch: int
    steps: int
    seed: int

    @property
    def compute(self) -> str:
        """What prices computing in virtual time, and what emulated devices sleep."""
        return "roofline" if self.engine == "emulated" else "measured"

    @property
    def group(self) -> tuple[str, str, str, int]:
        """Cells that differ by nothing but the strategy."""
        return self.grid, self.task, self.cluster.name, self.workers

    @property
    def name(self) -> str:
        """For files; different for every cell of a file."""
        text = f"{self.grid}--{self.task}--{self.cluster.name}--{self.workers}--{self.strategy}"
        return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)

    def __str__(self) -> str:
        return f"{self.grid}: {self.strategy}, {self.task}, {self.workers} workers, {self.cluster.name}"


def load_grids(path: Path) -> GridFile:
    """The grids in a file; ConfigurationError that names the key where one is wrong."""
    try:
        return GridFile.model_validate(tomllib.loads(path.read_text(encoding="utf-8")), context={"text_only": True})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"cannot read the grids in {str(path)!r}: {error}") from error
    except ValidationError as error:
        lines = "".join(f"\n  {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigurationError(f"{path} describes no grids:{lines}") from error


def cases(file: GridFile, engine: str, quick: bool) -> list[Case]:
    """The cells of all grids of an engine, in order: those that are quick, or those that are not."""
    chosen = [grid for grid in file.grid if grid.engine == engine and grid.quick == quick]
    found = [case for grid in chosen for case in _cases_of(file, grid)]
    names = [case.name for case in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"the grids hold {name!r} twice; leave one of them")
    return found


def _cases_of(file: GridFile, grid: GridOptions) -> Iterator[Case]:
    known = {options.task: options for options in file.task}
    for task in grid.tasks:
        if task not in known:
            raise ConfigurationError(f"grid {grid.name!r} asks for task {task!r}, which has no [[task]] of its own")
        for cluster in _clusters(file, grid, known[task]):
            for workers in grid.workers:
                for strategy in _strategies(grid.strategies):
                    yield Case(
                        grid=grid.name,
                        engine=grid.engine,
                        judged=grid.judged,
                        strategy=strategy,
                        task=task,
                        cluster=cluster,
                        workers=workers,
                        batch=(grid.samples or known[task].samples) * workers,
                        steps=grid.steps,
                        seed=file.seed,
                    )


def _strategies(texts: Sequence[str]) -> list[Strategy]:
    return [parse(text) for text in texts]


def _clusters(file: GridFile, grid: GridOptions, task: TaskOptions) -> list[Cluster]:
    if grid.engine == "real":
        if grid.rates or grid.overrides != Overrides():
            raise ConfigurationError(f"grid {grid.name!r} runs on this machine: leave out its rates and overrides")
        return [load_cluster("local")]
    if not grid.rates:
        raise ConfigurationError(f"grid {grid.name!r} is emulated: give the rates of its wires")
    device = Device(
        name="emulated",
        flops={"fp32": task.flops},
        memory=16 << 30,
        memory_rate=task.memory_rate,
        source="chosen: slow enough that sleeping is longer than this host's numerics",
    )
    try:
        return [
            Cluster(
                name=format_rate(rate).replace(" ", "-").replace("/", "-per-"),
                source="chosen, fixed before measuring",
                nodes=(NodeGroup(count="any", device=device),),
                topology=Star(wire=Wire(rate=rate, latency=file.wire.latency, mtu=file.wire.mtu)),
                overrides=grid.overrides,
            )
            for rate in grid.rates
        ]
    except (GeartrainError, ValidationError) as error:
        raise ConfigurationError(f"grid {grid.name!r} describes no cluster: {error}") from error
