"""The flags of `geartrain calibrate`; what it does stands in `geartrain.cli.calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EPILOG = (
    "Examples:\n\n"
    "geartrain calibrate --ranks 2 --out lab.toml\n\n"
    "torchrun --nnodes 2 --nproc-per-node 8 ... -m geartrain calibrate --out lab.toml\n\n"
    "geartrain calibrate --profile here.json\n\n"
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
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measure the kernels of this machine's device instead, and write them to this profile (.json).",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --profile: read a trace of torch.profiler instead of measuring."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="With --trace: what ran there, a preset or a TOML file.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repeats and sizes: seconds, and less sure.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (SI units) instead of text.")] = False,
) -> None:
    """Measure what joins ranks and what they compute with; write a cluster file with every constant's origin.

    Beside each collective stands what the simulated engine makes of the file, so that you see what the fit is worth.
    """
    if profile is not None or trace is not None or device is not None:
        given = {"--ranks": ranks, "--cluster": cluster, "--sizes": sizes, "--out": out}
        others = [name for name, value in given.items() if value is not None] + ["--engine"] * (engine != "real")
        raise typer.Exit(_profile(profile, trace, device, tuple(others), force, quick, as_json))
    from geartrain.cli.calibrate import Asked
    from geartrain.cli.calibrate import calibrate as run_calibration

    asked = Asked(ranks=ranks, engine=engine, cluster=cluster, sizes=sizes, out=out, force=force, quick=quick)
    raise typer.Exit(run_calibration(asked, as_json))


def _profile(
    out: Path | None,
    trace: Path | None,
    device: str | None,
    others: tuple[str, ...],
    force: bool,
    quick: bool,
    as_json: bool,
) -> int:
    from geartrain.cli.profiling import Asked, make_profile
    from geartrain.errors import ConfigurationError

    if out is None:
        raise ConfigurationError("--trace and --device make a profile; give --profile FILE.json to write it to")
    asked = Asked(out=out, trace=trace, device=device, others=others, force=force, quick=quick)
    return make_profile(asked, as_json)
