"""The table of methods: name -> class -> paper. A new method adds one line here; the conformance suite picks it up.

name               class             paper
single             Single            the case W = 1 of arXiv 1909.02061
synchronous        Synchronous       Alqahtani and Demirbas, 2019, arXiv 1909.02061 (ring all-reduce)
parameter_server   ParameterServer   the same (one and several parameter servers)
peer_to_peer       PeerToPeer        the same (both readings of peer-to-peer)
abs_sgd            ABSSGD            Zhou and others, 2023, arXiv 2308.15164
adascale           AdaScale          Johnson and others, 2020, arXiv 2007.05105
dear               DeAR              Zhang and others, ICDCS 2023, arXiv 2302.12445
local_sgd          LocalSGD          Stich, 2018, arXiv 1805.09767 (and FedAvg, post-local SGD)
cocod_sgd          CoCoDSGD          Shen and others, 2019, arXiv 1906.12043
pipe_sgd           PipeSGD           Li and others, 2018, arXiv 1811.03619 (recalled)
dasgd              DaSGD             Zhou and others, 2020, arXiv 2006.00441
diloco             DiLoCo            Douillard and others, 2023, arXiv 2311.08105
dpsgd              DPSGD             Lian and others, 2017, arXiv 1705.09056; Zhang and others, 2020, arXiv 2002.01119
adpsgd             ADPSGD            Lian and others, 2018, arXiv 1710.06952; Zhang and others, 2020, arXiv 2002.01119
async_sgd          AsyncSGD          Regatti and others, 2019, arXiv 1909.13391
apam               APAM              Xu and others, 2020, arXiv 2002.09095
gear               Gear              Dong and others, 2018, arXiv 1806.03925 (abstract; the definition is ours)
compressed         Compressed        Shi and others, 2021, arXiv 2005.13247 (the parts of its taxonomy)
top_k              TopK              the same (top-k with error feedback)
gtop_k             GTopK             the same (gTop-k)
mg_wfbp            MGWFBP            the same (MG-WFBP); Shi and others, 2019, arXiv 1811.11141
powersgd           PowerSGD          the same; Vogels and others, 2019, arXiv 1905.13727
qsgd               QSGD              the same; Alistarh and others, 2017, arXiv 1610.02132
terngrad           TernGrad          the same; Wen and others, 2017, arXiv 1705.07878
sign_sgd           SignSGD           the same (EF-signSGD, signSGD with majority vote)
switchml           SwitchML          Sapio and others, NSDI 2021, arXiv 1903.06701
spp                SPP               Luo and others, INFOCOM 2022, arXiv 2204.10562
"""

from __future__ import annotations

import copyreg
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geartrain.errors import StrategyError, UnknownName
from geartrain.runtime.own_file import own_class
from geartrain.runtime.strategy import Strategy
from geartrain.strategies.abs_sgd import ABSSGD
from geartrain.strategies.adascale import AdaScale
from geartrain.strategies.adpsgd import ADPSGD
from geartrain.strategies.apam import APAM
from geartrain.strategies.async_sgd import AsyncSGD
from geartrain.strategies.cocod_sgd import CoCoDSGD
from geartrain.strategies.compressed import Compressed
from geartrain.strategies.dasgd import DaSGD
from geartrain.strategies.dear import DeAR
from geartrain.strategies.diloco import DiLoCo
from geartrain.strategies.dpsgd import DPSGD
from geartrain.strategies.gear import Gear
from geartrain.strategies.gtop_k import GTopK
from geartrain.strategies.local_sgd import LocalSGD
from geartrain.strategies.mg_wfbp import MGWFBP
from geartrain.strategies.parameter_server import ParameterServer
from geartrain.strategies.peer_to_peer import PeerToPeer
from geartrain.strategies.pipe_sgd import PipeSGD
from geartrain.strategies.powersgd import PowerSGD
from geartrain.strategies.qsgd import QSGD
from geartrain.strategies.sign_sgd import SignSGD
from geartrain.strategies.single import Single
from geartrain.strategies.spp import SPP
from geartrain.strategies.switchml import SwitchML
from geartrain.strategies.synchronous import Synchronous
from geartrain.strategies.terngrad import TernGrad
from geartrain.strategies.text import build, split_list, split_settings, written
from geartrain.strategies.top_k import TopK

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


_OPEN_BATCH = "how many samples a round has is decided by time, and its gradient is applied one round late"
_OPEN = dict.fromkeys(("several_workers", "one_rank", "one_process", "awkward_parameters"), _OPEN_BATCH) | {
    "not_finite": "a loss that is not finite reaches the others with the next sum, one round later; tested apart"
}
_RATE = "the learning rate is multiplied by a gain that more workers raise"
_GAIN = {"several_workers": _RATE, "one_process": _RATE, "awkward_parameters": _RATE}
_ALONE = "trains in one process and refuses more"
_APART = {
    "several_workers": "between averages each worker has a model of its own",
    "one_process": "between averages each worker has a model of its own",
    "awkward_parameters": "compares with one process, from which workers that train apart differ",
    "not_finite": "what happens to one worker reaches the others with the next average, not in the same step",
}
_ASYNCHRONOUS = {
    "several_workers": "gradients are applied one by one, each at other weights, so no sum is that of the whole batch",
    "one_process": "gradients are applied one by one, each at other weights, so no sum is that of the whole batch",
    "awkward_parameters": "compares with one process, which several workers do not equal; tested with one worker apart",
    "not_finite": "workers are steps apart, so they hear of it in different steps; tested apart",
}
_ONE_LATE = "a gradient is applied one step late, also when a worker is alone"
_PIPED = dict.fromkeys(("several_workers", "one_rank", "one_process", "awkward_parameters"), _ONE_LATE) | {
    "not_finite": "what happens to one worker reaches the others with the next sum, not in the same step"
}
_OUTER = {"one_rank": "merges with an older model also when a worker is alone"}
_GOSSIP = {
    "several_workers": "models are averaged with a few others, so workers' models differ until the end",
    "one_process": "models are averaged with a few others, so workers' models differ until the end",
    "awkward_parameters": "compares bit for bit with one process, from which an average of models differs",
    "not_finite": "a model that is not finite reaches the others by exchanges, one after another",
}
_LATE = {"not_finite": "the sum arrives in the next forward, so the other workers stop one step later"}
_MERGED = {"counted_bytes": "groups follow from measured times; the bytes of each are exact and tested"}
_LEAVES_OUT = "a part of each gradient is left out, rounded or delayed, so no sum is that of the whole batch"
_LOSSY = {"several_workers": _LEAVES_OUT, "one_process": _LEAVES_OUT, "awkward_parameters": _LEAVES_OUT}
_MICRO = {
    "one_rank": "gradients are summed over micro-batches, so to rounding; whole batches and integers are tested apart",
    "not_finite": "every worker knows the whole batch, so none has a loss of its own; tested apart",
}
_OWN_SPEEDS = "replay, and speeds that differ, are other rules than one update with the whole batch"
_GEARS = {
    **dict.fromkeys(("several_workers", "one_rank", "one_process", "awkward_parameters"), _OWN_SPEEDS),
    "not_finite": "workers share the samples, so there is no worker whose samples explode; tested apart",
}
_FIXED_POINT = {"one_process": "sums are of 32-bit integers, too coarse for its bound in float64; tested apart"}
_TIMED = {"counted_bytes": "how many exchanges there are depends on time; the bytes of each are exact and tested"}

TABLE: Mapping[str, Entry] = {
    entry.kind.name: entry
    for entry in (
        Entry(Single, "one process, nothing on the wire", {"several_workers": _ALONE}),
        Entry(Synchronous, "bucketed all-reduce of gradients, beside backward"),
        Entry(ParameterServer, "workers push gradients to servers and pull parameters"),
        Entry(PeerToPeer, "every worker sends to every other one, sharded or whole gradients"),
        Entry(ABSSGD, "open batches: workers compute on while the last sum travels, one round late", _OPEN),
        Entry(AdaScale, "all-reduce, with a learning rate that grows by the measured gain of the batch", _GAIN),
        Entry(DeAR, "all-reduces in two halves, behind backward and behind the next forward", _LATE),
        Entry(LocalSGD, "steps of each worker's own, models averaged every few steps (FedAvg, post-local SGD)", _APART),
        Entry(CoCoDSGD, "local SGD whose averages travel during the next period, no step lost", _APART),
        Entry(PipeSGD, "all-reduce of gradients during the whole next step, applied one step late", _PIPED),
        Entry(DaSGD, "local SGD whose averages are blended in some steps later", {**_APART, **_OUTER}),
        Entry(DiLoCo, "many local steps, then an outer Nesterov step with what they changed", {**_APART, **_OUTER}),
        Entry(DPSGD, "models averaged with neighbours on a graph, in step (also delay-by-one)", _GOSSIP),
        Entry(ADPSGD, "models averaged pair by pair beside gradients that wait for nobody", {**_GOSSIP, **_TIMED}),
        Entry(AsyncSGD, "a server applies gradients as they come, no worker waits for another", _ASYNCHRONOUS),
        Entry(
            APAM,
            "AMSGrad on a server, gradient by gradient",
            {
                **_ASYNCHRONOUS,
                "one_rank": "the rule is AMSGrad, not the task's optimizer; serial AMSGrad is tested apart",
            },
        ),
        Entry(MGWFBP, "all-reduce during backward, in groups merged by what a message costs", _MERGED),
        Entry(Gear, "the model in gears that turn at speeds of their own, meshed or free", _GEARS),
        Entry(Compressed, "gradients through any codec and exchange that fit", _LOSSY),
        Entry(TopK, "the largest numbers of each gradient, the rest later", _LOSSY),
        Entry(GTopK, "the largest numbers of all gradients, merged two by two in a tree", _LOSSY),
        Entry(PowerSGD, "gradient matrices as products of two thin ones", _LOSSY),
        Entry(QSGD, "each number rounded at random to a few levels of a norm", _LOSSY),
        Entry(TernGrad, "each number as -s, 0 or s at random", _LOSSY),
        Entry(SignSGD, "one bit per number, with error feedback or by majority vote", _LOSSY),
        Entry(SwitchML, "the switch adds gradients as they pass, packet by packet", _FIXED_POINT),
        Entry(SPP, "a pipeline of stages with replicas, planned for the cluster", _MICRO),
    )
}


def parse(text: str) -> Strategy:
    """One strategy from `name:key=value,key=value`, or of the user's own: `path/to/file.py:ClassName:key=value,...`.

    Example:
        >>> parse("synchronous:overlap=false,bucket_size=none")
        Synchronous(overlap=False, bucket_size=None, exchange='native')
    """
    path, separator, rest = text.strip().partition(".py:")
    if separator:
        return _own(Path(path + ".py"), rest)
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


def _own(path: Path, text: str) -> Strategy:
    class_name, settings = split_settings(text)
    kind = own_class(path, class_name, Strategy, "strategy", StrategyError)  # type: ignore[type-abstract]
    if kind.name in TABLE:
        raise StrategyError(
            f"{class_name} of {str(path)!r} is called {kind.name!r}, as one of geartrain's own; rename it"
        )
    # Another process knows nothing of the file: there, unpickling a strategy takes it from the file again.
    copyreg.pickle(kind, functools.partial(_again, f"{path.resolve()}:{class_name}"))
    return build(kind, settings)


def _again(source: str, strategy: Strategy) -> tuple[Callable[[str], Strategy], tuple[str]]:
    """How a strategy of the user's own is pickled: as the text that it stands for."""
    settings = ",".join(f"{key}={value}" for key, value in written(strategy).items())
    return parse, (f"{source}:{settings}" if settings else source,)
