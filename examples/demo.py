"""Which way of training is best on this network? Measured for real here, then simulated on networks that are not here.

Handwritten digits are trained with 4 processes on this machine, under a parameter server, four of them, both readings
of peer-to-peer, and a ring. Then the same training runs under a virtual clock on two networks with 2 to 16 workers,
each as fast as one core of this machine. Takes under three minutes on two cores; `make demo` runs it.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from geartrain.cli.comparing import Asked, Simulated, build, run
from geartrain.compare.runner import Comparison
from geartrain.compare.table import print_comparison
from geartrain.compare.verdict import verdict
from geartrain.report.page import write_report

STRATEGIES = (
    "parameter_server,parameter_server:servers=4,"
    "peer_to_peer:kind=sharded,peer_to_peer:kind=broadcast,synchronous:exchange=ring"
)
BATCH = 128
OUT = Path("runs/demo")


def compare(console: Console, heading: str, **settings: object) -> Comparison:
    """Run one grid and print its table."""
    console.print(f"\n{heading}", style="bold", soft_wrap=True)
    plain = {"task": "digits", "workload": None, "strategies": STRATEGIES, "batch": BATCH, "seed": 0, "compute": None}
    grid = build(Asked(**{**plain, **settings}))
    comparison = run(grid)
    print_comparison(console, comparison)
    if isinstance(grid.engine, Simulated):
        console.print("\n".join(grid.engine.report()), style="dim", markup=False, soft_wrap=True)
    return comparison


def main() -> int:
    """Run both parts; 1 when a run failed, 130 after Ctrl-C."""
    console = Console(highlight=False)
    parts = {
        "1. For real: 4 processes on this machine, trained until they read digits.": {
            "engine": "real",
            "cluster": "local",
            "ranks": "4",
            "steps": 100,
            "out": OUT / "real",
        },
        "2. Simulated: workers as fast as one core of this machine, on two networks (losses are those of few steps).": {
            "engine": "simulated",
            "cluster": "ethernet-1g,ethernet-10g",
            "ranks": "2,4,8,16",
            "steps": 3,
            "compute": "measured",
            "out": OUT / "simulated",
        },
    }
    comparisons = []
    for heading, settings in parts.items():
        comparisons.append(compare(console, heading, **settings))
        if comparisons[-1].interrupted:
            return 130
    console.print(f"\n{verdict(comparisons[-1].results)}", style="bold", markup=False, soft_wrap=True)
    console.print(f"Every run's numbers and timeline (for ui.perfetto.dev) lie below {OUT}.", style="dim")
    console.print(f"Report: {write_report(OUT)}", soft_wrap=True)
    return 1 if any(comparison.failed for comparison in comparisons) else 0


if __name__ == "__main__":
    raise SystemExit(main())
