"""The flags of `geartrain calibrate`; what it does stands in `geartrain.cli.calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = (
    "Examples:\n\n"
    "geartrain calibrate --ranks 2 --out lab.toml\n\n"
    "torchrun --nnodes 2 --nproc-per-node 8 ... -m geartrain calibrate --out lab.toml\n\n"
    "geartrain calibrate --engine emulated --cluster examples/clusters/slow-office.toml --quick"
)


def calibrate(
    ranks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="How many ranks are measured. (default: 2 on this machine, all that a launcher started, up to 8 of a "
            "cluster's devices)",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            metavar="real|emulated|simulated",
            help="real: processes of this machine, or those that torchrun started; the others need --cluster and check "
            "the measuring itself.",
        ),
    ] = "real",
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="What is emulated or simulated: a preset or a TOML file."),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help='Sizes of collectives between commas. (default: "4 KiB,64 KiB,1 MiB,16 MiB"; quick: "64 KiB,1 MiB")',
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The cluster file to write (.toml); times of operations go to .compute.json beside it."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats and sizes: seconds, and less sure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (SI units) instead of text.")] = False,
) -> None:
    """Measure what joins ranks and what they compute with; write a cluster file with every constant's origin.

    Beside each collective stands what the simulated engine makes of the file, so that you see what the fit is worth.
    """
    from geartrain.cli.calibrate import Asked
    from geartrain.cli.calibrate import calibrate as run_calibration

    asked = Asked(ranks=ranks, engine=engine, cluster=cluster, sizes=sizes, out=out, force=force, quick=quick)
    raise typer.Exit(run_calibration(asked, as_json))
