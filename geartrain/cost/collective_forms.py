"""The algorithms of collectives as data: which rank sends how many bytes to which, and what waits for what.

    T = latency_terms * alpha + critical_bytes / rate + reduced_bytes * gamma

Each algorithm is one small function from a `Call` to a `Form`; `geartrain.cost.collectives` makes plans of them.

Sources: ring forms as derived for the comparison of parameter server, peer-to-peer and ring (Alqahtani and Demirbas,
2019, arXiv 1909.02061); binomial trees, pipelines, recursive doubling and halving are textbook forms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Message = tuple[int, int, int]
"""Sender, receiver, bytes."""

Rounds = tuple[list[list[Message]], int]
"""Messages round by round, and in how many of the first rounds what arrives is reduced."""


def shares(nbytes: int, num_ranks: int, element: int = 1) -> tuple[int, ...]:
    """Bytes of each rank's share when whole elements are dealt out evenly; the first ranks take what is left over."""
    num_elements, rest = divmod(nbytes, element)
    if rest:
        raise ValueError(f"{nbytes} bytes are not a whole number of elements of {element} bytes")
    least, more = divmod(num_elements, num_ranks)
    return tuple((least + (rank < more)) * element for rank in range(num_ranks))


@dataclass(frozen=True)
class Call:
    """What an algorithm gets to see.

    Attributes:
        num_ranks: at least 2.
        nbytes: bytes; what they are depends on the kind.
        element: bytes that stay together when a buffer is cut into shares.
        root: the rank that gives or gets everything, where there is one.
        segment: bytes in which a pipeline is cut.
    """

    num_ranks: int
    nbytes: int
    element: int
    root: int
    segment: int

    @property
    def shares(self) -> tuple[int, ...]:
        """Bytes of each rank's share."""
        return shares(self.nbytes, self.num_ranks, self.element)

    def rank(self, position: int) -> int:
        """The rank at a position counted from the root."""
        return (self.root + position) % self.num_ranks


@dataclass(frozen=True)
class Form:
    """What an algorithm says of itself; the rest of a plan follows from it.

    Attributes:
        latency_terms: messages that wait for each other on the longest path.
        critical_bytes: bytes that wait for each other on the longest path.
        reduced_bytes: bytes that are reduced on the longest path.
        messages: messages sent, by rank.
        pairs: (sender, receiver, bytes), each pair of ranks once.
        share_of_target: for a complete exchange, instead of `pairs`: what each rank gets from each other one.
    """

    latency_terms: int
    critical_bytes: int
    reduced_bytes: int
    messages: tuple[int, ...]
    pairs: tuple[Message, ...] = ()
    share_of_target: tuple[int, ...] = ()


# Rings. A share travels on without a pause, so the largest one decides.


def _ring_all_reduce(call: Call) -> Form:
    """Rank r never sends share r + 1 in the first half, with which it ends it, nor share r + 2 in the second."""
    n, parts = call.num_ranks, call.shares
    sizes = [2 * call.nbytes - parts[(rank + 1) % n] - parts[(rank + 2) % n] for rank in range(n)]
    return _ring(2 * (n - 1), max(parts), (n - 1) * max(parts), sizes)


def _ring_reduce_scatter(call: Call) -> Form:
    """Rank r ends with share r, the only one that it never sends."""
    n, parts = call.num_ranks, call.shares
    return _ring(n - 1, max(parts), (n - 1) * max(parts), [call.nbytes - part for part in parts])


def _ring_all_gather(call: Call) -> Form:
    """Rank r starts with share r, and never sends share r + 1, which comes last."""
    n, parts = call.num_ranks, call.shares
    return _ring(n - 1, max(parts), 0, [call.nbytes - parts[(rank + 1) % n] for rank in range(n)])


def _ring(num_steps: int, largest: int, reduced_bytes: int, sizes: Sequence[int]) -> Form:
    n = len(sizes)
    pairs = tuple((rank, (rank + 1) % n, size) for rank, size in enumerate(sizes))
    return Form(num_steps, num_steps * largest, reduced_bytes, (num_steps,) * n, pairs)


def _pipeline_broadcast(call: Call) -> Form:
    """A chain: the first segment goes down link by link, the others follow it closely."""
    n = call.num_ranks
    num_segments = max(1, -(-call.nbytes // call.segment))
    messages = [num_segments] * n
    messages[call.rank(n - 1)] = 0
    pairs = tuple((call.rank(position), call.rank(position + 1), call.nbytes) for position in range(n - 1))
    critical = (n - 2) * min(call.segment, call.nbytes) + call.nbytes
    return Form(n - 2 + num_segments, critical, 0, tuple(messages), pairs)


def _pipeline_reduce(call: Call) -> Form:
    """The same chain the other way; every segment is reduced where it arrives."""
    there = _pipeline_broadcast(call)
    messages = list(there.messages)
    messages[call.root], messages[call.rank(call.num_ranks - 1)] = 0, there.messages[call.root]
    pairs = tuple((target, source, size) for source, target, size in there.pairs)
    return Form(there.latency_terms, there.critical_bytes, there.critical_bytes, tuple(messages), pairs)


def _pairwise_all_to_all(call: Call) -> Form:
    """In step s rank r sends to r + s: each step as long as its largest share."""
    n, parts = call.num_ranks, call.shares
    return Form(n - 1, (n - 1) * max(parts), 0, (n - 1,) * n, share_of_target=parts)


def _linear_all_to_all(call: Call) -> Form:
    """All messages at once."""
    n, parts = call.num_ranks, call.shares
    critical = max(call.nbytes - min(parts), (n - 1) * max(parts))
    return Form(1, critical, 0, (n - 1,) * n, share_of_target=parts)


# Algorithms in rounds: everything follows from the messages of each round.


def _in_rounds(num_ranks: int, rounds: Sequence[Sequence[Message]], num_reducing: int = 0) -> Form:
    """A form from rounds that follow each other; what arrives in the first `num_reducing` rounds is reduced."""
    pairs: dict[tuple[int, int], int] = {}
    messages = [0] * num_ranks
    critical = reduced = 0
    for number, messages_of_round in enumerate(rounds):
        out: dict[int, int] = {}
        into: dict[int, int] = {}
        for source, target, size in messages_of_round:
            messages[source] += 1
            pairs[source, target] = pairs.get((source, target), 0) + size
            out[source] = out.get(source, 0) + size
            into[target] = into.get(target, 0) + size
        critical += max(max(out.values()), max(into.values()))
        reduced += max(into.values()) if number < num_reducing else 0
    return Form(len(rounds), critical, reduced, tuple(messages), tuple((*pair, size) for pair, size in pairs.items()))


def _backwards(rounds: Sequence[Sequence[Message]]) -> list[list[Message]]:
    return [[(target, source, size) for source, target, size in messages] for messages in reversed(rounds)]


def _tree_rounds(call: Call, size: Callable[[int, int], int]) -> list[list[Message]]:
    """A binomial tree to the root; `size(position, end)` is what the subtree of these positions sends."""
    n, rounds, distance = call.num_ranks, [], 1
    while distance < n:
        senders = range(distance, n, 2 * distance)
        rounds.append([(call.rank(at), call.rank(at - distance), size(at, min(at + distance, n))) for at in senders])
        distance *= 2
    return rounds


def _whole_tree(call: Call) -> list[list[Message]]:
    return _tree_rounds(call, lambda position, end: call.nbytes)


def _shares_tree(call: Call) -> list[list[Message]]:
    parts, before = call.shares, [0]
    for position in range(call.num_ranks):
        before.append(before[-1] + parts[call.rank(position)])
    return _tree_rounds(call, lambda position, end: before[end] - before[position])


def _tree_all_reduce(call: Call) -> Rounds:
    rounds = _whole_tree(call)
    return [*rounds, *_backwards(rounds)], len(rounds)


def _tree_reduce(call: Call) -> Rounds:
    rounds = _whole_tree(call)
    return rounds, len(rounds)


def _tree_broadcast(call: Call) -> Rounds:
    return _backwards(_whole_tree(call)), 0


def _tree_gather(call: Call) -> Form:
    return _in_rounds(call.num_ranks, _shares_tree(call))


def _tree_scatter(call: Call) -> Form:
    return _in_rounds(call.num_ranks, _backwards(_shares_tree(call)))


def _to_root(call: Call, sizes: Sequence[int]) -> list[list[Message]]:
    return [[(rank, call.root, size) for rank, size in enumerate(sizes) if rank != call.root]]


def _linear_reduce(call: Call) -> Form:
    return _in_rounds(call.num_ranks, _to_root(call, [call.nbytes] * call.num_ranks), 1)


def _linear_broadcast(call: Call) -> Form:
    return _in_rounds(call.num_ranks, _backwards(_to_root(call, [call.nbytes] * call.num_ranks)))


def _linear_gather(call: Call) -> Form:
    return _in_rounds(call.num_ranks, _to_root(call, call.shares))


def _linear_scatter(call: Call) -> Form:
    return _in_rounds(call.num_ranks, _backwards(_to_root(call, call.shares)))


def _dissemination(call: Call) -> Form:
    """In round k every rank tells the one 2^k further on."""
    n = call.num_ranks
    distances = [1 << k for k in range((n - 1).bit_length())]
    return _in_rounds(n, [[(rank, (rank + distance) % n, 0) for rank in range(n)] for distance in distances])


# Recursive exchange works on powers of two: of the first ranks, every second one hands its data to the next and waits.


def members(num_ranks: int) -> tuple[list[int], list[int]]:
    """The ranks that take part in the recursion, and those that hand their data to the next rank."""
    size = 1 << (num_ranks.bit_length() - 1)
    num_extra = num_ranks - size
    return [2 * at + 1 if at < num_extra else at + num_extra for at in range(size)], list(range(0, 2 * num_extra, 2))


def _folded(call: Call, extras: Sequence[int], rounds: list[list[Message]], num_reducing: int) -> Rounds:
    """The recursion between the round that takes the extra ranks' data in and the one that gives them the result."""
    if extras:
        fold = [(rank, rank + 1, call.nbytes) for rank in extras]
        rounds, num_reducing = [fold, *rounds, *_backwards([fold])], num_reducing + 1
    return rounds, num_reducing


def _recursive_doubling(call: Call) -> Rounds:
    """In round k, partners at distance 2^k exchange everything."""
    inside, extras = members(call.num_ranks)
    rounds, distance = [], 1
    while distance < len(inside):
        rounds.append([(rank, inside[at ^ distance], call.nbytes) for at, rank in enumerate(inside)])
        distance *= 2
    return _folded(call, extras, rounds, len(rounds))


def _halving_doubling(call: Call) -> Rounds:
    """Partners exchange halves of what they hold until each has one share; then the same way back, doubling."""
    inside, extras = members(call.num_ranks)
    parts, before = shares(call.nbytes, len(inside), call.element), [0]
    for part in parts:
        before.append(before[-1] + part)
    halving = []
    distance = len(inside) // 2
    while distance:
        messages = []
        for at, rank in enumerate(inside):
            partner = at ^ distance
            first = partner - partner % distance  # the half that the partner keeps
            messages.append((rank, inside[partner], before[first + distance] - before[first]))
        halving.append(messages)
        distance //= 2
    return _folded(call, extras, [*halving, *_backwards(halving)], len(halving))


ROUNDS: dict[str, dict[str, Callable[[Call], Rounds]]] = {
    "all_reduce": {
        "halving_doubling": _halving_doubling,
        "recursive_doubling": _recursive_doubling,
        "tree": _tree_all_reduce,
    },
    "broadcast": {"tree": _tree_broadcast},
    "reduce": {"tree": _tree_reduce},
}
"""Kind -> name -> the rounds of an algorithm, where we have it in sends and receives too and it is no ring."""


def _form_of(kind: str, name: str) -> Callable[[Call], Form]:
    return lambda call: _in_rounds(call.num_ranks, *ROUNDS[kind][name](call))


ALGORITHMS: dict[str, dict[str, Callable[[Call], Form]]] = {
    "all_reduce": {
        "ring": _ring_all_reduce,
        "halving_doubling": _form_of("all_reduce", "halving_doubling"),
        "recursive_doubling": _form_of("all_reduce", "recursive_doubling"),
        "tree": _form_of("all_reduce", "tree"),
    },
    "reduce_scatter": {"ring": _ring_reduce_scatter},
    "all_gather": {"ring": _ring_all_gather},
    "broadcast": {"tree": _form_of("broadcast", "tree"), "pipeline": _pipeline_broadcast, "linear": _linear_broadcast},
    "reduce": {"tree": _form_of("reduce", "tree"), "pipeline": _pipeline_reduce, "linear": _linear_reduce},
    "gather": {"linear": _linear_gather, "tree": _tree_gather},
    "scatter": {"linear": _linear_scatter, "tree": _tree_scatter},
    "all_to_all": {"pairwise": _pairwise_all_to_all, "linear": _linear_all_to_all},
    "barrier": {"dissemination": _dissemination},
}
"""Kind -> name -> algorithm."""
