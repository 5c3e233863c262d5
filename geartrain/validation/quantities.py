"""What figures of papers are predicted by: step times, throughput, speedup, bytes, shares, and what they consist of.

    step_time           seconds
    throughput          batch / step_time                                                 samples/s
    speedup             throughput / throughput of one worker, or step_time of another strategy / step_time
    efficiency          speedup over one worker / workers
    communication_time  seconds in which bytes are in flight for the slowest worker, exposed or hidden
    exposed_share       exposed communication / step_time
    bytes_per_step      payload that a worker (or the busiest rank, or all together) sends; messages_per_step likewise
    time_ratio          step_time of one setting / step_time of another

All of them take a *setting* as keywords, see `Setting`. By default the strategy's closed form answers; with
`simulate=True` the simulated engine does, on shapes alone, computing priced by the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import tomlkit

from geartrain.cluster import Cluster, Placement, load_cluster
from geartrain.cluster.load import parse_cluster
from geartrain.cluster.overrides import NodeOverride
from geartrain.cost.collectives import plan_collective
from geartrain.cost.terms import Traffic
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.models import get_workload
from geartrain.predict.closed import cost_of
from geartrain.predict.question import Question
from geartrain.predict.simulated import run_shapes
from geartrain.record.log import RunRecord
from geartrain.record.means import mean_step
from geartrain.record.split import split
from geartrain.runtime.strategy import Strategy
from geartrain.strategies import from_table, parse
from geartrain.strategies.closed_forms import share
from geartrain.units import parse_flop
from geartrain.workload.spec import Layer, Parameter, Workload

Of = Literal["worker", "busiest", "all"]
Scaling = Literal["weak", "strong"]

_SINGLE = "single"
_WORKLOAD_KEYS = ("name", "parameters", "tensors", "forward", "backward")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One training run in plain values, as they stand in a file.

    Args:
        strategy: text like "synchronous:bucket_size=none", or a table with `name`.
        cluster: a preset, a file, or a table: a whole cluster as in a file, or `base` (a preset or file) and what is
            different, tables key by key and lists item by item. A file's path counts from where the command runs.
        workload: a preset, or a table: `parameters` (count), `tensors` (how many equal ones; 1), `forward` and
            `backward` (text with a unit, a sample; backward is twice forward unless given), `name`.
        ranks: workers.
        batch: global, in samples.
        simulate: by the simulated engine instead of the closed form.
        steps: of a simulated run; the first is left out if there are several.
        alone: samples per second of one worker alone with its share of the batch. All devices are made as fast as that
            takes, which calibrates computing against a measured number; left out: what their data sheets say.
    """

    strategy: str | Mapping[str, Any]
    cluster: str | Mapping[str, Any] | Cluster
    workload: str | Mapping[str, Any]
    ranks: int
    batch: int
    simulate: bool = False
    steps: int = 3
    alone: float | None = None

    def single(self, batch: int) -> Setting:
        """One worker alone on the same devices."""
        _, cluster, _ = self.made()
        return replace(self, strategy=_SINGLE, ranks=1, batch=batch, cluster=cluster, alone=None)

    def made(self) -> tuple[Strategy, Cluster, Workload]:
        """The values that the plain ones stand for."""
        strategy = parse(self.strategy) if isinstance(self.strategy, str) else from_table(self.strategy)
        cluster = load_table(self.cluster)
        workload = get_workload(self.workload) if isinstance(self.workload, str) else workload_of(self.workload)
        return strategy, self._calibrated(cluster, workload), workload

    def _calibrated(self, cluster: Cluster, workload: Workload) -> Cluster:
        if self.alone is None:
            return cluster
        samples = share(self.batch, self.ranks, 0)
        modelled = parse(_SINGLE).cost(workload, Placement(cluster, 1), samples).step_time
        speed = modelled * self.alone / samples
        faster = NodeOverride(node="all", speed=speed * Placement(cluster, 1).speed(0))
        overrides = cluster.overrides.model_copy(update={"nodes": (*cluster.overrides.nodes, faster)})
        return cluster.model_copy(update={"overrides": overrides})


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step takes, in seconds of the slowest worker, and what each rank sends in it, workers first."""

    time: float
    exposed: float
    communication: float
    sent: Sequence[Traffic]
    num_workers: int


def step_time(**setting: Any) -> float:
    """Seconds of a step."""
    return step_of(setting_of(setting)).time


def throughput(**setting: Any) -> float:
    """Samples per second of all workers together."""
    one = setting_of(setting)
    return one.batch / step_of(one).time


def speedup(*, against: str | Mapping[str, Any] = _SINGLE, scaling: Scaling = "weak", **setting: Any) -> float:
    """How many times as fast as one worker, or as another strategy.

    Args:
        against: "single": one worker alone; or another strategy on the same workers with the same batch.
        scaling: of "single": "weak": it has a worker's share of the batch, and samples per second are compared;
            "strong": it has the whole batch.
    """
    one = setting_of(setting)
    if scaling not in get_args(Scaling):
        raise UnknownName("scaling", scaling, get_args(Scaling))
    if against != _SINGLE:
        return step_of(replace(one, strategy=against)).time / step_of(one).time
    batch = one.batch if scaling == "strong" else share(one.batch, one.ranks, 0)
    alone = batch / step_of(one.single(batch)).time
    return one.batch / step_of(one).time / alone


def efficiency(*, scaling: Scaling = "weak", **setting: Any) -> float:
    """Speedup over one worker, divided by the number of workers: 1 is perfect."""
    return speedup(scaling=scaling, **setting) / setting_of(setting).ranks


def communication_time(**setting: Any) -> float:
    """Seconds of communication of the slowest worker, whether or not computing hides it."""
    return step_of(setting_of(setting)).communication


def exposed_share(**setting: Any) -> float:
    """The share of the step in which the slowest worker stands still while bytes are in flight."""
    step = step_of(setting_of(setting))
    return step.exposed / step.time


def bytes_per_step(*, of: Of = "worker", **setting: Any) -> float:
    """Bytes that a worker sends on average, or the rank that sends most (services count), or all ranks together."""
    return _sent(setting, of, "nbytes")


def messages_per_step(*, of: Of = "worker", **setting: Any) -> float:
    """Messages, like `bytes_per_step`."""
    return _sent(setting, of, "messages")


def time_ratio(*, a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Step time of setting `a` over that of setting `b`."""
    return step_time(**a) / step_time(**b)


def throughput_ratio(*, a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Samples per second in setting `a` over those in setting `b`."""
    return throughput(**a) / throughput(**b)


def efficiency_ratio(*, a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """Efficiency in setting `a` over that in setting `b`."""
    return efficiency(**a) / efficiency(**b)


def compute_ratio(*, a: str | Mapping[str, Any], b: str | Mapping[str, Any], dtype: str = "fp32") -> float:
    """Peak compute rate of the first device of cluster `a` over that of cluster `b`."""
    first, second = (load_table(cluster).nodes[0].device.flops_of(dtype) for cluster in (a, b))
    return first / second


def traffic_factor(*, collective: str, ranks: int, size: int, algorithm: str | None = None) -> float:
    """Bytes through the busiest rank, in its busier direction, over the bytes that the collective is of.

    Bus bandwidth is this factor times size over time.

    Args:
        size: bytes, as `geartrain.cost.collectives` counts them for each collective.
        algorithm: instead of the choice by size.
    """
    return plan_collective(collective, ranks, size, algorithm=algorithm).busiest_bytes / size


def bus_bandwidth(
    *, collective: str, cluster: str | Mapping[str, Any], ranks: int, size: int, algorithm: str | None = None
) -> float:
    """Bytes per second: `traffic_factor` * size / time of the collective when nothing else is sent."""
    plan = plan_collective(collective, ranks, size, algorithm=algorithm)
    place = Placement(load_table(cluster), ranks)
    pairs = [(source, target) for source, target, _ in plan.traffic()]
    alpha = max(place.route(*pair).latency for pair in pairs)
    rate = min(place.rate(*pair) for pair in pairs)
    load = plan.link_bytes(lambda source, target: place.route(source, target).links)
    busy = max(nbytes / place.links[link].capacity for link, nbytes in load.items())
    return plan.busiest_bytes / (max(0.0, plan.fixed_time(alpha, rate)) + busy)


# From plain values


def setting_of(given: Mapping[str, Any]) -> Setting:
    """A setting from keywords; UnknownName for a key that is none, ConfigurationError for one that is missing."""
    known = [field.name for field in fields(Setting)]
    for key in given:
        if key not in known:
            raise UnknownName("key of a setting", key, known)
    missing = [name for name in known[:5] if name not in given]
    if missing:
        raise ConfigurationError(f"a setting needs {', '.join(known[:5])}; missing: {', '.join(missing)}")
    return Setting(**given)


def load_table(given: str | Mapping[str, Any] | Cluster) -> Cluster:
    """A cluster from a preset's name, a file's path, or a table, see `Setting`."""
    if isinstance(given, Cluster):
        return given
    if isinstance(given, str):
        return load_cluster(given)
    if "base" not in given:
        return parse_cluster(tomlkit.dumps(given), "the figure's cluster")
    cluster = load_cluster(given["base"])
    changes = {key: value for key, value in given.items() if key != "base"}
    whole = cluster.model_dump(mode="json", exclude_none=True)
    return parse_cluster(tomlkit.dumps(_merged(whole, changes)), f"cluster {cluster.name!r} with changes")


def _merged(base: Any, changes: Any) -> Any:
    """Tables key by key, lists item by item as far as both have some; everything else is replaced."""
    if isinstance(base, Mapping) and isinstance(changes, Mapping):
        if "kind" in changes and changes["kind"] != base.get("kind"):
            return changes  # another topology has other keys
        return {**base, **{key: _merged(base.get(key), value) for key, value in changes.items()}}
    if isinstance(base, list) and isinstance(changes, list):
        return [_merged(base[i] if i < len(base) else None, item) for i, item in enumerate(changes)]
    return changes


def workload_of(table: Mapping[str, Any]) -> Workload:
    """A model of equal layers, one tensor each, from a table, see `Setting`."""
    for key in table:
        if key not in _WORKLOAD_KEYS:
            raise UnknownName("key of a workload", key, _WORKLOAD_KEYS)
    numel, tensors = table.get("parameters"), table.get("tensors", 1)
    if not (isinstance(numel, int) and isinstance(tensors, int) and 1 <= tensors <= numel):
        raise ConfigurationError(
            f"a workload has whole numbers of parameters and tensors, at least one each, not {numel!r} and {tensors!r}"
        )
    forward = parse_flop(table.get("forward", "0 FLOP"))
    backward = parse_flop(table["backward"]) if "backward" in table else 2 * forward
    layers = [
        Layer(
            name=f"layer-{index}",
            parameters=(Parameter(f"layer-{index}.weight", (share(numel, tensors, index),), index),),
            forward_flop=forward / tensors,
            backward_flop=backward / tensors,
        )
        for index in range(tensors)
    ]
    return Workload(name=str(table.get("name", "figure")), source="the figure's setting", layers=tuple(layers))


# What a step takes


def step_of(setting: Setting) -> Step:
    """A step of a setting, by closed form or simulated."""
    strategy, cluster, workload = setting.made()
    question = Question(workload=workload, cluster=cluster, strategy=strategy, ranks=setting.ranks, batch=setting.batch)
    if setting.simulate:
        return _simulated(question, setting.steps)
    cost = cost_of(question, question.place())
    return Step(
        time=cost.step_time,
        exposed=cost.exposed_communication,
        communication=cost.exposed_communication + cost.hidden_communication,
        sent=cost.sent,
        num_workers=setting.ranks,
    )


def _simulated(question: Question, steps: int) -> Step:
    record = run_shapes(question, steps)
    mean = mean_step(split(record))
    assert mean is not None, "a run that came to its end has steps"
    return Step(
        time=mean.step_time,
        exposed=mean.exposed_communication,
        communication=mean.exposed_communication + mean.hidden_communication,
        sent=_recorded(record, steps),
        num_workers=question.ranks,
    )


def _recorded(record: RunRecord, steps: int) -> list[Traffic]:
    """What each rank sent in a step, between the first step's begin and the last one's end."""
    marks = [mark for log in record.logs for mark in log.steps]
    begin, end = min(mark.begin for mark in marks), max(mark.end for mark in marks)
    sent = []
    for log in record.logs:
        ops = [op for op in log.ops if begin <= op.posted < end]
        nbytes, messages = sum(op.nbytes for op in ops), sum(op.messages for op in ops)
        sent.append(Traffic(nbytes=nbytes // steps, messages=messages // steps))
    return sent


def _sent(setting: Mapping[str, Any], of: str, what: str) -> float:
    if of not in get_args(Of):
        raise UnknownName("part of the traffic", of, get_args(Of))
    step = step_of(setting_of(setting))
    values = [float(getattr(traffic, what)) for traffic in step.sent]
    if of == "worker":
        return sum(values[: step.num_workers]) / step.num_workers
    return max(values) if of == "busiest" else sum(values)
