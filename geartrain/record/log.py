"""What a rank writes down while it runs, on every engine: transfers, the times it stood still, spans, steps.

An engine fills one `RankLog` per rank. Nothing here interprets: `geartrain.record.split` joins the logs of all ranks
and says which part of a blocked interval was communication and which was waiting for a slower rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OpKey = tuple[Any, ...]
"""Names one transfer or collective the same on every rank that takes part.

(group, sequence) or (group, source, destination, tag, n).
"""


@dataclass(slots=True)
class Op:
    """One rank's part in a transfer or collective.

    Attributes:
        key: the same on all ranks that take part.
        kind: "all_reduce", "send", "recv", ...
        nbytes: payload bytes this rank sends.
        messages: messages this rank sends.
        posted: when this rank entered it (seconds).
        done: when it was complete on this rank; below zero while it is not.
        lane: which lane of the rank posted it; "" is the main one.
        peers: global ranks that take part, this one included.
        size: payload bytes of the operation as the user sees it (the tensor).
    """

    key: OpKey
    kind: str
    nbytes: int
    messages: int
    posted: float
    lane: str
    peers: tuple[int, ...]
    size: int
    done: float = -1.0


@dataclass(slots=True)
class Blocked:
    """An interval in which a lane of the rank stood still for an operation (with no key: for a queue, a sleep, ...)."""

    begin: float
    end: float
    key: OpKey | None
    lane: str
    what: str = ""


@dataclass(slots=True)
class Span:
    """A named interval. `kind` is "compute" or "user"."""

    begin: float
    end: float
    name: str
    lane: str
    kind: str = "user"


@dataclass(slots=True)
class StepMark:
    """One training step of one rank; `values` holds loss, samples, staleness, ... as given."""

    step: int
    begin: float
    end: float = -1.0
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class RankLog:
    """All that one rank wrote down. `end` is when its program ended."""

    rank: int
    role: str
    ops: list[Op] = field(default_factory=list)
    blocked: list[Blocked] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    steps: list[StepMark] = field(default_factory=list)
    counts: dict[str, float] = field(default_factory=dict)
    end: float = 0.0


@dataclass(kw_only=True)
class RunRecord:
    """What an engine hands back.

    Attributes:
        engine: "real", "emulated" or "simulated".
        logs: one per rank, workers first.
        results: what `main(ctx)` returned on each rank (None where it raised or was cut short).
        wall: real seconds the run took.
        virtual: True when the times in the logs are virtual.
        interrupted: why the run ended before its time, if it did.
        link_bytes: bytes carried per link by name, where the engine knows links; emulated ones count headers, too.
        emulation: what an emulated run was made of: links and their rates, delays asked for and measured, compute that
            was slept, and what to bear in mind.
        lost: rank -> how it died, of the workers that the others went on without; such a log ends where it was killed,
            or is empty.
    """

    engine: str
    logs: list[RankLog]
    results: list[Any]
    wall: float
    virtual: bool
    interrupted: str | None = None
    link_bytes: dict[str, float] = field(default_factory=dict)
    emulation: dict[str, Any] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
