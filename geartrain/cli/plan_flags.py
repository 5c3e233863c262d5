"""The flags of `geartrain plan`; what it does stands in `geartrain.cli.planning`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain.cli.predict_flags import Compute, Json, Task, Workload

EPILOG = (
    "Examples:\n\n"
    "geartrain plan --workload gpt2-xl --cluster dgx-a100 --ranks 64\n\n"
    "geartrain plan --workload resnet50 --cluster ethernet-10g --ranks 16 --batch 512 --out runs/plan\n\n"
    "geartrain plan --workload vgg16 --cluster ethernet-1g --ranks 32 --efficiency 0.8 --statistics runs/digits"
)


def plan(
    workload: Workload = None,
    task: Task = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A preset (geartrain clusters) or a TOML file.")
    ] = "ethernet-10g",
    ranks: Annotated[int, typer.Option(metavar="N", help="Workers, at most; servers come on top.")] = 8,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Global batch: samples of all workers. (default: what memory and throughput say; of a task, 32 each)",
            show_default=False,
        ),
    ] = None,
    efficiency: Annotated[
        float,
        typer.Option(
            metavar="X", help="Take no more workers than have this share, 0 to 1, of the throughput of one alone."
        ),
    ] = 0.0,
    statistics: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Let methods that change what is learned compete, with their steps to a target: a folder of "
            "compare --task --target-loss (or --target-metric) --out.",
        ),
    ] = None,
    compute: Compute = "roofline",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plan.py, plan.toml, plan.sh and plan.json there.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Find batch, workers, servers, strategy and settings for a model on a cluster, and say why.

    Exit code 2 when what was asked for cannot be, or nothing fits into memory.
    """
    from geartrain.cli.planning import Asked
    from geartrain.cli.planning import plan as run_plan

    asked = Asked(
        workload=workload,
        task=task,
        cluster=cluster,
        ranks=ranks,
        batch=batch,
        efficiency=efficiency,
        statistics=statistics,
        compute=compute,
        out=out,
    )
    raise typer.Exit(run_plan(asked, as_json))
