"""Upkeep of ranks that are processes: the ledger lies in the launcher's store."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch

from geartrain.engines.recorder import Recorder
from geartrain.record.log import RankLog
from geartrain.runtime.context import Context
from geartrain.runtime.upkeep import Entry, Ledger, Upkeep

_FOR_EVER = timedelta(days=365)


class StoreLedger(Ledger):
    """See `Ledger`. Whoever draws a number writes the entry of that number: the store deals numbers in one order.

    Args:
        store: a part of the launcher's store, over a connection that nothing else uses while this one waits.
        recorder: is told of standing still.
        name: what it is told.
    """

    def __init__(self, store: Any, recorder: Recorder, name: str) -> None:
        self._store, self._recorder, self._name, self._read = store, recorder, name, 0

    def post(self, entry: Entry) -> None:
        self._store.set(str(self._store.add("count", 1)), json.dumps(entry))

    def read(self) -> list[Entry]:
        last = self._store.add("count", 0)
        # A number may have been drawn whose entry is still on its way: `get` waits for it.
        found = [json.loads(self._store.get(str(number))) for number in range(self._read + 1, last + 1)]
        self._read = last
        return found

    def wait(self) -> list[Entry]:
        with self._recorder.blocked(self._name):
            self._store.wait([str(self._read + 1)], _FOR_EVER)
        return self.read()


class RealUpkeep(Upkeep):
    """See `Upkeep`.

    Args:
        ctx: whose; its streams are made when they are asked for.
        generators: those that were.
        make_store: a part of the launcher's store by its name, each time over a connection of its own.
    """

    virtual = False

    def __init__(
        self,
        ctx: Context,
        recorder: Recorder,
        generators: dict[str, torch.Generator],
        make_store: Callable[[str], Any],
    ) -> None:
        self._ctx, self._recorder, self._generators, self._make_store = ctx, recorder, generators, make_store

    def ledger(self, name: str) -> Ledger:
        return StoreLedger(self._make_store(f"ledger-{name}"), self._recorder, name)

    def random_state(self) -> dict[str, Any]:
        return {"streams": {purpose: generator.get_state() for purpose, generator in self._generators.items()}}

    def load_random_state(self, state: Mapping[str, Any]) -> None:
        for purpose, stream in state["streams"].items():
            self._ctx.rng(purpose).set_state(stream)

    def go_on_at(self, moment: float) -> None:
        # All take the first rank's word for when it was, so that their clocks stay one. It speaks last.
        ready, word = self.ledger("go on"), self.ledger("the moment")
        ready.post([self._ctx.rank])
        if self._ctx.rank == 0:
            there = 0
            while there < self._ctx.world_size:
                there += len(ready.wait())
            word.post([self._recorder.now()])
        self._recorder.origin += word.wait()[0][0] - moment

    def written(self) -> RankLog:
        return self._recorder.snapshot()
