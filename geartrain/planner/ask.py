"""What a plan is asked for, and what it consists of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from geartrain.cluster.spec import Cluster
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.planner.statistics import Statistics
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.runtime.strategy import Strategy
from geartrain.workload.choices import checkpointed
from geartrain.workload.spec import Workload

AS_GIVEN = ""
"""The choice of checkpointing that leaves the workload as it was given."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What is the best way to train this model on these machines?

    Args:
        workload: the shape of one step.
        cluster: the machines.
        ranks: workers, at most; services come on top.
        batch: global, in samples; None leaves it to the plan.
        model: prices what devices compute.
        efficiency: of a worker over one alone, at least; fewer workers are taken where that is needed.
        confirm: how many of the best are simulated.
        statistics: steps to a target of methods that change what is learned; without, they do not compete.
        recompute: what is kept for backward may be chosen.
    """

    workload: Workload
    cluster: Cluster
    ranks: int
    batch: int | None = None
    model: ComputeModel = ROOFLINE
    efficiency: float = 0.0
    confirm: int = 3
    statistics: Statistics | None = None
    recompute: bool = False

    def workload_with(self, checkpointing: str) -> Workload:
        """The workload with a choice of checkpointing, as in its text; ConfigurationError where it has no blocks."""
        return _with(self.workload, checkpointing) if checkpointing else self.workload

    def question(self, strategy: Strategy, ranks: int, batch: int, checkpointing: str = AS_GIVEN) -> Question:
        """One candidate as a question."""
        return Question(
            workload=self.workload_with(checkpointing),
            cluster=self.cluster,
            strategy=strategy,
            ranks=ranks,
            batch=batch,
            model=self.model,
        )


@lru_cache(maxsize=64)
def _with(workload: Workload, checkpointing: str) -> Workload:
    """Made once, so that what is known of it is found again."""
    name = with_setting(workload.name, f"checkpointing={checkpointing}")
    return replace(checkpointed(workload, checkpointing), name=name)


def with_setting(workload: str, setting: str) -> str:
    """A workload's text with one more setting."""
    settled = "=" in workload.rpartition(":")[2]
    return f"{workload}{',' if settled else ':'}{setting}"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A complete way to train, and what it takes.

    Attributes:
        closed: by closed form.
        checkpointing: as `Ask.workload_with` takes it.
        confirmed: the same simulated, perhaps with fewer ranks; None where it was not.
        correction: simulated step time over that of the closed form, with equally many ranks.
        steps_factor: steps that it needs to a target, over those of synchronous training.
    """

    closed: Prediction
    checkpointing: str = AS_GIVEN
    confirmed: Prediction | None = None
    correction: float = 1.0
    steps_factor: float = 1.0

    @property
    def strategy(self) -> Strategy:
        return self.closed.question.strategy

    @property
    def ranks(self) -> int:
        return self.closed.question.ranks

    @property
    def batch(self) -> int:
        return self.closed.question.batch

    @property
    def services(self) -> int:
        """How many beside the workers."""
        return len(self.closed.question.services)

    @property
    def step_time(self) -> float:
        """Seconds, as far as is known: corrected where it was simulated."""
        return self.closed.step_time * self.correction

    @property
    def score(self) -> float:
        """Seconds for what a sample teaches in synchronous training: the smaller, the better."""
        return self.step_time / self.batch * self.steps_factor


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The best candidate, and why it is.

    Attributes:
        runners_up: the best of other methods, the best first.
        faster: methods that change what is learned and take less time for a sample; how many more steps they need,
            nobody knows.
        why: what each runner-up lost by, in words.
        rejected: (candidate, why it does not compete).
        notes: how batch, devices and servers were found, and what a reader must know.
    """

    ask: Ask
    best: Candidate
    runners_up: tuple[Candidate, ...] = ()
    faster: tuple[Candidate, ...] = ()
    why: tuple[str, ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
