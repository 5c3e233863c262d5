"""What the suite runs: settings of every method in the table, and engines. Data in one place."""

from geartrain.engines.base import Engine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.runtime.strategy import Limit, Strategy
from geartrain.strategies import TABLE, parse
from tests.conformance.tasks import Chain, Golden

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
    "abs_sgd": ["abs_sgd:micro_batch=16,most=2", "abs_sgd:micro_batch=1,least=2,most=4"],
    "adascale": [
        "adascale",
        "adascale:exchange=ring,bucket_size=64B",
        "adascale:bucket_size=none,overlap=false",
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
    "dear": [
        "dear",
        "dear:neighbours=1",
        "dear:neighbours=2,exchange=ring",
        "dear:threshold=60B,exchange=ring",
        "dear:threshold=1MB,tune=true",  # exchange=measured: in the tests of its card
    ],
    "local_sgd": ["local_sgd:period=2", "local_sgd:period=1", "local_sgd:period=3,switch=2,weights=equal"],
    "cocod_sgd": ["cocod_sgd:period=2", "cocod_sgd:period=1"],  # sampling=proportional: in the tests of its card
    "pipe_sgd": ["pipe_sgd"],
    "dasgd": [
        "dasgd:period=2",
        "dasgd:period=3,delay=3,kept=0.5",
        "dasgd:period=1,delay=0,kept=0.0",
        "dasgd:period=3,delay=2,kept=0.5,merge=displacement",
    ],
    "diloco": ["diloco:period=10", "diloco:period=3,outer_lr=0.5,momentum=0.25"],
    "dpsgd": [
        "dpsgd",
        "dpsgd:graph=random_ring,order=adapt_then_combine",
        "dpsgd:graph=exponential,consensus_every=2",
        "dpsgd:graph=uniform,hierarchical=true",
    ],
    "adpsgd": [
        "adpsgd",
        "adpsgd:graph=ring,averages_per_step=1,steps_per_average=1",
        "adpsgd:hierarchical=true",
    ],
    "async_sgd": [
        "async_sgd",
        "async_sgd:step=constant",
        "async_sgd:max_staleness=2,late=block,step=constant",
        "async_sgd:max_staleness=1,step=per_update",
        "async_sgd:gather=2,max_staleness=0,step=decaying",
        "async_sgd:gather=none",
    ],
    "apam": [
        "apam",
        "apam:rule=adam,step=inverse_root,weight_decay=0.01",
        "apam:rule=momentum,bias_correction=false",
        "apam:rule=sgd",
        "apam:max_delay=3",
    ],
    "compressed": [
        "compressed",
        "compressed:codec=bf16,exchange=gather_sum,error_feedback=true",
        "compressed:codec=random_k,density=0.5,error_feedback=true,bucket_size=64B",
        "compressed:codec=qsgd,levels=2,exchange=gather_sum,bucket_size=1B",
        "compressed:codec=terngrad_shared,bucket_size=64B,overlap=false",
        "compressed:codec=sign,exchange=gather_sum",
    ],
    "top_k": ["top_k", "top_k:density=0.3,bucket_size=64B", "top_k:density=0.5,feedback=none,overlap=false"],
    "gtop_k": ["gtop_k", "gtop_k:density=0.3,bucket_size=64B", "gtop_k:density=0.3,feedback=none,overlap=false"],
    "mg_wfbp": ["mg_wfbp"],
    "powersgd": [
        "powersgd",
        "powersgd:rank=1,min_ratio=0.0,bucket_size=64B",
        "powersgd:rank=3,min_ratio=0.0,warm_start=false,error_feedback=false,overlap=false",
    ],
    "qsgd": ["qsgd", "qsgd:levels=127,block=4,bucket_size=64B", "qsgd:levels=1,overlap=false"],
    "terngrad": ["terngrad", "terngrad:scaler=own,bucket_size=64B", "terngrad:bucket_size=1B,overlap=false"],
    "spp": [
        "spp:stages=2",
        "spp",
        "spp:stages=1,idle=false,micro_batches=1",
        "spp:stages=2,idle=false,schedule=gpipe,micro_batches=2,ordering=given",
        "spp:stages=2,schedule=1f1b,replicate=false",  # schedule=interleaved: in the tests of its card
    ],
    "gear": [
        "gear",
        "gear:cuts=1,speeds=1-4,replay=1,max_scale=2",
        "gear:gears=3,speeds=4-2-1,stash=false",
        "gear:speeds=3-1",
        "gear:gears=3,speeds=1-0-3,workers=1-1-1",  # measured settings, mode=free: in the tests of its card
    ],
    "switchml": [
        "switchml",
        "switchml:payload=8B,slots=3,burst=2,bucket_size=64B",
        "switchml:payload=16B,factor=65536.0,slots=2,burst=1,overlap=false",
    ],
    "sign_sgd": ["sign_sgd:kind=majority,overlap=false", "sign_sgd", "sign_sgd:bucket_size=64B"],
}

STEPS = {"abs_sgd": 300, "pipe_sgd": 300}
"""Steps to learn digits, where a method needs more than others: gradients that are late do not go with momentum."""

# On real processes one setting of each kind is enough: the numbers are checked on the simulated engine.
REAL_VARIANTS = [
    "async_sgd:gather=none",
    "synchronous:bucket_size=64B",
    "synchronous:bucket_size=64B,exchange=ring",
    "synchronous:bucket_size=64B,exchange=halving_doubling",
    "parameter_server:servers=2,shard=tensors,overlap=true",
    "peer_to_peer",
    "peer_to_peer:kind=broadcast,sends=all_at_once",
    "dear:neighbours=1",
    "dpsgd:graph=exponential",
    "top_k:density=0.2,bucket_size=64B",
    "gtop_k:density=0.2,bucket_size=64B",
    "sign_sgd:bucket_size=64B",
    "switchml:payload=16B,slots=4,timeout=30.0",  # a shorter one would send again what a busy host holds up
    "spp:stages=2,schedule=1f1b,replicate=false",
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


def integers(strategy: Strategy, *, awkward: bool = False) -> Golden | Chain:
    """The task of whole numbers; as a chain of parts for methods that cut the model."""
    return Chain(awkward) if strategy.needs.ordered_model else Golden(awkward)


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
