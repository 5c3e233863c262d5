"""What is searched: methods and the settings of each that are tried.

A method stands in SPACE if its weights are those of synchronous training, to rounding; what it declares as its limits
says so. These compete by seconds alone. All other methods change what is learned, see `changes_learning`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from geartrain.runtime.strategy import Strategy
from geartrain.strategies import TABLE, parse
from geartrain.strategies.text import build, written
from geartrain.workload.spec import Workload

Settings = Mapping[str, Sequence[str]]

SPACE: Mapping[str, Settings] = {
    "single": {},
    "synchronous": {
        "bucket_size": ("5MiB", "25MiB", "50MiB", "100MiB", "200MiB"),
        "exchange": ("native", "ring", "hierarchical", "halving_doubling", "tree"),
    },
    "parameter_server": {
        "servers": (),
        "placement": ("own", "colocated"),
        "shard": ("even", "tensors"),
        "overlap": ("false", "true"),
    },
    "peer_to_peer": {"kind": ("sharded", "broadcast"), "sends": ("one_at_a_time", "all_at_once")},
    "dear": {"threshold": ("5MiB", "25MiB", "50MiB", "100MiB"), "exchange": ("native", "ring")},
    "mg_wfbp": {},
    "spp": {
        "stages": ("1", "2", "4", "8"),
        "micro_batches": ("4", "8", "16", "32"),
        "schedule": ("list", "1f1b", "gpipe"),
    },
}
"""Method -> setting -> what is tried, in the words of the command line; how many servers, lemma 2 says."""

NEEDS_MORE: Mapping[str, str] = {
    "switchml": "it needs a switch that adds numbers, and a cluster's description does not say whether its switch can",
}
"""Methods that train as synchronous does, on machines that nobody has described -> what they need."""

OWN_SAMPLES: Mapping[str, str] = {
    "abs_sgd": "how many samples its rounds have is decided by time, so that its steps are not those of the others",
}
"""Methods whose steps cannot be held against those of others -> why."""

_START: Mapping[str, str] = {"spp": "spp:stages=2,schedule=1f1b"}
"""Where the search of a method begins, if not at its defaults."""


def starts(ranks: int, workload: Workload) -> Iterator[Strategy]:
    """Each method that trains as synchronous does, at the settings that its search begins with."""
    if ranks == 1:
        yield parse("single")
        return
    for name in SPACE:
        if name != "single" and (name != "spp" or workload.parts):
            yield parse(_START.get(name, name))


def neighbours(strategy: Strategy, setting: str, values: Sequence[str]) -> Iterator[Strategy]:
    """The strategy with other values of one setting; combinations that it refuses raise when they are made."""
    now = written(strategy)
    for value in values:
        if now[setting] != value:
            yield with_settings(strategy, {setting: value})


def with_settings(strategy: Strategy, settings: Mapping[str, Any]) -> Strategy:
    """The strategy with some settings changed."""
    return build(type(strategy), {**written(strategy), **settings})


def changes_learning() -> list[str]:
    """The methods after whose steps weights are not those of synchronous training."""
    return [name for name in TABLE if name not in {**SPACE, **NEEDS_MORE, **OWN_SAMPLES}]
