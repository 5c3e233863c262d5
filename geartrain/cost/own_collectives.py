"""What collectives written in sends and receives put on the wire: bytes and messages exactly, and in which steps.

    time = sum over stages of count * (messages of a round at once + adding what arrives, where it is added)

Algorithms have the names of `geartrain.cost.collectives`, and send the bytes of its plans. Two things are told here
that a plan does not: which messages travel together, and that a share without elements is no message. "hierarchical" is
here alone, since a plan does not know which ranks share a node:

    fold            in each node, ranks beyond the number that the smallest node has hand everything to one of the first
    reduce-scatter  a ring within each node: rank i ends with share i of the node's sum
    all-reduce      for each i a ring through the ranks that hold share i, one of each node
    all-gather      a ring within each node; then the ranks that had handed over get the result

Sources: derived; the hierarchical scheme is the textbook one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from geartrain.cost.collective_forms import ROUNDS, Call, Message, shares
from geartrain.cost.collectives import SEGMENT, plan_collective
from geartrain.cost.terms import Traffic
from geartrain.errors import UnknownName

OWN: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "halving_doubling", "recursive_doubling", "tree", "hierarchical"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "broadcast": ("tree",),
    "reduce": ("tree",),
}
"""Kind -> the algorithms that there are in sends and receives."""

_RING_KEEPS = {"all_reduce": (1, 2), "reduce_scatter": (0,), "all_gather": (1,)}
"""For each half of a ring: how far from its own number the share is that a rank does not send."""


@dataclass(frozen=True)
class Stage:
    """Rounds alike that follow each other.

    Attributes:
        messages: what travels at once in a round; in a ring, where shares may differ by one element, the largest.
        count: how many such rounds there are.
        adds: whether what arrives is added to what is there.
    """

    messages: tuple[Message, ...]
    count: int = 1
    adds: bool = False


@dataclass(frozen=True)
class Hierarchy:
    """Ranks by node.

    Attributes:
        nodes: the ranks of each node, in order of their first rank.
        width: ranks of the smallest node; so many of each node take part in the rings.
    """

    nodes: tuple[tuple[int, ...], ...]
    width: int

    def folds(self) -> list[tuple[int, int]]:
        """(rank, to whom it hands everything over), in the order in which they are taken in."""
        return [
            (rank, node[at % self.width]) for node in self.nodes for at, rank in enumerate(node) if at >= self.width
        ]


def hierarchy(nodes: Sequence[int]) -> Hierarchy:
    """The hierarchy of ranks, given the node of each.

    Example:
        >>> hierarchy((0, 0, 1, 1, 1))
        Hierarchy(nodes=((0, 1), (2, 3, 4)), width=2)
    """
    found: dict[int, list[int]] = {}
    for rank, node in enumerate(nodes):
        found.setdefault(node, []).append(rank)
    return Hierarchy(tuple(map(tuple, found.values())), min(map(len, found.values())))


def traffic(
    kind: str, algorithm: str, numel: int, element_size: int, nodes: Sequence[int], *, root: int = 0
) -> tuple[Traffic, ...]:
    """What each rank sends in one collective.

    Args:
        kind, algorithm: of `OWN`.
        numel: elements; what they are depends on the kind, see `geartrain.cost.collectives`.
        element_size: bytes of one.
        nodes: the node of each rank; only "hierarchical" looks at more than how many there are.
        root: the rank that gives or gets everything, where there is one.

    Example:
        >>> traffic("all_reduce", "halving_doubling", 100, 4, range(3))[0]
        Traffic(nbytes=400, messages=1)
    """
    _check(kind, algorithm)
    nbytes, size = numel * element_size, len(nodes)
    if algorithm == "hierarchical":
        return _hierarchical_traffic(nbytes, element_size, hierarchy(nodes))
    plan = plan_collective(kind, size, nbytes, element=element_size, root=root, algorithm=algorithm)
    if size == 1:
        messages: Sequence[int] = (0,)
    elif algorithm == "ring":
        there = [share > 0 for share in shares(nbytes, size, element_size)]
        keeps = _RING_KEEPS[kind]
        messages = [len(keeps) * sum(there) - sum(there[(rank + k) % size] for k in keeps) for rank in range(size)]
    else:
        rounds, _ = ROUNDS[kind][algorithm](Call(size, nbytes, element_size, root, SEGMENT))
        counted = Counter(source for each in rounds for source, _, sent in each if sent)
        messages = [counted[rank] for rank in range(size)]
    return tuple(Traffic(nbytes=sent, messages=count) for sent, count in zip(plan.sent, messages, strict=True))


def stages(
    kind: str, algorithm: str, numel: int, element_size: int, nodes: Sequence[int], *, root: int = 0
) -> tuple[Stage, ...]:
    """The steps of one collective, in order; arguments as for `traffic`."""
    _check(kind, algorithm)
    nbytes, size = numel * element_size, len(nodes)
    if size == 1:
        return ()
    if algorithm == "hierarchical":
        return tuple(_hierarchical_stages(nbytes, element_size, hierarchy(nodes)))
    if algorithm == "ring":
        adding = _ring_stage([range(size)], [shares(nbytes, size, element_size)[0]], adds=True)
        passing = Stage(adding.messages, adding.count)
        return {"all_reduce": (adding, passing), "reduce_scatter": (adding,), "all_gather": (passing,)}[kind]
    rounds, num_reducing = ROUNDS[kind][algorithm](Call(size, nbytes, element_size, root, SEGMENT))
    return tuple(Stage(tuple(each), adds=number < num_reducing) for number, each in enumerate(rounds))


def _check(kind: str, algorithm: str) -> None:
    if kind not in OWN:
        raise UnknownName("collective of our own", kind, OWN)
    if algorithm not in OWN[kind]:
        raise UnknownName(f"algorithm of {kind} of our own", algorithm, OWN[kind])


def _hierarchical_traffic(nbytes: int, element: int, ranks: Hierarchy) -> tuple[Traffic, ...]:
    """The traffic of the parts, added up."""
    sent = [Traffic() for node in ranks.nodes for _ in node]
    whole = Traffic(nbytes=nbytes, messages=1) if nbytes else Traffic()
    for rank, takes in ranks.folds():
        sent[rank] += whole
        sent[takes] += whole
    inner = [
        traffic(kind, "ring", nbytes // element, element, range(ranks.width))
        for kind in ("reduce_scatter", "all_gather")
    ]
    for at, share in enumerate(shares(nbytes, ranks.width, element)):
        outer = traffic("all_reduce", "ring", share // element, element, range(len(ranks.nodes)))
        for node, between in zip(ranks.nodes, outer, strict=True):
            sent[node[at]] += inner[0][at] + between + inner[1][at]
    return tuple(sent)


def _hierarchical_stages(nbytes: int, element: int, ranks: Hierarchy) -> Iterator[Stage]:
    width, num_nodes = ranks.width, len(ranks.nodes)
    parts = shares(nbytes, width, element)
    layers: dict[int, list[Message]] = {}
    for node in ranks.nodes:
        for at in range(width, len(node)):
            layers.setdefault(at // width, []).append((node[at], node[at % width], nbytes))
    yield from (Stage(tuple(messages), adds=True) for messages in layers.values())
    inner = _ring_stage([node[:width] for node in ranks.nodes], [parts[0]] * num_nodes, adds=True)
    columns = [[node[at] for node in ranks.nodes] for at in range(width)]
    outer = _ring_stage(columns, [shares(part, num_nodes, element)[0] for part in parts], adds=True)
    yield from (inner, outer, Stage(outer.messages, outer.count), Stage(inner.messages, inner.count))
    for messages in layers.values():
        yield Stage(tuple((target, source, size) for source, target, size in messages))


def _ring_stage(rings: Sequence[Sequence[int]], largest: Sequence[int], *, adds: bool) -> Stage:
    """Rings of one length that turn at once, each with its largest share."""
    messages = [
        (rank, ring[(at + 1) % len(ring)], share)
        for ring, share in zip(rings, largest, strict=True)
        for at, rank in enumerate(ring)
        if len(ring) > 1
    ]
    return Stage(tuple(messages), len(rings[0]) - 1, adds)
