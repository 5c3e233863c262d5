"""Closed forms of collectives: time, bytes and messages of each algorithm, and what it puts on which link.

    T = latency_terms * alpha + critical_bytes / rate + reduced_bytes * gamma

A `CollectivePlan` is plain data: whoever simulates a collective as one fluid activity takes its traffic, whoever
estimates it takes `time`, and both agree. Bytes are exact integers, also where the ranks' shares are unequal.

What `nbytes` is, with n ranks:

    all_reduce, reduce, broadcast   the buffer of a rank
    reduce_scatter                  the input of a rank, which keeps one of n shares
    all_gather                      the output of a rank, which gave one of n shares
    gather, scatter                 the n shares together, at the root
    all_to_all                      what a rank gives: n shares, one of them for itself
    barrier                         nothing

Thresholds in `choose` are chosen, not measured. Sources of the forms: `geartrain.cost.collective_forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from geartrain.cost.collective_forms import ALGORITHMS, Call, Form, Message
from geartrain.errors import UnknownName

_RECURSIVE_LIMIT = 16 << 10  # all_reduce up to here: fewest latency terms; chosen
_HALVING_LIMIT = 1 << 20  # all_reduce up to here: few latency terms and few bytes; chosen
_TREE_LIMIT = 128 << 10  # broadcast and reduce, gather and scatter up to here: a tree; chosen
_LINEAR_LIMIT = 32 << 10  # all_to_all with shares up to here: all messages at once; chosen
SEGMENT = 128 << 10
"""Bytes in which a pipelined broadcast or reduce is cut; chosen."""


@dataclass(frozen=True, kw_only=True)
class CollectivePlan:
    """One collective by one algorithm.

    Attributes:
        kind, algorithm, num_ranks, nbytes: what was asked for.
        latency_terms: messages that wait for each other on the longest path.
        critical_bytes: bytes that wait for each other on the longest path.
        reduced_bytes: bytes that are reduced on the longest path.
        sent, received: bytes by rank.
        messages: messages sent, by rank.
        pairs: (sender, receiver, bytes), each pair of ranks once. Empty if `share_of_target` is given.
        share_of_target: for a complete exchange: each rank sends share_of_target[j] bytes to each other rank j.
            Keeps the plan small, there being n (n - 1) pairs.
    """

    kind: str
    algorithm: str
    num_ranks: int
    nbytes: int
    latency_terms: int
    critical_bytes: int
    reduced_bytes: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    messages: tuple[int, ...]
    pairs: tuple[Message, ...] = ()
    share_of_target: tuple[int, ...] = ()

    @property
    def busiest_bytes(self) -> int:
        """Bytes through the busiest rank, in its busier direction."""
        return max(max(self.sent), max(self.received))

    def traffic(self) -> Iterator[Message]:
        """(sender, receiver, bytes), each pair of ranks once; pairs without bytes may be among them."""
        yield from self.pairs
        for target, nbytes in enumerate(self.share_of_target):
            for source in range(self.num_ranks):
                if source != target:
                    yield source, target, nbytes

    def link_bytes(self, route: Callable[[int, int], Sequence[int]]) -> dict[int, int]:
        """Bytes over each link, given the links from one rank to another: the usage of a fluid activity of size 1.

        Links in the order in which the traffic first meets them. A complete exchange asks for n (n - 1) routes.
        """
        loads: dict[int, int] = {}
        for source, target, nbytes in self.traffic():
            if nbytes:
                for link in route(source, target):
                    loads[link] = loads.get(link, 0) + nbytes
        return loads

    def time(self, alpha: float, rate: float, gamma: float = 0.0) -> float:
        """Seconds on ranks that can each send and receive `rate` bytes per second, and meet nobody else.

        Args:
            alpha: seconds of latency per message.
            rate: bytes per second of a rank's link, each direction by itself.
            gamma: seconds to reduce a byte.
        """
        return self.fixed_time(alpha, rate, gamma) + self.busiest_bytes / rate

    def fixed_time(self, alpha: float, rate: float, gamma: float = 0.0) -> float:
        """The part of `time` that is not the busiest link at work: a simulator adds it to the fluid activity.

        Besides latency and reduction these are the bytes that wait while the busiest link is idle, as in a tree that
        reduces before it broadcasts.
        """
        waiting = self.critical_bytes - self.busiest_bytes
        return self.latency_terms * alpha + waiting / rate + self.reduced_bytes * gamma


def plan_collective(
    kind: str,
    num_ranks: int,
    nbytes: int,
    *,
    element: int = 1,
    root: int = 0,
    algorithm: str | None = None,
    segment: int = SEGMENT,
) -> CollectivePlan:
    """The plan of a collective; the same arguments give the same object.

    Args:
        kind: a key of `ALGORITHMS`.
        num_ranks: ranks that take part.
        nbytes: bytes, see the top of this module; a multiple of `element`.
        element: bytes that stay together when a buffer is cut into shares.
        root: the rank that gives or gets everything, where there is one.
        algorithm: takes the place of the choice by size.
        segment: bytes in which a pipeline is cut.

    Example:
        >>> plan = plan_collective("all_reduce", 4, 40, element=4, algorithm="ring")
        >>> plan.latency_terms, plan.sent, sum(plan.sent)
        (6, (60, 64, 60, 56), 240)
    """
    return _plan(kind, choose(kind, num_ranks, nbytes, algorithm), num_ranks, nbytes, element, root, segment)


def choose(kind: str, num_ranks: int, nbytes: int, algorithm: str | None = None) -> str:
    """The algorithm that is used: the one asked for, else by size: few latency terms for little, few bytes for much."""
    if kind not in ALGORITHMS:
        raise UnknownName("collective", kind, ALGORITHMS)
    if algorithm is not None:
        if algorithm not in ALGORITHMS[kind]:
            raise UnknownName(f"algorithm of {kind}", algorithm, ALGORITHMS[kind])
        return algorithm
    if kind == "all_reduce":
        if nbytes <= _RECURSIVE_LIMIT:
            return "recursive_doubling"
        return "halving_doubling" if nbytes <= _HALVING_LIMIT else "ring"
    if kind in ("broadcast", "reduce"):
        return "tree" if nbytes <= _TREE_LIMIT or num_ranks <= 2 else "pipeline"
    if kind in ("gather", "scatter"):
        return "tree" if nbytes <= _TREE_LIMIT else "linear"
    if kind == "all_to_all":
        return "linear" if nbytes <= _LINEAR_LIMIT * num_ranks else "pairwise"
    return next(iter(ALGORITHMS[kind]))


@lru_cache(maxsize=4096)
def _plan(
    kind: str, algorithm: str, num_ranks: int, nbytes: int, element: int, root: int, segment: int
) -> CollectivePlan:
    if num_ranks < 1 or not 0 <= root < num_ranks or nbytes < 0 or element < 1 or segment < 1:
        asked = f"{num_ranks} ranks, root {root}, {nbytes} bytes, elements of {element}, segments of {segment}"
        raise ValueError(f"a {kind} cannot have {asked}; sizes are positive and the root is one of the ranks")
    if num_ranks == 1:
        form = Form(0, 0, 0, (0,))
    else:
        form = ALGORITHMS[kind][algorithm](Call(num_ranks, nbytes, element, root, segment))
    sent, received = [0] * num_ranks, [0] * num_ranks
    for source, target, size in form.pairs:
        sent[source] += size
        received[target] += size
    if form.share_of_target:
        sent = [sum(form.share_of_target) - share for share in form.share_of_target]
        received = [(num_ranks - 1) * share for share in form.share_of_target]
    return CollectivePlan(
        kind=kind,
        algorithm=algorithm,
        num_ranks=num_ranks,
        nbytes=nbytes,
        latency_terms=form.latency_terms,
        critical_bytes=form.critical_bytes,
        reduced_bytes=form.reduced_bytes,
        sent=tuple(sent),
        received=tuple(received),
        messages=form.messages,
        pairs=form.pairs,
        share_of_target=form.share_of_target,
    )
