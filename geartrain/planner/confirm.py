"""The best few candidates, simulated: what a closed form leaves out may change their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from geartrain.errors import GeartrainError
from geartrain.planner.ask import Candidate
from geartrain.planner.predictor import Predictor, Told
from geartrain.predict.simulated import simulate

MOST_RANKS = 64
"""Workers that are simulated; of more, so many are, and the closed form of all is corrected by what that shows."""

STEPS = 2
"""The first warms up."""


def confirmed(ranked: Sequence[Candidate], predict: Predictor, told: Told) -> list[Candidate]:
    """The candidates in their new order; those that were not simulated follow those that were.

    Args:
        ranked: the best first.
    """
    few, rest = list(ranked[: predict.ask.confirm]), list(ranked[predict.ask.confirm :])
    return [*sorted((_confirmed(one, predict, told) for one in few), key=lambda one: one.score), *rest]


def _confirmed(one: Candidate, predict: Predictor, told: Told) -> Candidate:
    ranks = min(one.ranks, MOST_RANKS)
    batch = one.batch * ranks // one.ranks
    form = predict(one.strategy, ranks, batch, one.checkpointing)
    told(f"{one.strategy} with {ranks} worker(s), simulated")
    try:
        found = simulate(predict.ask.question(one.strategy, ranks, batch, one.checkpointing), steps=STEPS)
    except GeartrainError as error:
        predict.reject(f"simulation of {one.strategy}", str(error).splitlines()[0])
        return one
    if form is None:
        return one
    return replace(one, confirmed=found, correction=found.step_time / form.step_time)
