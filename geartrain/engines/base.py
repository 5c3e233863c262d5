"""`Engine`: runs `main(ctx)` on every rank of a cluster and hands back the logs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from geartrain.cluster.placement import ServicePlace
from geartrain.cluster.spec import Cluster
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context


@runtime_checkable
class Survives(Protocol):
    """A `main(ctx)` that says whether its run may go on when a worker's process dies, as a `Training` does."""

    @property
    def survives_loss(self) -> bool: ...


class Engine(ABC):
    """Runs a rank program.

    Attributes:
        name: as on the command line.
        capabilities: of "real_time", "virtual_time", "meta" (tensors without numbers), "gpu".
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]

    @abstractmethod
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
        """Run `main(ctx)` on `workers` + `len(services)` ranks.

        Raises RankFailed, DeadlockError, CollectiveMismatch; on Ctrl-C the record so far comes back with `interrupted`
        set.
        """
