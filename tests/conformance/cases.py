"""What the suite runs: settings of every method in the table, and engines. Data in one place."""

from geartrain.engines.base import Engine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.runtime.strategy import Limit, Strategy
from geartrain.strategies import TABLE, parse

VARIANTS = {
    "single": ["single"],
    "synchronous": [
        "synchronous",
        "synchronous:bucket_size=64B",
        "synchronous:overlap=false,bucket_size=none",
        "synchronous:bucket_size=64B,exchange=ring",
        "synchronous:overlap=false,bucket_size=64B,exchange=ring",
        "synchronous:bucket_size=64B,exchange=halving_doubling",
        "synchronous:overlap=false,bucket_size=none,exchange=tree",
        "synchronous:bucket_size=none,exchange=hierarchical",
    ],
    "parameter_server": [
        "parameter_server",
        "parameter_server:servers=2",
        "parameter_server:servers=2,placement=colocated,overlap=true",
        "parameter_server:servers=3,shard=tensors",
        "parameter_server:servers=2,shard=tensors,overlap=true",
    ],
    "peer_to_peer": [
        "peer_to_peer",
        "peer_to_peer:sends=all_at_once",
        "peer_to_peer:kind=broadcast",
        "peer_to_peer:kind=broadcast,sends=all_at_once",
    ],
}

# On real processes one setting of each kind is enough: the numbers are checked on the simulated engine.
REAL_VARIANTS = [
    "synchronous:bucket_size=64B",
    "synchronous:bucket_size=64B,exchange=ring",
    "synchronous:bucket_size=64B,exchange=halving_doubling",
    "parameter_server:servers=2,shard=tensors,overlap=true",
    "peer_to_peer",
    "peer_to_peer:kind=broadcast,sends=all_at_once",
]


def real_engine() -> Engine:
    from geartrain.engines.real import RealEngine  # its processes need what only this engine imports

    return RealEngine()


def variants(check: str, workers: int = 1) -> list[str]:
    """The settings, of all methods that take a check, that run with so many workers."""
    return [
        text
        for name, texts in VARIANTS.items()
        for text in texts
        if check not in TABLE[name].opt_outs and _fits(parse(text), workers)
    ]


def _fits(strategy: Strategy, workers: int) -> bool:
    """Whether the setting takes so many workers: some need enough of them for servers to live beside."""
    try:
        strategy.roles(workers)
    except StrategyError:
        return False
    return True


def cells(check: str, *workers: int) -> list[tuple[str, int]]:
    """(setting, number of workers) for all methods that take a check, where the number fits."""
    return [(text, count) for count in workers for text in variants(check, count)]


def limit_cells(*workers: int) -> list[tuple[Limit, int]]:
    """Every declared limit with the numbers of workers that it holds for."""
    limits = [limit for entry in TABLE.values() for limit in entry.kind().limits()]
    return [(limit, count) for limit in limits for count in workers if limit.num_workers in (None, count)]


SIMULATED = SimulatedEngine()
