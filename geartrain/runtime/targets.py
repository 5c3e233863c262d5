"""When a run has learned enough: a loss or a quality that it shall reach, and the step after which all workers stop.

    global loss of step k  = sum_i samples_i * loss_i / sum_i samples_i           over the workers
    loss target            : the mean of the last 10 global losses (of all, while there are fewer) is at most the target
    metric target          : the main metric, of worker 0's model after every n-th step, is at least the target, or at
                             most where less is better
    reached                = when all workers had ended the step whose loss, or worker 0 the one whose metric, did it
    time to target         = reached - begin of the first step; of two targets the later one counts

Workers tell their losses in a ledger beside the run and never wait for one another there. All find the target reached
at the same entry of the ledger, and all stop after the step that follows the furthest one told until then: a run takes
one step more than it needed, or some more where workers are steps apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from geartrain.errors import ConfigurationError
from geartrain.runtime.upkeep import Entry

SMOOTHED = 10
"""Steps whose mean loss is held against a target; chosen."""

EVERY = 10
"""Steps between two evaluations where a metric is the target and nothing else was said; chosen."""


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What ends a run early, and what is evaluated on the way.

    Args:
        loss: stop when the smoothed loss is at most this.
        metric: stop when the task's main metric is at least this (at most, where `Task.falling` names it).
        evaluate_every: steps between evaluations on worker 0; 0: only after the last step, or every 10 where a metric
            is the target.
        charge_evaluation: let evaluations take time on the clock; otherwise they are free in virtual time, and on the
            real clock, where all workers pause for them, their time is left out of the time to target.
    """

    loss: float | None = None
    metric: float | None = None
    evaluate_every: int = 0
    charge_evaluation: bool = False

    def __post_init__(self) -> None:
        if self.evaluate_every < 0:
            raise ConfigurationError(f"evaluations every {self.evaluate_every} steps cannot be; give 1 or more")

    @property
    def every(self) -> int:
        """Steps between evaluations; 0: none on the way."""
        return self.evaluate_every or (EVERY if self.metric is not None else 0)


class Watch:
    """What a worker knows, from the entries it has read, of how far the run has come.

    Attributes:
        stop: the last step that all workers take, once the targets are reached.
        time_to_target: seconds, once they are.
    """

    def __init__(self, targets: Targets, num_workers: int) -> None:
        self._targets, self._num_workers = targets, num_workers
        self._losses: deque[float] = deque(maxlen=SMOOTHED)
        self._open: dict[int, list[Entry]] = {}
        self._begin: float | None = None
        self._furthest = -1
        self._reached: dict[str, float] = {}
        self.evaluated = -1
        self.stop: int | None = None

    @property
    def time_to_target(self) -> float | None:
        if self.stop is None or self._begin is None:
            return None
        return max(self._reached.values()) - self._begin

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in entries: `step_entry`s and `metric_entry`s."""
        for entry in entries:
            if entry[0] == "step":
                self._feed_step(entry)
            else:
                self._feed_metric(entry)
            asked = {"loss": self._targets.loss, "metric": self._targets.metric}
            wanted = {name for name, value in asked.items() if value is not None}
            if self.stop is None and wanted and wanted <= set(self._reached):
                self.stop = self._furthest + 1

    def _feed_step(self, entry: Entry) -> None:
        _, step, _, _, begin, _ = entry
        self._begin = begin if self._begin is None else min(self._begin, begin)
        self._furthest = max(self._furthest, step)
        told = self._open.setdefault(step, [])
        told.append(entry)
        if len(told) < self._num_workers:
            return
        # Every worker tells its steps in order, so they are complete in order.
        del self._open[step]
        samples = sum(one[3] for one in told if one[2] is not None)
        if samples:
            self._losses.append(sum(one[2] * one[3] for one in told if one[2] is not None) / samples)
        target = self._targets.loss
        if target is not None and self._losses and sum(self._losses) / len(self._losses) <= target:
            self._reached.setdefault("loss", max(one[5] for one in told))

    def _feed_metric(self, entry: Entry) -> None:
        _, step, good, moment = entry
        self.evaluated = step
        if good:
            self._reached.setdefault("metric", moment)

    def state_dict(self) -> dict[str, Any]:
        """Taken between steps, when all that has been told is read."""
        return {
            "losses": list(self._losses),
            "begin": self._begin,
            "furthest": self._furthest,
            "reached": dict(self._reached),
            "evaluated": self.evaluated,
            "stop": self.stop,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses.extend(state["losses"])
        self._begin, self._furthest = state["begin"], state["furthest"]
        self._reached.update(state["reached"])
        self.evaluated, self.stop = state["evaluated"], state["stop"]


def step_entry(step: int, loss: float | None, samples: int, begin: float, end: float) -> Entry:
    """A worker has ended a step: its mean loss over its samples, and when."""
    return ["step", step, loss, samples, begin, end]


def metric_entry(step: int, good: bool, moment: float) -> Entry:
    """Worker 0 has evaluated its model after a step: whether that is good enough, and when."""
    return ["metric", step, good, moment]
