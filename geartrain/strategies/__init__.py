"""The table of methods: name -> class -> paper. A new method adds one line here; the conformance suite picks it up.

name               class             paper
single             Single            the case W = 1 of arXiv 1909.02061
synchronous        Synchronous       Alqahtani and Demirbas, 2019, arXiv 1909.02061 (ring all-reduce)
parameter_server   ParameterServer   the same (one and several parameter servers)
peer_to_peer       PeerToPeer        the same (both readings of peer-to-peer)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from geartrain.errors import StrategyError, UnknownName
from geartrain.runtime.strategy import Strategy
from geartrain.strategies.parameter_server import ParameterServer
from geartrain.strategies.peer_to_peer import PeerToPeer
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.text import build, split_list, split_settings

__all__ = ["TABLE", "Entry", "from_table", "parse", "parse_list"]


@dataclass(frozen=True)
class Entry:
    """A method in the table.

    Attributes:
        kind: its class, with name and paper.
        summary: one line for lists.
        opt_outs: check of the conformance suite -> why the method does not take it.
    """

    kind: type[Strategy]
    summary: str
    opt_outs: Mapping[str, str] = field(default_factory=dict)


_ALONE = "trains in one process and refuses more"

TABLE: Mapping[str, Entry] = {
    entry.kind.name: entry
    for entry in (
        Entry(Single, "one process, nothing on the wire", {"several_workers": _ALONE}),
        Entry(Synchronous, "bucketed all-reduce of gradients, beside backward"),
        Entry(ParameterServer, "workers push gradients to servers and pull parameters"),
        Entry(PeerToPeer, "every worker sends to every other one, sharded or whole gradients"),
    )
}


def parse(text: str) -> Strategy:
    """One strategy from `name:key=value,key=value`.

    Example:
        >>> parse("synchronous:overlap=false,bucket_size=none")
        Synchronous(overlap=False, bucket_size=None, exchange='native')
    """
    name, settings = split_settings(text)
    return build(_kind(name), settings)


def parse_list(text: str) -> list[Strategy]:
    """Several strategies between commas; an item with `=` and no `:` before it belongs to the strategy on its left.

    Example:
        >>> [str(strategy) for strategy in parse_list("single,peer_to_peer:kind=broadcast,sends=all_at_once")]
        ['single', 'peer_to_peer:kind=broadcast,sends=all_at_once']
    """
    return [parse(item) for item in split_list(text)]


def from_table(table: Mapping[str, Any]) -> Strategy:
    """One strategy from a TOML table: `name = "synchronous"` and keys; sizes are text with a unit, None is "none"."""
    settings = dict(table)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise StrategyError(f'a strategy\'s table needs its name, like name = "synchronous"; it has {sorted(table)}')
    return build(_kind(name), settings)


def _kind(name: str) -> type[Strategy]:
    if name not in TABLE:
        raise UnknownName("strategy", name, TABLE)
    return TABLE[name].kind
