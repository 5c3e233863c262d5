"""How many samples a device takes at a time, and what it keeps for backward: the first step of a plan.

More samples use a device better and share one exchange of gradients, until its memory is full; past that point they
cost recomputing, and in learning a sample is worth less. So the smallest batch is taken that comes close to the
throughput of the best one.

Source: Zou and others, 2017, arXiv 1709.06622, step 1: candidates by memory, the best by throughput; that the smallest
one close to it is taken is our choice, since nobody knows yet how steps grow with the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from geartrain.planner.ask import AS_GIVEN
from geartrain.planner.predictor import Predictor
from geartrain.planner.recompute import to_recompute
from geartrain.predict.memory import RankMemory
from geartrain.predict.prediction import Prediction
from geartrain.runtime.strategy import Strategy
from geartrain.strategies import parse
from geartrain.strategies.closed_forms import share

MOST_SAMPLES = 1024
"""Samples of a device that are tried."""

CLOSE = 0.98
"""Share of the best throughput from which on a smaller batch is taken."""

WORTH = 0.7
"""Share of the best throughput below which a choice of checkpointing is not tried with other methods."""


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """One batch that fits.

    Attributes:
        samples: of the device that has most.
        batch: of all devices.
        checkpointing: as `Ask.workload_with` takes it.
        prediction: of synchronous training with it.
    """

    samples: int
    batch: int
    checkpointing: str
    prediction: Prediction


def tightest(prediction: Prediction) -> RankMemory:
    """The memory of the rank that has least room."""
    return max(prediction.memory, key=lambda one: one.total / one.limit if one.limit else 0.0)


def reference(ranks: int) -> Strategy:
    """What batches are tried with: the plainest method that uses all workers."""
    return parse("single" if ranks == 1 else "synchronous")


def batch_plans(predict: Predictor, ranks: int) -> tuple[BatchPlan, ...]:
    """The batches of synchronous training that fit, from few samples to many.

    Of each, what is kept for backward is all, or what the integer programme says where all does not fit.
    """
    found = []
    for batch in _batches(predict.ask.batch, ranks):
        plan = _batch_plan(predict, ranks, batch)
        if plan is None:
            break
        found.append(plan)
    return tuple(found)


def _batch_plan(predict: Predictor, ranks: int, batch: int) -> BatchPlan | None:
    ask, samples = predict.ask, share(batch, ranks, 0)
    whole = predict(reference(ranks), ranks, batch)
    if whole is None:
        return None
    if whole.fits:
        return BatchPlan(samples=samples, batch=batch, checkpointing=AS_GIVEN, prediction=whole)
    memory = tightest(whole)
    device = whole.question.place().device(memory.rank)
    wanted = to_recompute(ask.workload, samples, device, ask.model, memory) if ask.recompute else None
    # Where the programme finds too little room, all blocks may still fit: it counts on the largest one twice.
    for checkpointing in (wanted, "blocks") if ask.recompute else ():
        prediction = predict(reference(ranks), ranks, batch, checkpointing) if checkpointing else None
        if prediction is not None and checkpointing and prediction.fits:
            return BatchPlan(samples=samples, batch=batch, checkpointing=checkpointing, prediction=prediction)
    return None


def worth_trying(plans: Sequence[BatchPlan]) -> list[BatchPlan]:
    """The smallest batch close to the best one; and the same of those that compute nothing again, if it is not far."""
    if not plans:
        return []
    best = max(plan.prediction.throughput for plan in plans)
    found = []
    for again in (False, True):
        mine = [plan for plan in plans if bool(plan.checkpointing) == again]
        most = max((plan.prediction.throughput for plan in mine), default=0.0)
        chosen = next((plan for plan in mine if plan.prediction.throughput >= CLOSE * most), None)
        if chosen is not None and most >= WORTH * best:
            found.append(chosen)
    return found


def sizes() -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ...: powers of two and the middle between them."""
    power = 1
    while power <= MOST_SAMPLES:
        yield power
        if 1 < power < MOST_SAMPLES:
            yield power * 3 // 2
        power *= 2


def _batches(given: int | None, ranks: int) -> list[int]:
    """Global batches from small to large."""
    return [ranks * samples for samples in sizes()] if given is None else [given]
