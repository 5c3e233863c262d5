"""What a plan says where memory is short: what is missing, what needs most, and the ways out with their figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from geartrain.errors import CannotFit, ConfigurationError
from geartrain.planner.ask import AS_GIVEN
from geartrain.planner.batch import batch_plans, reference, tightest
from geartrain.planner.predictor import Predictor
from geartrain.predict.memory import RankMemory
from geartrain.predict.prediction import Prediction
from geartrain.units import format_size
from geartrain.workload.choices import with_dtype

_WAYS = 3
"""Ways out that are told."""

_KINDS = 3
"""Kinds of memory that are told."""


def needs(memory: RankMemory) -> str:
    """What a rank needs and its device has."""
    limit = memory.limit or 0
    return f"{memory.role} {memory.rank} needs {format_size(memory.total)} and its device has {format_size(limit)}"


def cannot_fit(predict: Predictor) -> ConfigurationError:
    """Why there is no plan: CannotFit, or what was wrong with all candidates where memory was not asked about."""
    ask = predict.ask
    batch = ask.batch or ask.ranks
    here = predict(reference(ask.ranks), ask.ranks, batch)
    if here is None or here.fits:
        listed = "".join(f"\n  {candidate}: {reason}" for candidate, reason in predict.rejected.items())
        return ConfigurationError(f"no way to train {ask.workload.name} on {ask.cluster.name} was found:{listed}")
    memory = tightest(here)
    limit, device = memory.limit or 0, here.question.place().device(memory.rank).name
    largest = sorted(memory.kinds.items(), key=lambda item: -item[1])[:_KINDS]
    listed = ", ".join(f"{kind} {format_size(size)}" for kind, size in largest)
    ways = sorted(_ways_out(predict, batch), key=lambda way: way[0] > limit)[:_WAYS]
    message = (
        f"{ask.workload.name} with {batch // ask.ranks} sample(s) for each of {ask.ranks} worker(s) needs "
        f"{format_size(memory.total)} on {memory.role} {memory.rank}, and {device} has {format_size(limit)}: "
        f"{format_size(memory.total - limit)} are missing ({listed})"
    )
    told = "".join(
        f"\n  {words}: {format_size(need)}{'' if need <= limit else ', still too much'}" for need, words in ways
    )
    return CannotFit(message + (f"\n  what would need less{told}" if ways else ""), need=memory.total, have=limit)


def _ways_out(predict: Predictor, batch: int) -> Iterator[tuple[int, str]]:
    """(bytes, what they would be needed with) of what needs less, what changes least first."""
    ask, plain, least = predict.ask, reference(predict.ask.ranks), AS_GIVEN
    if ask.recompute and predict(plain, ask.ranks, batch, "blocks"):
        least = "blocks"
        yield from _way(predict(plain, ask.ranks, batch, least), "checkpointing=blocks")
    if batch > ask.ranks:
        largest = batch_plans(Predictor(replace(ask, batch=None)), ask.ranks)
        for one in largest[-1:]:
            again = f" with checkpointing={one.checkpointing}" if one.checkpointing else ""
            yield from _way(one.prediction, f"a batch of {one.batch}{again}")
    bare = replace(ask.workload_with(least), optimizer_state=0.0)
    words = f"{least and f'checkpointing={least}, '}one sample for each and an optimizer that keeps nothing (sgd)"
    yield from _way(Predictor(replace(ask, workload=bare))(plain, ask.ranks, ask.ranks), words)
    dtype = next((one for one in ("bf16", "fp16") if one in ask.cluster.nodes[0].device.flops), None)
    if ask.recompute and bare.dtype == "fp32" and dtype:
        short = replace(ask, workload=with_dtype(bare, dtype))
        yield from _way(
            Predictor(short)(plain, ask.ranks, ask.ranks), f"the same in numbers of two bytes, dtype={dtype}"
        )


def _way(prediction: Prediction | None, words: str) -> Iterator[tuple[int, str]]:
    if prediction is not None:
        yield tightest(prediction).total, words
