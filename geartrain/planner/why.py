"""Why a candidate lost: the parts of its step that make up the difference, the largest first."""

from __future__ import annotations

from geartrain.planner.ask import Candidate
from geartrain.predict.prediction import Prediction
from geartrain.units import format_time

_PARTS = {
    "exposed_communication": "exposed communication",
    "compute": "computing",
    "wait": "waiting",
    "bubble": "bubble",
    "codec": "encoding and decoding",
}

_LEAST = 0.1
"""Share of the difference from which on a part is told."""

_FAR = 2.0
"""Ratio from which on it is told as such."""

_EQUAL = 1e-6
"""Relative difference below which two take the same time."""


def lost(best: Candidate, other: Candidate) -> str:
    """What another candidate takes more than the best, for as many samples as the best one's step has, and why."""
    ratio = other.score / best.score
    if ratio < 1 + _EQUAL:
        return f"{other.strategy}: takes the same time; the plainer one is taken"
    gap = (other.score - best.score) * best.batch / best.steps_factor
    parts = _differences(best, other)
    more = [_told(name, value, "more") for name, value in parts if value >= _LEAST * gap]
    less = [_told(name, -value, "less") for name, value in parts if -value >= _LEAST * gap]
    slower = f"{ratio - 1:.2%} slower" if ratio < _FAR else f"{ratio:.3g} times as slow"
    each = "a step" if other.batch == best.batch else f"for {best.batch} samples"
    text = f"{other.strategy}: {slower}, {format_time(gap)} more {each}"
    text += f": {', '.join(more)}" if more else ""
    text += f", although {', '.join(less)}" if less else ""
    return text + _apart(best, other)


def _apart(best: Candidate, other: Candidate) -> str:
    """In what else the two differ."""
    words = []
    if other.ranks != best.ranks:
        words.append(f"it has {other.ranks} worker(s)")
    if other.steps_factor != best.steps_factor:
        words.append(f"it needs {other.steps_factor / best.steps_factor:.3g} times the steps")
    if (other.batch, other.checkpointing) != (best.batch, best.checkpointing):
        words.append(f"it has a batch of {other.batch}" + (f", {_kept(other)}" if other.checkpointing else ""))
    return f" ({'; '.join(words)})" if words else ""


def _kept(candidate: Candidate) -> str:
    return f"checkpointing={candidate.checkpointing}"


def _differences(best: Candidate, other: Candidate) -> list[tuple[str, float]]:
    """(part, seconds more for as many samples and as much learned as in a step of the best), the largest first."""
    simulated = best.confirmed is not None and other.confirmed is not None
    scale = other.steps_factor / best.steps_factor
    found = []
    for name in _PARTS:
        mine, its = (_per_sample(one, name, simulated) for one in (best, other))
        found.append((name, (its * scale - mine) * best.batch))
    return sorted(found, key=lambda pair: -abs(pair[1]))


def _per_sample(one: Candidate, part: str, simulated: bool) -> float:
    prediction: Prediction = one.confirmed if simulated and one.confirmed else one.closed
    # Of fewer workers simulated, a worker's part of a step is that of all: the batch shrank with them.
    value: float = getattr(prediction, part)
    return value / prediction.question.batch * prediction.question.ranks / one.ranks


def _told(name: str, seconds: float, direction: str) -> str:
    return f"{format_time(seconds)} {direction} {_PARTS[name]}"
