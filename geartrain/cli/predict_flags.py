"""The flags of `geartrain predict`; what it does stands in `geartrain.cli.predicting`."""

from __future__ import annotations

from typing import Annotated

import typer

EPILOG = (
    "Examples:\n\n"
    "geartrain predict --workload bert-large --cluster ethernet-10g --ranks 1,2,8,16\n\n"
    "geartrain predict --workload resnet50 --cluster ethernet-10g,ethernet-100g --ranks 16 "
    "--strategies synchronous,dear,parameter_server:servers=4 --json\n\n"
    "geartrain predict --task digits --ranks 2,4 --simulate"
)

Workload = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The shape of a model: geartrain workloads, NAME:dtype=bf16,checkpointing=blocks, hf:ID or "
        "FILE.py:FUNCTION.",
        show_default=False,
    ),
]
Task = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model of a task (geartrain tasks, or FILE.py:CLASS).")
]
Batch = Annotated[
    int | None, typer.Option(metavar="N", help="Global batch: samples of all workers, the same in all cells.")
]
BatchPerRank = Annotated[
    int | None, typer.Option(metavar="N", help="Samples of each worker. (default: 32, unless --batch is given)")
]
Compute = Annotated[
    str,
    typer.Option(
        metavar="MODEL",
        help='What prices computing: roofline, roofline:efficiency=0.5, "constant:10 us" a kernel, table:FILE, '
        "profile:FILE, measured (of a task, on this machine).",
    ),
]
Simulate = Annotated[
    bool, typer.Option("--simulate", help="Simulate a few steps on shapes in place of the closed form.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON (SI units) instead of text.")]


def predict(
    workload: Workload = None,
    task: Task = None,
    cluster: Annotated[
        str, typer.Option(metavar="LIST", help="Presets (geartrain clusters) or TOML files between commas.")
    ] = "local",
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Strategies between commas. (default: synchronous; one worker alone: single)"
        ),
    ] = None,
    ranks: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of workers between commas; servers come on top.")
    ] = "1,2,4,8",
    batch: Batch = None,
    batch_per_rank: BatchPerRank = None,
    compute: Compute = "roofline",
    simulate: Simulate = False,
    as_json: Json = False,
) -> None:
    """Predict what a step takes and why, what it needs of memory, energy and money, and what would help most.

    Exit code 1 when a cell cannot be predicted or does not fit into memory, 2 when what was asked for cannot be.
    """
    from geartrain.cli.predicting import predict as run_predictions
    from geartrain.cli.questions import Asked

    asked = Asked(
        workload=workload,
        task=task,
        cluster=cluster,
        strategies=strategies,
        ranks=ranks,
        batch=batch,
        batch_per_rank=batch_per_rank,
        compute=compute,
    )
    raise typer.Exit(run_predictions(asked, simulate, as_json))
