"""The commands and their flags. A test holds the list of both; what a command does stands in a module of its own.

Modules that load torch are imported when a command runs, so that help is there at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from geartrain.cli import calibrate_flags, plan_flags, predict_flags, sweep_flags

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "One training strategy, written once, on any cluster: real, emulated or simulated.\n\n"
        "compare   which way of training is best for this model on these machines?\n\n"
        "predict   how long is a step, does it fit, what bounds it? In a second, without running anything.\n\n"
        "sweep     where is the break-even, and which strategy wins at which rate, size or number of machines?\n\n"
        "plan      which batch, workers, servers, strategy and settings shall I take, and why?\n\n"
        "simulate  how long would my script take on those machines, and why?\n\n"
        "run       the same script for real on this machine, with the same summary.\n\n"
        "emulate   the same script for real on those machines' wires, built on this one.\n\n"
        "calibrate what are those machines' constants? Measured, into a cluster file.\n\n"
        "report    one page of what runs left in their folders.\n\n"
        "validate  how far can all of this be believed?"
    ),
)

# Everything after the script is the script's own, also what looks like one of our flags.
_SCRIPT = {"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True}

Json = Annotated[bool, typer.Option("--json", help="Print JSON (SI units) instead of text.")]
Trace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="FILE", help="Write a Chrome trace (.json or .json.gz) for ui.perfetto.dev."),
]
Script = Annotated[
    str, typer.Argument(metavar="SCRIPT", help="A Python file written for torchrun.", show_default=False)
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ARGS]...", help="What follows goes to the script untouched.", show_default=False),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        from geartrain import __version__

        typer.echo(f"geartrain {__version__}")
        raise typer.Exit


@app.command(
    epilog=(
        "Examples:\n\n"
        "geartrain compare --task digits --engine real --ranks 2,4 --steps 100\n\n"
        "geartrain compare --task digits --cluster ethernet-1g,ethernet-10g --ranks 2,4,8\n\n"
        "geartrain compare --task characters --target-loss 2.5 --checkpoint-every 50 --jobs 2 --out runs/a\n\n"
        "geartrain compare --resume runs/a\n\n"
        "geartrain compare --workload resnet50 --cluster ethernet-10g --ranks 2,4,8,16 "
        "--strategies parameter_server:servers=4,peer_to_peer:kind=broadcast,synchronous:exchange=ring --json\n\n"
        "A strategy is NAME or NAME:KEY=VALUE,KEY=VALUE; between commas, an item with = and no : before it belongs to "
        "the strategy on its left. `geartrain strategies` lists the names."
    )
)
def compare(
    context: typer.Context,
    task: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Train a task on real data (geartrain tasks, or FILE.py:CLASS)."),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Go through the motions of a model's shape, simulated (geartrain workloads)."
        ),
    ] = None,
    strategies: Annotated[
        str, typer.Option(metavar="LIST", help="Strategies between commas.")
    ] = "parameter_server,peer_to_peer,synchronous",
    cluster: Annotated[
        str, typer.Option(metavar="LIST", help="Presets (geartrain clusters) or TOML files between commas.")
    ] = "local",
    ranks: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of workers between commas; servers come on top.")
    ] = "2,4",
    engine: Annotated[
        str,
        typer.Option(
            metavar="real|simulated|emulated",
            help="real: processes on this machine; simulated: virtual time; emulated: processes here, joined by wires "
            "of the cluster's rates.",
        ),
    ] = "simulated",
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Training steps. (default: 50 for a task, at most 500 to a target, 3 for a workload)"
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Global batch: samples per update over all workers, the same in all cells. "
            "(default: 32 for each worker of the largest number)",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of weights, data and the clusters' jitter.")] = 0,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help='What computing costs in virtual time: roofline, measured, "constant:10 us" an operation, table:FILE, '
            "profile:FILE. "
            "(default: measured for a task on cluster local, roofline otherwise)",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Leave run.json, steps.jsonl and trace.json.gz of every cell in a folder below."
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on with the grid in DIR, with its options: finished runs are read, others start from their last "
            "checkpoint.",
        ),
    ] = None,
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", help="Steps between two checkpoints of a run, kept below --out; 0: none.")
    ] = 0,
    target_loss: Annotated[
        float | None, typer.Option(metavar="X", help="Stop a run when the mean loss of 10 steps is at most X.")
    ] = None,
    target_metric: Annotated[
        float | None,
        typer.Option(metavar="X", help="Stop a run when the task's main metric is X or better, see --evaluate-every."),
    ] = None,
    evaluate_every: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Steps between evaluations on worker 0. (default: 10 with --target-metric, else only at the end)",
            show_default=False,
        ),
    ] = 0,
    charge_evaluation: Annotated[
        bool, typer.Option("--charge-evaluation", help="Let evaluations on the way take time, as training does.")
    ] = False,
    jobs: Annotated[
        int, typer.Option(metavar="N", help="Simulated runs at a time, in processes of their own if more than 1.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Run a grid of strategies, clusters and numbers of workers; one table, closed forms beside it.

    Exit code 1 when a cell failed (the others go on), 2 when what was asked for cannot be, 130 after Ctrl-C.
    """
    from geartrain.cli.comparing import Asked
    from geartrain.cli.comparing import compare as run_comparison

    asked = Asked(
        task=task,
        workload=workload,
        strategies=strategies,
        cluster=cluster,
        ranks=ranks,
        engine=engine,
        steps=steps,
        batch=batch,
        seed=seed,
        compute=compute,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        target_loss=target_loss,
        target_metric=target_metric,
        evaluate_every=evaluate_every,
        charge_evaluation=charge_evaluation,
        jobs=jobs,
    )
    raise typer.Exit(run_comparison(asked, as_json, _given(context)))


@app.command(
    context_settings=_SCRIPT,
    epilog=(
        "Examples:\n\n"
        "geartrain simulate --cluster ethernet-10g --ranks 8 train.py --epochs 2\n\n"
        "geartrain simulate --ranks 4 --trace run.json.gz train.py"
    ),
)
def simulate(
    script: Script,
    args: Arguments = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A preset (geartrain clusters) or a TOML file.")
    ] = "local",
    ranks: Annotated[int, typer.Option(metavar="N", help="How many ranks the script runs on.")] = 4,
    trace: Trace = None,
    compute: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help='What computing costs in virtual time: roofline, "constant:10 us" per operation, table:FILE, '
            "profile:FILE.",
        ),
    ] = "roofline",
    real_clock: Annotated[
        bool, typer.Option("--real-clock", help="Leave the script's own clock alone: time.time() stays real.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a script written for torchrun under a virtual clock, and say where its time goes.

    The tensors are real, the time is computed. Give our flags before SCRIPT.
    """
    from geartrain.cli import scripts

    raise typer.Exit(
        scripts.simulate(
            script,
            args or [],
            cluster=cluster,
            ranks=ranks,
            compute=compute,
            real_clock=real_clock,
            trace=trace,
            as_json=as_json,
        )
    )


@app.command(
    context_settings=_SCRIPT,
    epilog=(
        "Examples:\n\n"
        "geartrain emulate --cluster slow-link.toml --ranks 4 train.py --epochs 2\n\n"
        "geartrain emulate --clean"
    ),
)
def emulate(
    script: Annotated[
        str | None, typer.Argument(metavar="[SCRIPT]", help="A Python file written for torchrun.", show_default=False)
    ] = None,
    args: Arguments = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="A preset (geartrain clusters) or a TOML file.")
    ] = "ethernet-1g",
    ranks: Annotated[int, typer.Option(metavar="N", help="How many ranks the script runs on.")] = 4,
    trace: Trace = None,
    compute: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Sleep for what computing would take on the cluster's devices: roofline, "
            '"constant:10 us" per operation, table:FILE, profile:FILE. (default: it takes what this machine takes)',
        ),
    ] = None,
    torchrun: Annotated[
        bool, typer.Option("--torchrun", help="Start ranks by a torchrun on each node: slower than forking them.")
    ] = False,
    clean: Annotated[
        bool, typer.Option("--clean", help="First remove what stale runs have left; without SCRIPT, only that.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a script written for torchrun on an emulated cluster: real processes and sockets on shaped wires, here.

    Linux only; as root, or as a user who may make namespaces. Give our flags before SCRIPT.
    """
    from geartrain.cli import emulate as emulating

    raise typer.Exit(
        emulating.emulate(
            script,
            args or [],
            cluster=cluster,
            ranks=ranks,
            compute=compute,
            torchrun=torchrun,
            clean=clean,
            trace=trace,
            as_json=as_json,
        )
    )


@app.command(context_settings=_SCRIPT, epilog="Example:\n\ngeartrain run --ranks 2 train.py --epochs 2")
def run(
    script: Script,
    args: Arguments = None,
    ranks: Annotated[int, typer.Option(metavar="N", help="How many processes the script runs on.")] = 2,
    trace: Trace = None,
    as_json: Json = False,
) -> None:
    """Run a script written for torchrun on this machine, and say where its time goes. Give our flags before SCRIPT."""
    from geartrain.cli import scripts

    raise typer.Exit(scripts.run(script, args or [], ranks=ranks, trace=trace, as_json=as_json))


@app.command(
    epilog=(
        "Examples:\n\n"
        "geartrain validate --quick\n\n"
        "geartrain validate --only network,hw-scaling\n\n"
        "geartrain validate --out runs/validation\n\n"
        "geartrain validate --resume runs/validation"
    )
)
def validate(
    quick: Annotated[
        bool, typer.Option("--quick", help="Few random networks and one small grid, in minutes; all published figures.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Sections (network, published, emulated, real) or papers with figures (hw-scaling) between commas. "
            "(default: all sections)",
        ),
    ] = None,
    files: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder with the grid and the published figures. (default: validation/ of the project's checkout)",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Leave validation.json, and the files of every run, in a folder.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Go on with the validation in DIR: cells that have ended there are read."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how far predictions can be believed: simulated against emulated and real runs, and published figures.

    Exit code 0 when all bars are reached, 1 when something is missed, 2 when what was asked for cannot be.
    """
    from geartrain.cli.validate import Asked
    from geartrain.cli.validate import validate as run_validation

    asked = Asked(quick=quick, only=only, files=files, out=out, resume=resume)
    raise typer.Exit(run_validation(asked, as_json))


@app.command(epilog="Examples:\n\ngeartrain report runs/a\n\ngeartrain report runs/real runs/simulated --out both.html")
def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            help="Folders that compare --out or validate --out wrote: runs, grids or validations.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The page to write. (default: report.html in DIR, or here when there are several)"
        ),
    ] = None,
) -> None:
    """Make one self-contained page of what runs left: words, table, figures, timelines. Prints its path."""
    from geartrain.cli import report as reporting

    raise typer.Exit(reporting.report(folders, out))


app.command(epilog=predict_flags.EPILOG)(predict_flags.predict)
app.command(epilog=sweep_flags.EPILOG)(sweep_flags.sweep)
app.command(epilog=plan_flags.EPILOG)(plan_flags.plan)
app.command(epilog=calibrate_flags.EPILOG)(calibrate_flags.calibrate)


@app.command(epilog="Examples:\n\ngeartrain strategies\n\ngeartrain strategies parameter_server:servers=4")
def strategies(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME[:KEY=VALUE,...]]", help="Show the rule, cost and use of this one.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the strategies, with their papers, or show what one does, what it costs and when to use it."""
    if name is None:
        _list("strategies", as_json)
        return
    from geartrain.cli.one_strategy import show

    show(name, as_json)


@app.command(epilog="Examples:\n\ngeartrain clusters\n\ngeartrain clusters ethernet-10g")
def clusters(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="Show this one, with its constants' origins.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the presets of clusters, or show the constants of one, and where its numbers come from."""
    if name is None:
        _list("clusters", as_json)
        return
    from geartrain.cli.one_cluster import show

    show(name, as_json)


@app.command()
def tasks(as_json: Json = False) -> None:
    """List the tasks with real data."""
    _list("tasks", as_json)


@app.command()
def workloads(as_json: Json = False) -> None:
    """List the shapes of models that can be simulated without their numbers."""
    _list("workloads", as_json)


def _given(context: typer.Context) -> frozenset[str]:
    """The parameters that stood on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(name for name, source in sources.items() if source and source.name == "COMMANDLINE")


def _list(kind: str, as_json: bool) -> None:
    from geartrain.cli.lists import show

    show(kind, as_json)
