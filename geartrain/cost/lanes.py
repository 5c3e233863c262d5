"""A device with two lanes: the host launches kernels, the device runs them in order, and ranks meet in collectives.

    host   += launch.host
    device  = max(device, host) + launch.device            a launch that blocks: host = device

    a meeting starts when the last rank's device and wire are there, and ends at the same time for all

Source: the end-to-end algorithm of Lin et al., Towards Universal Performance Modeling (arXiv 2404.12674). Differs from
it: neither a microsecond between kernels nor five on each, which are in the measured times of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from geartrain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel on a device with two lanes, a host's and its own; seconds.

    Attributes:
        host: what the host takes before the kernel can start.
        device: what the device takes.
        blocks: the host waits until the device is done.
    """

    host: float
    device: float
    blocks: bool = False


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
    """Ranks in lockstep: every collective starts when the last of them has come.

    A rank's collectives run one after another, beside its kernels; one that is needed, and the end, make its device
    wait for all that went before. ConfigurationError when ranks do not meet in the same collectives.

    Example:
        >>> walk([[Launch(0, 1.0), Meet(0.5)], [Launch(0, 3.0), Meet(0.5)]]).waited
        (2.0, 0.0)
    """
    meetings = [[one for one in rank if isinstance(one, Meet)] for rank in ranks]
    if any(mine != meetings[0] for mine in meetings):
        raise ConfigurationError(
            "ranks that walk together meet in the same collectives, in one order; these meet in "
            + " | ".join(", ".join(one.name or "?" for one in mine) or "none" for mine in meetings)
        )
    walkers = [_Walker() for _ in ranks]
    pieces = [_pieces(rank) for rank in ranks]
    for index, meet in enumerate(meetings[0] if ranks else ()):
        came = [walker.arrive(piece[index]) for walker, piece in zip(walkers, pieces, strict=True)]
        for walker in walkers:
            walker.meet(meet, max(came))
    for walker, piece in zip(walkers, pieces, strict=True):
        walker.arrive(piece[-1])
        walker.stand_still()
    return Walked(
        seconds=max((max(walker.fronts.host, walker.fronts.device) for walker in walkers), default=0.0),
        active=tuple(walker.active for walker in walkers),
        exposed=tuple(walker.exposed for walker in walkers),
        waited=tuple(walker.waited for walker in walkers),
    )


def _pieces(rank: Iterable[Launch | Meet]) -> list[list[Launch]]:
    """Launches between meetings."""
    found: list[list[Launch]] = [[]]
    for one in rank:
        if isinstance(one, Meet):
            found.append([])
        else:
            found[-1].append(one)
    return found


@dataclass
class _Walker:
    """One rank under way.

    Attributes:
        wire: when its last collective ends.
        stood: (from, to, whether in a collective) of its stream of communication: in one, or waiting to begin it.
    """

    fronts: Fronts = field(default_factory=Fronts)
    wire: float = 0.0
    active: float = 0.0
    exposed: float = 0.0
    waited: float = 0.0
    stood: list[tuple[float, float, bool]] = field(default_factory=list)

    def arrive(self, launches: Iterable[Launch]) -> float:
        """Run up to a meeting; when this rank could begin it."""
        for launch in launches:
            self.fronts.run(launch)
            self.active += launch.device
        return max(self.fronts.host, self.fronts.device, self.wire)

    def meet(self, meet: Meet, start: float) -> None:
        """A collective that begins at `start` on all ranks."""
        here = max(self.fronts.host, self.fronts.device, self.wire)
        self.wire = start + meet.seconds
        self.stood += [(here, start, False), (start, self.wire, True)]
        if meet.needs:
            self.stand_still()

    def stand_still(self) -> None:
        """The device waits for the stream of communication."""
        begin, self.fronts.device = self.fronts.device, max(self.fronts.device, self.wire)
        for start, end, together in self.stood:
            seconds = max(0.0, end - max(start, begin))
            if together:
                self.exposed += seconds
            else:
                self.waited += seconds
        self.stood.clear()
