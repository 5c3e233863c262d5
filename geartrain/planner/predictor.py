"""Predictions for a plan: each asked once, and why there is none kept where a question cannot be."""

from __future__ import annotations

from collections.abc import Callable

from geartrain.errors import ConfigurationError
from geartrain.planner.ask import AS_GIVEN, Ask
from geartrain.predict.closed import predict
from geartrain.predict.prediction import Prediction
from geartrain.runtime.strategy import Strategy

Told = Callable[[str], None]


class Predictor:
    """Answers by closed form and remembers.

    Args:
        ask: what is planned.
        told: is told what is predicted, before it is.

    Attributes:
        rejected: candidate -> why there is no prediction of it.
    """

    def __init__(self, ask: Ask, told: Told = lambda what: None) -> None:
        self.ask, self._told = ask, told
        self._known: dict[tuple[Strategy, int, int, str], Prediction | None] = {}
        self.rejected: dict[str, str] = {}

    def __call__(self, strategy: Strategy, ranks: int, batch: int, checkpointing: str = AS_GIVEN) -> Prediction | None:
        """What a step takes; None where there can be none."""
        key = (strategy, ranks, batch, checkpointing)
        if key not in self._known:
            self._known[key] = self._predict(*key)
        return self._known[key]

    def reject(self, candidate: object, reason: str) -> None:
        """Remember why something does not compete; the first reason counts."""
        self.rejected.setdefault(str(candidate), reason)

    def _predict(self, strategy: Strategy, ranks: int, batch: int, checkpointing: str) -> Prediction | None:
        self._told(f"{strategy} with {ranks} worker(s) and {batch} samples")
        try:
            return predict(self.ask.question(strategy, ranks, batch, checkpointing))
        except ConfigurationError as error:
            self.reject(strategy, str(error).splitlines()[0])
            return None
