"""How many samples a device takes at a time, and what it keeps for backward: the first step of a plan.

More samples use a device better and share one exchange of gradients, until its memory is full; past that point they
cost recomputing, and in learning a sample is worth less. So the smallest batch is taken that comes close to the
throughput of the best one, for each choice of checkpointing.

Source: Zou and others, 2017, arXiv 1709.06622, step 1: candidates by memory, the best by throughput; that the smallest
one close to it is taken is our choice, since nobody knows yet how steps grow with the batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from geartrain.planner.predictor import Predictor
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
        checkpointing: which of `Ask.workloads`.
        prediction: of synchronous training with it.
    """

    samples: int
    batch: int
    checkpointing: str
    prediction: Prediction

    @property
    def memory(self) -> RankMemory:
        """Of the rank that has least room."""
        return tightest(self.prediction)

    @property
    def left(self) -> int:
        """Bytes of the device that stay free: the budget of faster ways of computing."""
        return (self.memory.limit or 0) - self.memory.total


def tightest(prediction: Prediction) -> RankMemory:
    """The memory of the rank that has least room."""
    return max(prediction.memory, key=lambda one: one.total / one.limit if one.limit else 0.0)


def batch_plans(predict: Predictor, ranks: int) -> tuple[BatchPlan, ...]:
    """All batches of synchronous training that fit, for each choice of checkpointing from few samples to many."""
    ask = predict.ask
    found = []
    for checkpointing in ask.workloads:
        for batch in _batches(ask.batch, ranks):
            prediction = predict(reference(ranks), ranks, batch, checkpointing)
            if prediction is None or not prediction.fits:
                break
            samples = share(batch, ranks, 0)
            found.append(BatchPlan(samples=samples, batch=batch, checkpointing=checkpointing, prediction=prediction))
    return tuple(found)


def worth_trying(plans: Sequence[BatchPlan]) -> list[BatchPlan]:
    """For each choice of checkpointing the smallest batch close to its best, if it is not far from the best of all."""
    if not plans:
        return []
    best = max(plan.prediction.throughput for plan in plans)
    found = []
    for checkpointing in dict.fromkeys(plan.checkpointing for plan in plans):
        mine = [plan for plan in plans if plan.checkpointing == checkpointing]
        enough = CLOSE * max(plan.prediction.throughput for plan in mine)
        chosen = next(plan for plan in mine if plan.prediction.throughput >= enough)
        if chosen.prediction.throughput >= WORTH * best:
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


def reference(ranks: int) -> Strategy:
    """What batches are tried with: the plainest method that uses all workers."""
    return parse("single" if ranks == 1 else "synchronous")
