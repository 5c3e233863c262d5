"""Upkeep of simulated ranks: they share a process, so the ledger is a list, in the order of virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from geartrain.record.log import RankLog
from geartrain.runtime.context import Context
from geartrain.runtime.upkeep import Entry, Ledger, Upkeep
from geartrain.sim.compute import Pacer
from geartrain.sim.fabric import Fabric, RankState
from geartrain.sim.kernel import Event


def _more() -> Event:
    return Event("the others to come to the same point of the run")


@dataclass
class Page:
    """The entries of one ledger, and what happens when there is one more."""

    entries: list[Entry] = field(default_factory=list)
    more: Event = field(default_factory=_more)


class SimulatedLedger(Ledger):
    """See `Ledger`. Entries of the same moment stand in the order in which the ranks had the baton."""

    def __init__(self, fabric: Fabric, name: str) -> None:
        self._fabric, self._name, self._read = fabric, name, 0
        self._page: Page = fabric.pages.setdefault(name, Page())

    def post(self, entry: Entry) -> None:
        kernel, page = self._fabric.kernel, self._page
        kernel.sync()
        page.entries.append(entry)
        happened, page.more = page.more, _more()
        kernel.fire(happened)

    def read(self) -> list[Entry]:
        self._fabric.kernel.sync()
        found = self._page.entries[self._read :]
        self._read += len(found)
        return found

    def wait(self) -> list[Entry]:
        while not (found := self.read()):
            self._fabric.wait(self._page.more, None, self._name)
        return found


class SimulatedUpkeep(Upkeep):
    """See `Upkeep`.

    Args:
        ctx: whose; its streams are made when they are asked for.
        state: of the rank.
        generators: those that were.
        pacer: draws how fast the rank computes.
    """

    virtual = True

    def __init__(
        self, ctx: Context, fabric: Fabric, state: RankState, generators: dict[str, torch.Generator], pacer: Pacer
    ) -> None:
        self._ctx, self._fabric, self._state, self._generators, self._pacer = ctx, fabric, state, generators, pacer

    def ledger(self, name: str) -> Ledger:
        return SimulatedLedger(self._fabric, name)

    def random_state(self) -> dict[str, Any]:
        streams = {purpose: generator.get_state() for purpose, generator in self._generators.items()}
        # The step, too: a rank that marks none has its pace drawn in another way.
        return {"streams": streams, "pace": self._pacer.state(), "step": self._state.step}

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        for purpose, stream in state["streams"].items():
            self._ctx.rng(purpose).set_state(stream)
        if "pace" in state:
            self._pacer.load_state(state["pace"])
            self._state.step = state["step"]

    def go_on_at(self, moment: float) -> None:
        kernel = self._fabric.kernel
        if moment > kernel.me().now:
            kernel.wait(Event("the moment at which the saved run goes on"), moment)

    def written(self) -> RankLog:
        return self._state.log

    def link_bytes(self) -> dict[str, float]:
        links = zip(self._fabric.placement.links, self._fabric.network.link_bytes, strict=True)
        return {link.name: carried for link, carried in links if carried}
