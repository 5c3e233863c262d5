"""The mean step of a run: one number per kind of time, for tables.

    step_time = mean over the counted steps of the time of that step's slowest worker
    compute, exposed communication, wait, hidden communication: of the same worker in the same step, so they add up
    codec, wire: of that worker, too; codec is a part of compute, wire has exposed and hidden communication in it
    bytes, messages: mean over the workers and the counted steps

Counted are all steps but the first, which warms up (allocations, connections, first batches); of a run of one step,
that step. Services are left out: their traffic is in the record of each rank. So is a worker
that died and that the others went on without.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from geartrain.record.split import Shares, Split

WARM_UP = 1
"""Steps at the start of a run that means leave out."""

_TIE = 1e-9  # relative: times this close differ by rounding only


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """See the module. Seconds; `bytes_sent` and `messages` per worker and step, whole when the same everywhere."""

    steps: int
    step_time: float
    compute: float
    exposed_communication: float
    wait: float
    hidden_communication: float
    bytes_sent: float
    messages: float
    codec: float = 0.0
    wire: float = 0.0


def mean_step(split: Split, warm_up: int = WARM_UP) -> MeanStep | None:
    """The mean over the steps that all workers finished but the first `warm_up`; None when there is none."""
    by_step: dict[int, list[Shares]] = defaultdict(list)
    workers = [rank for rank in split.ranks if rank.role == "worker" and not rank.lost]
    for rank in workers:
        for step in rank.steps:
            by_step[step.step].append(step.shares)
    finished = sorted(step for step, shares in by_step.items() if len(shares) == len(workers))
    counted = finished[warm_up:] or finished
    if not counted:
        return None
    slowest = [_slowest(by_step[step]) for step in counted]
    everyone = [shares for step in counted for shares in by_step[step]]
    return MeanStep(
        steps=len(counted),
        step_time=_mean(shares.time for shares in slowest),
        compute=_mean(shares.compute for shares in slowest),
        exposed_communication=_mean(shares.exposed_communication for shares in slowest),
        wait=_mean(shares.wait for shares in slowest),
        hidden_communication=_mean(shares.hidden_communication for shares in slowest),
        bytes_sent=_mean(shares.bytes_sent for shares in everyone),
        messages=_mean(shares.messages for shares in everyone),
        codec=_mean(shares.codec for shares in slowest),
        wire=_mean(shares.wire for shares in slowest),
    )


def _slowest(shares: list[Shares]) -> Shares:
    """The worker with the longest step; among equals (all left a collective together) the one that waited least."""
    longest = max(one.time for one in shares)
    return min((one for one in shares if one.time >= longest * (1 - _TIE)), key=lambda one: one.wait)


def _mean(values: Iterable[float]) -> float:
    """The mean; exactly the value, of its own type, when all are equal."""
    numbers = list(values)
    if all(number == numbers[0] for number in numbers):
        return numbers[0]
    return sum(numbers) / len(numbers)
