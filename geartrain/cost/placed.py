"""Transfers on the links of a cluster: messages that travel at once, and a backend's own collectives.

time of messages that start together = max over messages of (latency of the route + max over its links of (bytes on the
link / its rate)), which is exact where the busiest link is the same for all or nothing contends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from geartrain.cluster.placement import Placement
from geartrain.cost.collectives import plan_collective
from geartrain.cost.terms import Traffic

Flow = tuple[int, int, int]
"""Sender, receiver, bytes."""


def travel(place: Placement, flows: Iterable[Flow]) -> float:
    """Seconds until messages that start together have all arrived; empty ones are not sent."""
    load: dict[int, int] = defaultdict(int)
    routes = []
    for source, target, nbytes in flows:
        if nbytes:
            route = place.route(source, target)
            routes.append(route)
            for link in route.links:
                load[link] += nbytes
    busy = {link: nbytes / place.links[link].capacity for link, nbytes in load.items()}.__getitem__
    return max((route.latency + max(map(busy, route.links), default=0.0) for route in routes), default=0.0)


def native_collective(
    place: Placement, kind: str, nbytes: int, element: int = 1, ranks: Sequence[int] | None = None
) -> tuple[float, tuple[Traffic, ...]]:
    """Seconds of a collective by the backend's algorithm, and what each of its ranks sends in it.

    Args:
        place: where the ranks are, and which algorithms the cluster's backend uses.
        kind, nbytes, element: see `geartrain.cost.collectives`.
        ranks: who makes it; all workers unless given.
    """
    members = tuple(range(place.num_workers) if ranks is None else ranks)
    if len(members) == 1:
        return 0.0, (Traffic(),)
    asked = ("native collective", kind, nbytes, element, members)
    if asked not in place.known:
        place.known[asked] = _native_collective(place, kind, nbytes, element, members)
    found: tuple[float, tuple[Traffic, ...]] = place.known[asked]
    return found


def _native_collective(
    place: Placement, kind: str, nbytes: int, element: int, members: Sequence[int]
) -> tuple[float, tuple[Traffic, ...]]:
    algorithm = place.cluster.collectives.algorithm(kind)
    plan = plan_collective(kind, len(members), nbytes, element=element, algorithm=algorithm)
    pairs = [(members[source], members[target]) for source, target, _ in plan.traffic()]
    alpha = max(place.route(*pair).latency for pair in pairs)
    rate = min(place.rate(*pair) for pair in pairs)
    load = plan.link_bytes(lambda source, target: place.route(members[source], members[target]).links)
    busy = max((nbytes / place.links[link].capacity for link, nbytes in load.items()), default=0.0)
    sent = tuple(Traffic(nbytes=size, messages=count) for size, count in zip(plan.sent, plan.messages, strict=True))
    return fixed_seconds(place, kind, len(members), nbytes, plan.fixed_time(alpha, rate), busy) + busy, sent


def fixed_seconds(place: Placement, kind: str, num_ranks: int, nbytes: int, planned: float, busy: float) -> float:
    """The part of a collective in which its busiest link does not work.

    Where the cluster has a curve for it, the curve says how long it takes; the busiest link works as long as before, so
    that what contends with it is still slowed down.

    Args:
        planned: that part by the algorithm's own account.
        busy: seconds of the busiest link.
    """
    curve = place.curve(kind, num_ranks)
    return max(0.0, planned if curve is None else curve.seconds(nbytes) - busy)
