"""How long the network takes for 1,024 flows on a two-level tree, all under way at once, with 2,048 distinct events.

    python benchmarks/network_flows.py

Then runs the same load again and checks the rates at every 64th event against the definition of max-min fairness. Exits
with status 1 when the first run took more than 5 seconds of wall time. Also prints the usual cheap loads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from geartrain.sim.network import Network
from tests.sim.maxmin_reference import certify, drive, tree_load

LIMIT = 5.0


def tree() -> float:
    """Wall seconds of the tree load; the rates are checked in a second run."""
    capacities, arrivals = tree_load(1024, seed=1)
    network = Network(capacities)
    started = time.perf_counter()
    ends = drive(network, arrivals)
    wall = time.perf_counter() - started
    first_end, last_start = min(ends), max(arrival.time for arrival in arrivals)
    assert first_end > last_start, f"the first flow ended at {first_end:g} s, before the last start at {last_start:g} s"
    network, most = Network(capacities), 0

    def inspect(event: int) -> None:
        nonlocal most
        if event % 64 == 0:
            certify(network.flows, capacities)
            most = max(most, len(network.flows))

    assert drive(network, arrivals, inspect) == ends
    print(f"tree, 1,024 flows, {most} at once, 2,048 events   {wall:8.3f} s   {wall / 2048 * 1e3:.3f} ms per event")
    return wall


def until_idle(network: Network) -> None:
    """Ends all flows."""
    while (now := network.next_event()) < float("inf"):
        network.advance(now)


def nothing(now: float) -> None:
    """What happens when a flow ends."""


def ring(num_steps: int = 50) -> int:
    """1,024 neighbours send to the next, at distinct times: no two flows share a link. Returns the number of flows."""
    network = Network([1.25e9] * 2048)
    for step in range(num_steps):
        for rank in range(1024):
            now = step + rank * 1e-6
            while (due := network.next_event()) <= now:
                network.advance(due)
            network.start(now, 1e5, [2 * rank, 2 * ((rank + 1) % 1024) + 1], nothing)
        until_idle(network)
    return num_steps * 1024


def incast() -> int:
    """1,023 flows of distinct sizes into one link."""
    network = Network([1.25e9] * 1024)
    for rank in range(1, 1024):
        network.start(0.0, 1e6 + rank, [rank, 0], nothing)
    until_idle(network)
    return 1023


def activities(num_activities: int = 200) -> int:
    """One collective after another, each a single activity on the 2,048 links of 1,024 ranks."""
    network = Network([1.25e9] * 2048)
    for step in range(num_activities):
        network.start(float(step), 1, dict.fromkeys(range(2048), 1e6), nothing)
        until_idle(network)
    return num_activities


def overlapping_activities() -> int:
    """200 such collectives, four at a time on the same links."""
    network = Network([1.25e9] * 2048)
    for step in range(50):
        for size in (1e6, 2e6, 3e6, 4e6):
            network.start(float(step), size, range(2048), nothing)
        until_idle(network)
    return 200


def report(name: str, load: Callable[[], int]) -> None:
    """Runs a load and prints its wall time."""
    started = time.perf_counter()
    num_flows = load()
    wall = time.perf_counter() - started
    print(f"{name:<48}   {wall:8.3f} s   {wall / num_flows * 1e6:.1f} us per flow")


def main() -> int:
    """Runs all loads."""
    wall = tree()
    report("ring, 1,024 ranks, 50 steps", ring)
    report("incast, 1,023 flows of distinct sizes", incast)
    report("activities on 2,048 links, one at a time", activities)
    report("activities on 2,048 links, four at a time", overlapping_activities)
    return int(wall > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
