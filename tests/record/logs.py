"""Hand-made logs: small enough to do the sums in one's head."""

from geartrain.record.log import Blocked, Op, RankLog, RunRecord, Span, StepMark

KEY = ("g", 0)


def op(key, posted, done, *, kind="all_reduce", nbytes=100, messages=2, lane="", peers=(0, 1)):
    return Op(key, kind, nbytes, messages, posted, lane, peers, 200, done)


def rank(number, *, ops=(), blocked=(), steps=(), spans=(), end=10.0, role="worker"):
    marks = [StepMark(i, begin, stop, {"loss": 1.0 / (i + 1)}) for i, (begin, stop) in enumerate(steps)]
    return RankLog(number, role, list(ops), list(blocked), list(spans), marks, {}, end)


def record(*logs, virtual=True, engine="simulated", results=None):
    return RunRecord(engine=engine, logs=list(logs), results=results or [None] * len(logs), wall=0.5, virtual=virtual)


def late_rank():
    """Two ranks, one step of 10 s: rank 0 enters an all-reduce at 2 s, rank 1 at 5 s; both leave it at 8 s."""
    step = [(0.0, 10.0)]
    fast = rank(0, ops=[op(KEY, 2.0, 8.0)], blocked=[Blocked(2.0, 8.0, KEY, "")], steps=step)
    slow = rank(1, ops=[op(KEY, 5.0, 8.0)], blocked=[Blocked(5.0, 8.0, KEY, "")], steps=step)
    return record(fast, slow)


__all__ = ["KEY", "Blocked", "Span", "late_rank", "op", "rank", "record"]
