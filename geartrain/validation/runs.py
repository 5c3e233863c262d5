"""The part of a validation that runs: every case twice, and what that says of the simulator, as a section."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from geartrain.units import format_time
from geartrain.validation.cells import Outcome, Runner, check_possible, estimate
from geartrain.validation.grid import Case, GridFile
from geartrain.validation.section import Section, Value
from geartrain.validation.verdict import grouped, judge, tau_of, why_not

COLUMNS = (
    "grid",
    "task",
    "cluster",
    "workers",
    "strategy",
    "simulated [s]",
    "measured [s]",
    "step error [%]",
    "compute [%]",
    "exposed comm. [%]",
    "wait [%]",
    "bytes / 4 B",
    "host busy [%]",
    "trustworthy",
)

NOTE = """\
Step times: mean after the first third of steps, of each step's slowest worker. Step error: simulated / measured - 1.
Compute, exposed comm., wait: means over all workers, simulated - measured, as a share of the measured step.
Bytes / 4 B: seconds in which the busiest link carries a step's bytes / an all-reduce of 4 bytes per message."""


class Progress(Protocol):
    """Told what runs and what is done; a bar, lines, or nothing."""

    def start(self, what: str) -> None: ...

    def done(self, what: str) -> None: ...


@dataclass
class Runs:
    """What came of the cases; `interrupted` once the user stopped it."""

    outcomes: list[Outcome]
    interrupted: bool = False


def run_cases(cases: Sequence[Case], out: Path | None, resume: bool, progress: Progress) -> Runs:
    """Run every case, one after another; Ctrl-C ends it with what there is."""
    runner, runs = Runner(out, resume), Runs([])
    left = _TimeLeft(cases, lambda case: runner.known(case) is not None)
    try:
        for case in cases:
            progress.start(f"{case} ({left})")
            known = runner.known(case)
            outcome = known or runner.run(case)
            if outcome.interrupted:
                runs.interrupted = True
                break
            runs.outcomes.append(outcome)
            left.ended(case)
            progress.done(f"{describe(outcome)}{' (read)' if known else ''}; {left}")
    except KeyboardInterrupt:
        runs.interrupted = True
    finally:
        runner.close()
    return runs


class _TimeLeft:
    """How long the cases to come will take: by their closed forms, corrected by how long those so far really took."""

    def __init__(self, cases: Sequence[Case], known: Callable[[Case], bool]) -> None:
        self._estimates = {case.name: 0.0 if known(case) else estimate(case) for case in cases}
        self._done, self._begun = 0.0, time.monotonic()

    def ended(self, case: Case) -> None:
        self._done += self._estimates.pop(case.name)

    def __str__(self) -> str:
        pace = (time.monotonic() - self._begun) / self._done if self._done else 1.0
        seconds = pace * sum(self._estimates.values())
        return f"about {format_time(seconds) if seconds < 90 else f'{seconds / 60:.0f} min'} left"


def describe(outcome: Outcome) -> str:
    """A case and what came of it, in one line."""
    if outcome.failed or outcome.simulated is None or outcome.measured is None or outcome.step_error is None:
        return f"{outcome.case}: failed: {(outcome.failed or 'no step was finished').splitlines()[0]}"
    times = f"{format_time(outcome.simulated.step_time)} simulated, {format_time(outcome.measured.step_time)} measured"
    return f"{outcome.case}: {times}, {outcome.step_error:+.1%}"


def runs_section(engine: str, file: GridFile, outcomes: Sequence[Outcome]) -> Section:
    """The errors of all cells, the order of strategies, and the bars that were missed."""
    bars = judge(outcomes, file.trust, file.bars)
    taus = [(group, tau_of(cells)) for group, cells in grouped(outcomes).items()]
    missed = [bar for bar in bars if not bar.met]
    return Section(
        title=f"Simulated against {engine}: error per phase",
        columns=COLUMNS,
        rows=[_row(one, why_not(one, file.trust)) for one in outcomes],
        notes=[
            NOTE,
            *(f"{one.case}: {one.failed}" for one in outcomes if one.failed),
            *(str(bar) for bar in bars),
            *(
                f"order of strategies, {' '.join(map(str, group))} workers: Kendall's tau {tau:.2f}"
                for group, tau in taus
                if tau is not None
            ),
        ],
        missed=len(missed),
        details={
            "cells": [_judged(one, why_not(one, file.trust)) for one in outcomes],
            "bars": [vars(bar) for bar in bars],
            "order": [{"group": list(group), "tau": tau} for group, tau in taus],
        },
    )


def _judged(outcome: Outcome, why_not: str | None) -> dict[str, Any]:
    trustworthy = why_not is None if outcome.case.engine == "emulated" else None
    return {**outcome.as_json(), "trustworthy": trustworthy, "why_not": why_not}


def not_possible(engine: str) -> Section | None:
    """A section that says why an engine cannot run here; None if it can."""
    reason = check_possible(engine)
    if reason is None:
        return None
    return Section(
        title=f"Simulated against {engine}: error per phase",
        columns=COLUMNS,
        rows=[],
        notes=[f"not run, as nothing can be {engine} here: {reason}"],
    )


def _row(one: Outcome, reason: str | None) -> list[Value]:
    case, errors = one.case, one.errors
    ratio = one.bandwidth_term / one.small_collective if one.bandwidth_term and one.small_collective else None
    return [
        case.grid,
        case.task,
        case.cluster.name,
        case.workers,
        str(case.strategy),
        one.simulated.step_time if one.simulated else None,
        one.measured.step_time if one.measured else None,
        *(errors.get(phase) for phase in ("step_time", "compute", "exposed_communication", "wait")),
        ratio,
        one.host_busy,
        reason or ("yes" if case.engine == "emulated" else "-"),
    ]
