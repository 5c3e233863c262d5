"""A prediction in words: what bounds the step, where it breaks even, and what would help most.

Every "what if" is asked of the closed form, with one thing changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from geartrain.cluster.spec import Cluster
from geartrain.errors import ConfigurationError
from geartrain.predict.change import changed, faster, value_of
from geartrain.predict.closed import predict
from geartrain.predict.prediction import Prediction
from geartrain.predict.question import Question
from geartrain.strategies import parse
from geartrain.units import format_rate, format_size

Bound = Literal["compute", "memory traffic", "launches", "wire", "latency", "wait", "bubble", "codec", "memory"]

_CALLS = 40
"""Predictions that looking for a break-even may take."""

_CLOSE = 1.0002
"""Ratio of two values between which a break-even is told."""

_LEAST = 0.005
"""Share of a step below which a change is not worth telling."""

_BATCH = "twice the batch"

_PARTS: Mapping[Bound, str] = {
    "compute": "computing: {share:.0%} of the step",
    "memory traffic": "the devices' memory: {share:.0%} of the step computes, and its rate bounds that",
    "launches": "launches: {share:.0%} of the step computes, and starting kernels bounds that",
    "wire": "the wire: {share:.0%} of the step exposed",
    "latency": "latency: {share:.0%} of the step exposed, most of it not for bytes",
    "wait": "waiting for other ranks: {share:.0%} of the step",
    "bubble": "the pipeline's bubble: {share:.0%} of the step",
    "codec": "encoding and decoding: {share:.0%} of the step",
}


@dataclass(frozen=True)
class Help:
    """One change, and what it would be worth.

    Attributes:
        change: in words.
        step_time: seconds of a step with it.
        gain: the share of the time of a sample that it saves.
    """

    change: str
    step_time: float
    gain: float


@dataclass(frozen=True)
class Explanation:
    """What bounds a step.

    Attributes:
        bound: by kind.
        share: of the step that this kind takes; of "memory": what is needed over what there is.
        sentence: in words.
        helps: changes that shorten the time of a sample, the best first.
    """

    bound: Bound
    share: float
    sentence: str
    helps: tuple[Help, ...]


def explain(prediction: Prediction, others: Sequence[Prediction] = ()) -> Explanation:
    """What bounds the step of a prediction, and what helps.

    Args:
        others: the same run with other strategies.
    """
    base = prediction if prediction.how == "closed form" else predict(prediction.question)
    gains = dict(_what_ifs(base))
    bound, share = _bound(prediction, base, gains)
    closed = [other if other.how == "closed form" else predict(other.question) for other in others]
    helps = [one for one in (*gains.values(), *(_other(base, other) for other in closed)) if one.gain >= _LEAST]
    helps.sort(key=lambda one: -one.gain)
    if bound == "memory":
        return Explanation(bound, share, _memory_sentence(prediction), tuple(helps))
    sentence = _PARTS[bound].format(share=share)
    if bound in ("wire", "latency"):
        sentence += _even(base) + _with_others(base, closed)
    return Explanation(bound, share, sentence + _most(helps), tuple(helps))


def _most(helps: Sequence[Help]) -> str:
    """What helps most; a larger batch, which is another training, is told beside it."""
    best = next((one for one in helps if one.change != _BATCH), None)
    batch = next((one for one in helps if one.change == _BATCH), None)
    text = f"; most helps {best.change}: {best.gain:.0%} less time for a sample" if best else ""
    return text + (f" ({_BATCH}: {batch.gain:.0%})" if batch and best else "")


def break_even(
    question: Question, key: str, better: Callable[[Prediction], float], low: float, high: float
) -> float | None:
    """The value of a constant at which something turns from worse to better; None where it does not between two.

    Args:
        key: of `geartrain.predict.change.KEYS`.
        better: above zero where it is better; rising or falling all the way.
        low, high: bounds of the value, above zero; it is looked for by halving in logarithms.
    """

    def at(value: float) -> float:
        return better(predict(replace(question, cluster=changed(question.cluster, key, value))))

    first = at(low)
    if first * at(high) > 0:
        return None
    for _ in range(_CALLS - 2):
        if high / low < _CLOSE:
            break
        middle = math.sqrt(low * high)
        low, high = (middle, high) if at(middle) * first > 0 else (low, middle)
    return math.sqrt(low * high)


def _what_ifs(base: Prediction) -> Iterator[tuple[str, Help]]:
    """What each change would be worth, by the place that it changes."""
    question = base.question
    for key, factor, words in _wire_changes(question):
        now = value_of(question.cluster, key)
        if now:
            yield key, _help(base, words, changed(question.cluster, key, now * factor))
    yield "device", _help(base, "devices of twice the speed", faster(question.cluster, 2.0))
    try:
        twice = predict(replace(question, batch=2 * question.batch))
    except ConfigurationError:  # some strategies deal no more samples than they were planned for
        return
    if twice.fits:
        yield "batch", Help(_BATCH, twice.step_time, 1 - twice.step_time / (2 * base.step_time))


def _wire_changes(question: Question) -> Iterator[tuple[str, float, str]]:
    place = question.place()
    if place.num_nodes > 1:
        yield "links.rate", 2.0, "wires of twice the rate"
        yield "links.latency", 0.5, "wires of half the latency"
    if len(set(place.nodes)) < place.num_ranks:
        yield "inner.rate", 2.0, "wires of twice the rate inside nodes"
        yield "inner.latency", 0.5, "wires of half the latency inside nodes"


def _help(base: Prediction, words: str, cluster: Cluster) -> Help:
    other = predict(replace(base.question, cluster=cluster))
    return Help(words, other.step_time, 1 - other.step_time / base.step_time)


def _other(base: Prediction, other: Prediction) -> Help:
    return Help(str(other.question.strategy), other.step_time, 1 - other.step_time / base.step_time)


def _bound(prediction: Prediction, base: Prediction, gains: Mapping[str, Help]) -> tuple[Bound, float]:
    if not prediction.fits:
        worst = max(prediction.memory, key=lambda one: one.total / one.limit if one.limit else 0.0)
        return "memory", worst.total / (worst.limit or worst.total)
    parts: dict[Bound, float] = {
        "compute": prediction.compute,
        "wire": prediction.exposed_communication,
        "wait": prediction.wait,
        "bubble": prediction.bubble,
        "codec": prediction.codec,
    }
    bound = max(parts, key=lambda one: parts[one])
    share = parts[bound] / prediction.step_time
    if bound == "wire":
        rate, latency = (
            max(
                (gains[f"{where}.{name}"].gain for where in ("links", "inner") if f"{where}.{name}" in gains), default=0
            )
            for name in ("rate", "latency")
        )
        bound = "latency" if latency > rate else "wire"
    return (_of_compute(base) if bound == "compute" else bound), share


def _of_compute(base: Prediction) -> Bound:
    """What bounds computing: of which twice as much, or half the time of launches, shortens a step most."""
    device = base.question.cluster.nodes[0].device
    kinds: tuple[tuple[Bound, str, float], ...] = (
        ("compute", "device.flops", 2.0),
        ("memory traffic", "device.memory_rate", 2 * device.memory_rate),
        ("launches", "device.launch_overhead", device.launch_overhead / 2),
    )
    gains = {kind: _help(base, key, changed(base.question.cluster, key, value)).gain for kind, key, value in kinds}
    return max(gains, key=lambda kind: gains[kind])


def _even(base: Prediction) -> str:
    """At which rate of the wires several nodes are as fast as one."""
    question = base.question
    alone, rate = one_node(question), value_of(question.cluster, "links.rate")
    if alone is None or rate is None:
        return ""
    throughput = predict(alone).throughput
    value = break_even(question, "links.rate", lambda one: one.throughput - throughput, rate / 1e4, rate * 1e4)
    if value is not None:
        return f"; as fast as one node at {format_rate(value)}"
    return "" if base.throughput > throughput else "; slower than one node at any rate"


def one_node(question: Question) -> Question | None:
    """The same on the devices of the first node, with their share of the batch; None where no more are asked."""
    devices = question.cluster.nodes[0].devices_per_node
    if devices >= question.ranks:
        return None
    strategy = question.strategy if devices > 1 else parse("single")
    return replace(question, strategy=strategy, ranks=devices, batch=question.batch * devices // question.ranks)


def _with_others(base: Prediction, others: Sequence[Prediction]) -> str:
    """How much is exposed with the other strategy whose step is shortest, if that is shorter."""
    best = min(others, key=lambda one: one.step_time, default=base)
    if best.step_time >= base.step_time * (1 - _LEAST):
        return ""
    return f"; with {best.question.strategy} {best.exposed_communication / best.step_time:.0%}"


def _memory_sentence(prediction: Prediction) -> str:
    worst = max(prediction.memory, key=lambda one: one.total / one.limit if one.limit else 0.0)
    kind, most = max(worst.kinds.items(), key=lambda item: item[1])
    missing = format_size(worst.total - (worst.limit or 0))
    needs = f"{worst.role} {worst.rank} needs {format_size(worst.total)}, {missing} more than its device has"
    return f"memory: {needs}; most of it is {kind}, {format_size(most)}{_samples_that_fit(prediction.question)}"


def _samples_that_fit(question: Question) -> str:
    """How many samples each worker could take; looked for by halving."""
    enough, much = 0, question.batch // question.ranks
    while much - enough > 1:
        middle = (enough + much) // 2
        if predict(replace(question, batch=middle * question.ranks)).fits:
            enough = middle
        else:
            much = middle
    if enough:
        return f"; {enough} sample(s) for each worker would fit"
    return "; fewer samples do not make it fit" if question.batch > question.ranks else ""
