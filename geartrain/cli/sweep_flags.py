"""The flags of `geartrain sweep`; what it does stands in `geartrain.cli.sweeping`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain.cli.predict_flags import Batch, BatchPerRank, Compute, Json, Simulate, Task, Workload

EPILOG = (
    "Examples:\n\n"
    "geartrain sweep --workload vgg16 --strategies synchronous,parameter_server:servers=4,dear "
    "--vary links.rate=1Gbit/s..100Gbit/s --ranks 16 --out runs/vgg16\n\n"
    "geartrain sweep --workload resnet50 --strategies synchronous,dear --vary links.rate=1Gbit/s..100Gbit/s:12 "
    "--vary ranks=2..256\n\n"
    "geartrain sweep --workload resnet50 --vary strategy.bucket_size=1MiB..64MiB --ranks 8 --json"
)


def sweep(
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUES",
            help="What is varied, once or twice: links.rate=1Gbit/s..100Gbit/s (25 values; :N for N of them), "
            "ranks=2..64 (doubled), batch=32,64, strategy.SETTING=..., or any place of a cluster file.",
            show_default=False,
        ),
    ],
    workload: Workload = None,
    task: Task = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A preset (geartrain clusters) or a TOML file.")
    ] = "ethernet-10g",
    strategies: Annotated[
        str, typer.Option(metavar="LIST", help="Strategies between commas.")
    ] = "synchronous,parameter_server,dear",
    ranks: Annotated[int, typer.Option(metavar="N", help="Workers, unless they are varied; servers come on top.")] = 8,
    batch: Batch = None,
    batch_per_rank: BatchPerRank = None,
    compute: Compute = "roofline",
    simulate: Simulate = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write index.html, curves.svg, map.svg, sweep.json and sweep.csv there."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Vary one or two things: curves, a map of who wins where, break-even points, and changes without effect.

    Exit code 1 when nothing could be predicted at some point, 2 when what was asked for cannot be.
    """
    from geartrain.cli.questions import Asked
    from geartrain.cli.sweeping import sweep as run_sweep

    asked = Asked(
        workload=workload,
        task=task,
        cluster=cluster,
        strategies=strategies,
        ranks=str(ranks),
        batch=batch,
        batch_per_rank=batch_per_rank,
        compute=compute,
    )
    raise typer.Exit(run_sweep(asked, vary, simulate, out, as_json))
