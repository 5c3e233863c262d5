"""What a station and whoever started it say to each other. Plain values, pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geartrain.emu.plan import Plan


@dataclass(frozen=True)
class Child:
    """A process to fork.

    Attributes:
        host: of the plan, where it lives.
        environ: added to its environment.
        call: a pickled function without arguments, `functools.partial` or the like.
        output: which of the descriptors sent along is its standard output, and which its standard error.
        helps: it is ended when the others have, instead of being waited for.
    """

    host: int
    environ: Mapping[str, str]
    call: bytes = field(repr=False)
    output: tuple[int, int] = (0, 1)
    helps: bool = False


@dataclass(frozen=True)
class Load:
    """Load modules, so that forked processes have them."""

    modules: tuple[str, ...]


@dataclass(frozen=True)
class Prepare:
    """Build a network, or find one that was built from an equal plan. Answered by a `NetworkInfo`."""

    plan: Plan


@dataclass(frozen=True)
class Run:
    """Fork processes into the network of a plan; two descriptors or more come after it. Answered by `Ended`.

    Attributes:
        setting: of the parent, for `multiprocessing.spawn.prepare`: what its modules are and where.
        grace: seconds that the others get to end by themselves after one has failed, before they are killed.
    """

    plan: Plan
    children: tuple[Child, ...]
    setting: Mapping[str, Any] = field(repr=False)
    num_descriptors: int = 2
    grace: float = 5.0


@dataclass(frozen=True)
class Stop:
    """End the processes of the run that goes on."""


@dataclass(frozen=True)
class Ended:
    """How the processes of a run ended.

    Attributes:
        failed: exit status by index of those that failed first; below zero for a signal.
        carried: link -> (bytes, packets) from when the program began (or the run, if it never did) to its end.
        relay: what the relay did, if there is one.
        seconds: from when the program began to its end.
        host_busy: share of the host's cores, of all processes together, that was in use meanwhile.
    """

    failed: Mapping[int, int]
    carried: Mapping[str, tuple[int, int]]
    relay: Mapping[str, float] | None
    seconds: float
    host_busy: float


@dataclass(frozen=True)
class Refused:
    """An error in place of an answer."""

    error: BaseException
