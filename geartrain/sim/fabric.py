"""`Fabric`: what all simulated ranks of a run share, and `RankState`: what each has for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

from geartrain.cluster.placement import Placement
from geartrain.cost.collectives import plan_collective
from geartrain.cost.placed import fixed_seconds
from geartrain.record.log import Blocked, OpKey, RankLog
from geartrain.sim.kernel import Activity, Event, Explain, Kernel
from geartrain.sim.network import Network
from geartrain.torch_private import WorldTable

if TYPE_CHECKING:
    from geartrain.sim.datagrams import Post
    from geartrain.sim.meeting import Channel


@dataclass(frozen=True, slots=True)
class Plan:
    """How a native collective loads the network.

    Attributes:
        algorithm: its name, e.g. "ring".
        latency: seconds before the busiest link works without a pause: latency terms, and waits for earlier rounds.
        busiest: bytes on the busiest link.
        usage: link -> bytes on it; a flow of size `busiest` needs them as weights.
        sent: payload bytes and messages that each group rank sends.
    """

    algorithm: str
    latency: float
    busiest: float
    usage: dict[int, float]
    sent: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class RankState:
    """One rank's own part of the simulated world."""

    rank: int
    log: RankLog
    table: WorldTable = field(default_factory=WorldTable)
    step: int | None = None
    draw_pace: Callable[[], None] | None = None  # for a program that marks no steps, where its pace varies
    context: Any = None  # what strategy code on this rank has of the world, once there is one


@dataclass(slots=True)
class ActivityState:
    """What belongs to one activity: its rank's state and its own random states, swapped with the baton.

    `groups` says up to which change of the rank's table its thread knows the rank's groups by name; below zero, it has
    not begun.
    """

    rank: RankState
    fabric: Fabric
    random: Any = None
    groups: int = -1


class Fabric:
    """The shared part of the simulated world.

    Args:
        placement: who runs where; its links are the network.
        algorithms: collective kind -> algorithm, instead of the cluster's own or the choice by size.
        explain: see `Kernel`.
    """

    def __init__(self, placement: Placement, algorithms: dict[str, str], explain: Explain) -> None:
        self.placement = placement
        self.algorithms = algorithms
        self.network = Network([link.capacity for link in placement.links])
        self.kernel = Kernel(self.network, explain)
        self.channels: dict[tuple[str, tuple[int, ...]], Channel] = {}
        self.posts: dict[str, Post] = {}
        self.ranks: list[RankState] = []
        self.num_messages = 0
        self.pages: dict[str, Any] = {}  # what ranks tell each other beside the run, by the name of the ledger
        self._plans: dict[tuple[Any, ...], Plan] = {}

    def plan(self, kind: str, ranks: tuple[int, ...], nbytes: int, element_size: int, root: int) -> Plan:
        """The plan of a native collective among these ranks for `nbytes` bytes (before it is dealt out)."""
        key = (kind, ranks, nbytes, element_size, root)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._make_plan(kind, ranks, nbytes, element_size, root)
        return plan

    def _make_plan(self, kind: str, ranks: tuple[int, ...], nbytes: int, element_size: int, root: int) -> Plan:
        forced = self.algorithms.get(kind)
        algorithm = forced or self.placement.cluster.collectives.algorithm(kind)
        plan = plan_collective(kind, len(ranks), nbytes, element=element_size, root=root, algorithm=algorithm)
        pairs = [(ranks[source], ranks[target]) for source, target, _ in plan.traffic()]
        alpha = max((self.placement.route(*pair).latency for pair in pairs), default=0.0)
        rate = min((self.placement.rate(*pair) for pair in pairs), default=inf)
        loads = plan.link_bytes(lambda source, target: self.placement.route(ranks[source], ranks[target]).links)
        fixed = max(0.0, plan.fixed_time(alpha, rate))
        if not forced:  # a curve was measured with the algorithm of the cluster's backend
            busy = max((load / self.placement.links[link].capacity for link, load in loads.items()), default=0.0)
            fixed = fixed_seconds(self.placement, kind, len(ranks), nbytes, fixed, busy)
        return Plan(
            plan.algorithm,
            fixed,
            float(max(loads.values(), default=0)),
            {link: float(load) for link, load in loads.items()},
            tuple(zip(plan.sent, plan.messages, strict=True)),
        )

    def exchange_plan(self, ranks: tuple[int, ...], shares: Sequence[Sequence[int]]) -> Plan:
        """The plan of an `all_to_all` in which rank i gives `shares[i][j]` bytes to rank j, not all alike."""
        kind, placement = "all_to_all", self.placement
        algorithm = self.algorithms.get(kind) or placement.cluster.collectives.algorithm(kind)
        even = plan_collective(kind, len(ranks), max(map(sum, shares)), algorithm=algorithm)
        loads: dict[int, float] = {}
        sent, alpha = [], 0.0
        for i, row in enumerate(shares):
            given = [(j, nbytes) for j, nbytes in enumerate(row) if nbytes and j != i]
            sent.append((sum(nbytes for _, nbytes in given), len(given)))
            for j, nbytes in given:
                route = placement.route(ranks[i], ranks[j])
                alpha = max(alpha, route.latency)
                for link in route.links:
                    loads[link] = loads.get(link, 0.0) + nbytes
        busiest = max(loads.values(), default=0.0)
        return Plan(even.algorithm, even.latency_terms * alpha, busiest, loads, tuple(sent))

    def state(self) -> ActivityState:
        """The calling activity's state."""
        state: ActivityState = self.kernel.me().state
        return state

    def wait(self, event: Event, key: OpKey | None, what: str, deadline: float | None = None) -> bool:
        """Stand still for an event and write it down. For a message the key is known only afterwards.

        Pass its `Op.key` late.
        """
        activity = self.kernel.me()
        begin = activity.now
        happened = self.kernel.wait(event, deadline)
        self.note_blocked(activity, begin, key, what)
        return happened

    def sleep(self, seconds: float) -> None:
        """Stand still for `seconds`, on purpose."""
        kernel = self.kernel
        self.wait(Event("sleep"), None, "sleep", kernel.me().now + max(0.0, seconds))

    def note_blocked(self, activity: Activity, begin: float, key: OpKey | None, what: str) -> None:
        if activity.now > begin:
            rank: RankState = activity.state.rank
            rank.log.blocked.append(Blocked(begin, activity.now, key, activity.name, what))
            if rank.draw_pace is not None and rank.step is None:
                rank.draw_pace()


def ranks_text(ranks: Sequence[int], most: int = 8) -> str:
    """`rank 3`, `ranks 0-3, 7`."""
    ordered = sorted(ranks)
    if not ordered:
        return "no rank"
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and runs[-1][1] == rank - 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    text = ", ".join(parts[:most]) + (", ..." if len(parts) > most else "")
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}"
