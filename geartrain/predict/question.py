"""`Question`: a training run that has not been made, of which the step is asked."""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.cluster.placement import Placement, ServicePlace
from geartrain.cluster.spec import Cluster
from geartrain.cost.compute import ROOFLINE, ComputeModel
from geartrain.errors import TaskError
from geartrain.runtime.strategy import Strategy
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class Question:
    """What does a step of this run take?

    Args:
        workload: the shape of one step.
        cluster: the machines.
        strategy: how workers train together.
        ranks: workers; services come on top.
        batch: global, in samples.
        model: prices what devices compute.
    """

    workload: Workload
    cluster: Cluster
    strategy: Strategy
    ranks: int
    batch: int
    model: ComputeModel = ROOFLINE

    @property
    def services(self) -> tuple[ServicePlace, ...]:
        """The services that the strategy wants beside the workers."""
        return tuple(self.strategy.roles(self.ranks).services)

    def place(self) -> Placement:
        """Where everyone lives; PlacementError when they do not fit, TaskError when some worker has no sample."""
        if 1 <= self.ranks > self.batch:
            raise TaskError(
                f"a global batch of {self.batch} cannot be dealt to {self.ranks} workers: each needs at least one "
                f"sample.\n  give a batch of {self.ranks} or more, or fewer workers"
            )
        return Placement(self.cluster, self.ranks, self.services)

    def __str__(self) -> str:
        return f"{self.strategy} on {self.cluster.name} with {self.ranks} worker(s)"
