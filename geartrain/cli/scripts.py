"""`geartrain simulate` and `geartrain run`: any script written for torchrun, with a summary at its end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from geartrain.cli.output import print_json, results, tell
from geartrain.errors import ConfigurationError, RunError, ScriptError
from geartrain.record.files import check_file, write_trace
from geartrain.record.log import RunRecord
from geartrain.record.split import Split, split
from geartrain.record.summary import summarise, summary_table
from geartrain.record.text import print_whole


def simulate(
    script: str,
    args: Sequence[str],
    *,
    cluster: str,
    ranks: int,
    compute: str,
    real_clock: bool,
    trace: Path | None,
    as_json: bool,
) -> int:
    """Run a script under the virtual clock and tell what it came to; the exit code."""
    check_script(script, ranks, trace)
    from geartrain.cluster import load_cluster
    from geartrain.cost.compute import parse_compute
    from geartrain.sim.script import simulate_script

    machines, model = load_cluster(cluster), parse_compute(compute)

    def run() -> RunRecord:
        return simulate_script(script, list(args), machines, ranks, compute=model, real_clock=real_clock)

    code = run_and_tell(run, trace, as_json)
    tell(*model.report())
    return code


def run(script: str, args: Sequence[str], *, ranks: int, trace: Path | None, as_json: bool) -> int:
    """Run a script on processes of this machine and tell what it came to; the exit code."""
    check_script(script, ranks, trace)
    from geartrain.engines.real import launch_script

    return run_and_tell(lambda: launch_script(script, list(args), ranks=ranks), trace, as_json)


def check_script(script: str, ranks: int, trace: Path | None) -> None:
    """ConfigurationError when it cannot be run, or its trace not be written."""
    if not Path(script).is_file():
        raise ScriptError(f"there is no script {script!r}; give the path of a Python file written for torchrun")
    if ranks < 1:
        raise ConfigurationError(f"--ranks {ranks}: a run needs at least 1 rank")
    if trace:
        check_file(trace)


def run_and_tell(engine: Callable[[], RunRecord], trace: Path | None, as_json: bool) -> int:
    """Run a script and tell what it came to; the exit code.

    What the script prints goes to standard output, or, when that is wanted for JSON, to standard error.
    """
    try:
        if as_json:
            with _output_to_stderr():
                record = engine()
        else:
            record = engine()
    except RunError as error:
        # The error says more than a table of what came before it would; a trace shows how it came to it.
        if trace and isinstance(error.record, RunRecord):
            _write(error.record, split(error.record), trace)
        raise
    _tell(record, trace, as_json)
    return 130 if record.interrupted else 0


def _tell(record: RunRecord, trace: Path | None, as_json: bool) -> None:
    parts = split(record)
    if trace:
        _write(record, parts, trace)
    summary = summarise(record, parts)
    if as_json:
        print_json(summary)
        return
    sys.stdout.flush()
    console = results()
    print_whole(console, summary_table(summary))
    console.print(summary["sentence"], markup=False, soft_wrap=True)
    if record.interrupted:
        tell(f"the run ended early: {record.interrupted}")


def _write(record: RunRecord, parts: Split, trace: Path) -> None:
    write_trace(trace, record, parts)
    tell(f"trace: {trace} (open it at https://ui.perfetto.dev)")


@contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Let this process and those that it starts write to standard error where they mean standard output."""
    import os

    sys.stdout.flush()
    kept = os.dup(1)
    before, sys.stdout = sys.stdout, sys.stderr
    try:
        os.dup2(2, 1)
        yield
    finally:
        sys.stdout = before
        os.dup2(kept, 1)
        os.close(kept)
