"""Our collectives against gloo's on this machine, by size: processes of one host, so bytes go through memory.

    python benchmarks/collectives.py [--ranks 2,4] [--sizes 4kB,64kB,1MB,16MB] [--repeats 7]

Prints a table for each kind and number of ranks, in milliseconds: the median over repeats of the slowest rank's time,
each repeat after a barrier. Load and cores are printed with it: with more ranks than cores, or beside other work,
small sizes measure the host's scheduler.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

from geartrain.cluster import load_cluster
from geartrain.collectives.choice import Choice, measure
from geartrain.engines.real import RealEngine
from geartrain.runtime.context import Context
from geartrain.units import format_size, parse_size

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")


@dataclass(frozen=True)
class Measure:
    """`main(ctx)`: every algorithm of every kind."""

    sizes: tuple[int, ...]
    repeats: int

    def __call__(self, ctx: Context) -> Choice:
        return measure(ctx, KINDS, self.sizes, repeats=self.repeats)


def show(choice: Choice, ranks: int) -> None:
    for kind, sizes in choice.seconds.items():
        names = list(next(iter(sizes.values())))
        print(f"\n### {kind}, {ranks} ranks (ms)\n")
        print("| size | " + " | ".join("gloo" if name == "native" else name for name in names) + " | fastest |")
        print("|---:|" + "---:|" * len(names) + "---|")
        for nbytes, seconds in sizes.items():
            times = " | ".join(f"{seconds[name] * 1e3:.2f}" for name in names)
            fastest = choice.fastest(kind, nbytes)
            print(f"| {format_size(nbytes)} | {times} | {'gloo' if fastest == 'native' else fastest} |")
    if "reduce_scatter" in choice.seconds:
        ratios = [
            f"{format_size(nbytes)} {seconds['native'] / choice.seconds['all_reduce'][nbytes]['native']:.2f}"
            for nbytes, seconds in choice.seconds["reduce_scatter"].items()
        ]
        print(f"\ngloo's reduce-scatter as a multiple of its all-reduce of the same bytes: {', '.join(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--sizes", default="4 kB,64 kB,1 MB,16 MB")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    sizes = tuple(int(parse_size(text)) for text in options.sizes.split(","))
    for ranks in map(int, options.ranks.split(",")):
        before = os.getloadavg()[0]
        record = RealEngine().run(Measure(sizes, options.repeats), load_cluster("ethernet-1g"), workers=ranks)
        show(record.results[0], ranks)
        print(
            f"\n{os.cpu_count()} cores; load before {before:.1f}, after {os.getloadavg()[0]:.1f}; {record.wall:.0f} s"
        )


if __name__ == "__main__":
    main()
