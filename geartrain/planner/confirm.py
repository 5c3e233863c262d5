"""The best few candidates, simulated: what a closed form leaves out may change their order.

Of many workers fewer are simulated, two nodes at least, and the closed form of all is corrected by what that shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from geartrain.errors import GeartrainError
from geartrain.planner.ask import Candidate
from geartrain.planner.predictor import Predictor, Told
from geartrain.predict.prediction import Prediction
from geartrain.predict.simulated import simulate

MOST_RANKS = 64
"""Workers that are simulated at most."""

MOST_MESSAGES = 50_000
"""Messages in a step that are simulated at most, unless two nodes send more: some ten seconds for each candidate."""

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
    form = _smaller(one, predict)
    question = form.question
    told(f"{one.strategy} with {question.ranks} worker(s), simulated")
    try:
        found = simulate(question, steps=STEPS)
    except GeartrainError as error:
        predict.reject(f"simulation of {one.strategy}", str(error).splitlines()[0])
        return one
    return replace(one, confirmed=found, correction=found.step_time / form.step_time)


def _smaller(one: Candidate, predict: Predictor) -> Prediction:
    """The closed form of all workers, of half of them, of a quarter, ...: the first that can be simulated."""
    least = min(one.ranks, 2 * one.closed.question.cluster.nodes[0].devices_per_node)
    form, ranks = one.closed, one.ranks
    while ranks // 2 >= least and (ranks > MOST_RANKS or form.messages_per_rank * ranks > MOST_MESSAGES):
        ranks //= 2
        smaller = predict(one.strategy, ranks, one.batch * ranks // one.ranks, one.checkpointing)
        if smaller is None:
            break
        form = smaller
    return form
