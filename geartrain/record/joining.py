"""The log of a run that was ended and went on: cut into parts while it grows, joined to one record afterwards.

Cuts are made where no rank is in a step. An operation that was under way at the last cut of a process is posted again
by the process that goes on; joined, it has its first moment back. Names of operations count from zero in each process,
so those of later ones begin with the process's number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from geartrain.record.log import Blocked, Op, OpKey, RankLog, RunRecord, StepMark


@dataclass(frozen=True)
class Part:
    """What one rank wrote down between two cuts.

    Attributes:
        process: 0 for the process that began the run, 1 for the one that went on first, ...
        since: the moment, on the run's clock, at which that process began to train.
        log: all that had ended at the second cut, and was not in an earlier part.
        pending: the operations that had not.
        link_bytes: bytes carried per link since the process began, where the engine knows links.
    """

    process: int
    since: float
    log: RankLog
    pending: tuple[Op, ...]
    link_bytes: dict[str, float]


@dataclass
class Cutter:
    """Cuts the growing log of one rank: each call of `cut` hands out what has come since the last one."""

    process: int = 0
    since: float = 0.0
    _seen: tuple[int, int, int, int] = (0, 0, 0, 0)
    _ops: list[Op] = field(default_factory=list)
    _blocked: list[Blocked] = field(default_factory=list)
    _steps: list[StepMark] = field(default_factory=list)

    def cut(self, log: RankLog, link_bytes: dict[str, float]) -> Part:
        """The part of `log` since the last cut; what is still open is looked at again at the next one."""
        num_ops, num_blocked, num_steps, num_spans = self._seen
        ops = [*self._ops, *log.ops[num_ops:]]
        blocked = [*self._blocked, *log.blocked[num_blocked:]]
        steps = [*self._steps, *log.steps[num_steps:]]
        self._seen = (len(log.ops), len(log.blocked), len(log.steps), len(log.spans))
        self._ops = [op for op in ops if op.done < 0]
        self._blocked = [one for one in blocked if one.end < one.begin]
        self._steps = [mark for mark in steps if mark.end < mark.begin]
        ended = RankLog(
            log.rank,
            log.role,
            ops=[op for op in ops if op.done >= 0],
            blocked=[one for one in blocked if one.end >= one.begin],
            spans=log.spans[num_spans:],
            steps=[mark for mark in steps if mark.end >= mark.begin],
            counts=dict(log.counts),
        )
        return Part(self.process, self.since, ended, tuple(self._ops), dict(link_bytes))


def joined(cuts: Sequence[Sequence[Part]], since: float, record: RunRecord) -> RunRecord:
    """One record of the whole run.

    Args:
        cuts: all that were made by the earlier processes, in order; of each, the parts of all ranks.
        since: the moment at which the last process began to train; what it did before was getting ready.
        record: of the last process. Its `wall` stays: it is that process's.
    """
    if not cuts:
        return record
    links = dict(record.link_bytes)
    for _, group in groupby(cuts, key=lambda parts: parts[0].process):
        for name, carried in list(group)[-1][0].link_bytes.items():
            links[name] = links.get(name, 0.0) + carried
    logs = [_join(log, [parts[rank] for parts in cuts], since) for rank, log in enumerate(record.logs)]
    return replace(record, logs=logs, link_bytes=links)


def _join(last: RankLog, parts: Sequence[Part], since: float) -> RankLog:
    whole = RankLog(last.rank, last.role, end=last.end)
    pending: tuple[Op, ...] = ()
    for number, group in groupby(parts, key=lambda part: part.process):
        mine = list(group)
        counts = mine[-1].log.counts
        log = RankLog(last.rank, last.role, counts=counts)
        for part in mine:
            log.ops += part.log.ops
            log.blocked += part.log.blocked
            log.spans += part.log.spans
            log.steps += part.log.steps
        first = _first_moments([*log.ops, *mine[-1].pending], mine[0].since, pending)
        _add(whole, log, number, mine[0].since, first)
        pending = tuple(replace(op, posted=first.get(op.key, op.posted)) for op in mine[-1].pending)
    _add(whole, last, parts[-1].process + 1, since, _first_moments(last.ops, since, pending))
    return whole


def _add(whole: RankLog, log: RankLog, number: int, since: float, first: Mapping[OpKey, float]) -> None:
    """Add what a process wrote down from the moment on at which it began to train."""
    again = {op.lane: op.posted for op in log.ops if op.key in first}  # the last one of each lane

    def name(key: OpKey) -> OpKey:
        return (number, *key) if number else key

    for op in log.ops:
        if op.posted >= since:
            whole.ops.append(replace(op, key=name(op.key), posted=first.get(op.key, op.posted)))
    for one in log.blocked:
        if one.begin < since:
            continue
        if one.key is None:
            whole.blocked.append(one)
            continue
        waited_before = one.key in first and one.begin <= again[one.lane]
        begin = first[one.key] if waited_before else one.begin
        whole.blocked.append(replace(one, key=name(one.key), begin=begin))
    whole.spans += [span for span in log.spans if span.begin >= since]
    whole.steps += [mark for mark in log.steps if mark.begin >= since]
    for counted, value in log.counts.items():
        whole.counts[counted] = whole.counts.get(counted, 0.0) + value


def _first_moments(ops: Sequence[Op], since: float, pending: Sequence[Op]) -> dict[OpKey, float]:
    """When operations that this process posted as it went on had been posted by the one before."""
    again = sorted((op for op in ops if op.posted >= since), key=attrgetter("posted")) if pending else []
    found: dict[OpKey, float] = {}
    for before in pending:
        alike = (before.kind, before.lane, before.size)
        now = next((op for op in again if (op.kind, op.lane, op.size) == alike and op.key not in found), None)
        if now is not None:
            found[now.key] = before.posted
    return found
