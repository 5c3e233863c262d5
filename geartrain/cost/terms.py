"""What a strategy costs per training step: time by kind, bytes and messages, memory.

A `Cost` is a closed form that has been evaluated: plain numbers in SI units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What one rank puts on the wire in one step, payload only; a mean where steps differ.

    Attributes:
        nbytes: bytes sent.
        messages: messages sent; a native collective counts the messages of the algorithm that it uses.
    """

    nbytes: float = 0
    messages: float = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(nbytes=self.nbytes + other.nbytes, messages=self.messages + other.messages)

    def per(self, steps: int) -> Traffic:
        """The mean of traffic that comes once in so many steps."""
        return self if steps == 1 else Traffic(nbytes=self.nbytes / steps, messages=self.messages / steps)


def summed(parts: Iterable[Sequence[Traffic]], num_ranks: int) -> tuple[Traffic, ...]:
    """What each of so many ranks sends in several exchanges; one that is there n times is taken n times at once."""
    distinct: dict[int, tuple[Sequence[Traffic], int]] = {}
    for part in parts:
        _, before = distinct.get(id(part), (part, 0))
        distinct[id(part)] = (part, before + 1)
    sent = (Traffic(),) * num_ranks
    for part, times in distinct.values():
        sent = tuple(
            Traffic(nbytes=a.nbytes + times * b.nbytes, messages=a.messages + times * b.messages)
            for a, b in zip(sent, part, strict=True)
        )
    return sent


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The closed form of one training step, seen from the slowest worker; the mean over a cycle where steps differ.

    Attributes:
        compute: seconds in which the worker's device computes (forward, backward, update).
        codec: seconds in which it encodes and decodes what is sent, beside that.
        exposed_communication: seconds in which the worker stands still while bytes are in flight.
        wait: seconds in which the worker stands still for another rank.
        bubble: seconds in which it stands still because of the order of a pipeline.
        hidden_communication: seconds of communication that run beside compute.
        sent: traffic of each rank of the run, workers first, then services.
        memory: bytes per kind ("parameters", "gradients", "optimizer", "buckets", ...) on the worker that needs most.
        services: memory of each service likewise, in rank order; empty where it was not counted.
        notes: what a reader must know, e.g. which reading of a paper's latency term is used.
    """

    compute: float = 0.0
    codec: float = 0.0
    exposed_communication: float = 0.0
    wait: float = 0.0
    bubble: float = 0.0
    hidden_communication: float = 0.0
    sent: tuple[Traffic, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    services: tuple[dict[str, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def step_time(self) -> float:
        """Seconds per step: what computes plus what is exposed."""
        return self.compute + self.codec + self.exposed_communication + self.wait + self.bubble
