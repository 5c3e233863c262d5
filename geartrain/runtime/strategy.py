"""`Strategy`: a frozen value that says how ranks train together, and what it says of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Attachment, Loop
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Service, Task, Worker
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Where a method comes from.

    Attributes:
        title, authors, year: as printed.
        where: arXiv id or venue.
        part: section, equation or algorithm that the code follows.
    """

    title: str
    authors: str
    year: int
    where: str
    part: str = ""

    def __str__(self) -> str:
        return f"{self.authors}: {self.title} ({self.year}, {self.where}{', ' + self.part if self.part else ''})"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a strategy asks of the engine, the task and the user's program.

    Attributes:
        any_source: receives from whoever sends first.
        lanes: second activities on a rank.
        data_dependent: what goes on the wire, or when, depends on the numbers (so it cannot run on shapes alone).
        attachable: can be put into an unchanged training loop.
        ordered_model: needs the task's `cuts()`.
        regroups: the state is that of one model, so that another number of workers can go on from it, see `regroup`.
        survives_loss: the others go on when a worker's process dies, so the real engine does not end the run for it.
    """

    any_source: bool = False
    lanes: bool = False
    data_dependent: bool = False
    attachable: bool = False
    ordered_model: bool = False
    regroups: bool = False
    survives_loss: bool = False


@dataclass(frozen=True)
class Limit:
    """A setting in which a strategy must give the same weights as another one.

    Attributes:
        special: the strategy in its special setting.
        relation: "equals": bit for bit on integer-valued data and at two workers; "close": bit for bit where nothing is
            rounded, as on integer-valued data, and within `tolerance` elsewhere.
        other: the simpler strategy.
        num_workers: only for this many workers, if given.
        linear: only with an optimizer whose update is linear in the gradients: SGD, also with momentum.
        tolerance: relative and absolute, of "close".
    """

    special: Strategy
    relation: Literal["equals", "close"]
    other: Strategy
    num_workers: int | None = None
    linear: bool = False
    tolerance: float = 1e-6


@dataclass(frozen=True)
class Roles:
    """The services that exist beside the workers, and where they like to live."""

    services: tuple[ServicePlace, ...] = field(default=())


class Strategy(ABC):
    """How ranks train together.

    Subclasses are frozen, keyword-only dataclasses of hyperparameters, with defaults for all.
    """

    name: ClassVar[str]
    paper: ClassVar[Paper]
    needs: ClassVar[Needs] = Needs()

    def roles(self, num_workers: int) -> Roles:
        return Roles()

    @abstractmethod
    def bind(self, ctx: Context, task: Task) -> Worker | Service:
        """Make this rank's running part. All ranks call it at the same point of the program."""

    def planned(
        self, workload: Workload | None, place: Placement, batch: int, model: ComputeModel = ROOFLINE
    ) -> Strategy:
        """This strategy with all decided that depends on the model and the cluster; itself where nothing does.

        A program that runs a strategy asks for it once, before the ranks start: all of them then bind the same value.

        Args:
            workload: the shape of one step; None where it is not known.
            place, batch, model: as for `cost`.
        """
        return self

    def deal(self, rank: int, num_workers: int) -> tuple[int, int]:
        """Which share of every global batch a worker is given: (number of the share, how many there are).

        (0, 1) is the whole batch, for methods whose workers do different things with the same samples.
        """
        return rank, num_workers

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        """Make this worker's part inside a loop of the user's; for strategies whose `needs` say `attachable`.

        All workers call it at the same point, with models that are equal to the bit.
        """
        raise StrategyError(f"{self.name} says that it is attachable and has no `attach`")

    @property
    def cycle(self) -> int:
        """Steps after which what is sent repeats itself, e.g. the period of local updates."""
        return 1

    @abstractmethod
    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        """The closed form of one step with a global batch of `batch` samples; the mean over a `cycle`.

        Bytes and messages are exact, from the second cycle on and without what ends the run.

        Args:
            workload: the shape of one step.
            place: where the workers and the services of `roles` live.
            batch: samples of all workers together.
            model: prices what devices compute.
        """

    def limits(self) -> Sequence[Limit]:
        return ()

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        """The state for worker `rank` of `num_workers`, from what another number of workers saved.

        For strategies whose `needs` say `regroups`; a service takes the state of the service in its place.

        Args:
            states: the workers' `state_dict`s, in rank order; each is read from its file when it is looked at.
        """
        raise StrategyError(f"{self.name} cannot go on with {num_workers} workers from a state of {len(states)}")


def check_shapes(strategy: Strategy) -> None:
    """StrategyError where shapes without numbers do not say what a strategy sends, or when."""
    if strategy.needs.data_dependent:
        raise StrategyError(
            f"what {strategy.name} sends depends on the numbers, so it cannot run on shapes alone.\n"
            "  use a task with data (--task) in place of a workload"
        )
