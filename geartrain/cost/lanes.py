"""A device with two lanes: the host launches kernels, the device runs them in order, and ranks meet in collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from geartrain.cost.compute import Launch


@dataclass
class Fronts:
    """Where the two lanes of one device stand, in seconds."""

    host: float = 0.0
    device: float = 0.0

    def run(self, launch: Launch) -> None:
        """The host launches one kernel; the device starts it when both are there."""
        self.host += launch.host
        self.device = max(self.device, self.host) + launch.device
        if launch.blocks:
            self.host = self.device


@dataclass(frozen=True, slots=True)
class Meet:
    """A collective of all ranks, on the stream of communication.

    Attributes:
        seconds: that it takes once all are there.
        name: for people.
        needs: the next launch waits for it.
    """

    seconds: float
    name: str = ""
    needs: bool = True


@dataclass(frozen=True)
class Walked:
    """What ranks that walked together took, in seconds; tuples have one entry per rank.

    Attributes:
        seconds: until the last one ended.
        active: its device computed.
        exposed: it stood still in a collective.
        waited: it stood still for another rank.
    """

    seconds: float
    active: tuple[float, ...]
    exposed: tuple[float, ...]
    waited: tuple[float, ...]


def walk(ranks: Sequence[Sequence[Launch | Meet]]) -> Walked:
    """Ranks in lockstep: every collective starts when the last of them has come."""
    raise NotImplementedError("ranks are not walked together yet")
