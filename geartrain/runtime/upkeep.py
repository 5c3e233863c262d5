"""What looks after a run beside its training: a ledger that all ranks write, random state, the clock, the log.

Strategies leave it alone. Nothing here costs virtual time or counted traffic, but standing still until others have come
is standing still.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from geartrain.record.log import RankLog

Entry = list[Any]
"""Plain values in JSON's words; the first one says what it is."""


class Ledger(ABC):
    """Entries of all ranks in one order, which is the same for all of them.

    A rank that has posted an entry and then reads has seen every entry before its own: what ranks decide from a
    beginning of the ledger, they decide alike. One handle belongs to one lane.
    """

    @abstractmethod
    def post(self, entry: Entry) -> None: ...

    @abstractmethod
    def read(self) -> list[Entry]:
        """The entries that this handle has not read yet."""

    @abstractmethod
    def wait(self) -> list[Entry]:
        """`read()`, after standing still until there is an entry."""


class Upkeep(ABC):
    """See the module.

    Attributes:
        virtual: whether the clock is a virtual one.
    """

    virtual: bool

    @abstractmethod
    def ledger(self, name: str) -> Ledger:
        """A new handle on the ledger of that name, at its beginning."""

    @abstractmethod
    def random_state(self) -> dict[str, Any]:
        """This rank's streams (`Context.rng`), and whatever else the engine draws for it."""

    @abstractmethod
    def load_random_state(self, state: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def go_on_at(self, moment: float) -> None:
        """Let the clock show `moment` now. All ranks call it at the same point, before a training goes on."""

    @abstractmethod
    def written(self) -> RankLog:
        """What this rank has written down so far. The lists may be the engine's own."""

    def link_bytes(self) -> dict[str, float]:
        """Bytes carried per link so far, where the engine knows links."""
        return {}
