"""Which cells can be believed, and whether what they say reaches the bars.

    bandwidth term    seconds per step in which the busiest link carries bytes, at its full rate
    trustworthy       bandwidth term >= factor * (collective of 4-byte messages), and host busy < its limit
    error             simulated / measured - 1, of the step time; of a phase, the difference / the measured step time
    tau               Kendall's tau-b of the measured and the simulated step times of the strategies of a group
    same order        no two strategies of a group whose measured times differ by more than a tie are simulated the
                      other way round

Bars hold for the trustworthy cells of a grid. A cell that failed has no error and counts as not trustworthy.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from geartrain.validation.cells import Outcome
from geartrain.validation.grid import Bars, Trust


@dataclass(frozen=True)
class Bar:
    """One thing to be reached.

    Attributes:
        grid: whose cells it holds for.
        what: in words, with the limit.
        found: the figure; None when there was nothing to take it of.
        worst: what the figure is owed to, where that can be named.
    """

    grid: str
    what: str
    found: float | None
    met: bool
    worst: str = ""

    def __str__(self) -> str:
        found = "nothing to judge" if self.found is None else f"{self.found:.3g}"
        owed = f" ({self.worst})" if self.worst else ""
        return f"{self.grid}: {self.what}: {found}{owed}{'' if self.met else '   MISSED'}"


def why_not(outcome: Outcome, trust: Trust) -> str | None:
    """Why a cell is not trustworthy; None if it is, or ran on this machine itself, where the rule has no meaning."""
    if outcome.failed or outcome.step_error is None:
        return "failed"
    if outcome.case.engine == "real":
        return None
    reasons = []
    if outcome.bandwidth_term is None or outcome.small_collective is None:
        reasons.append("unknown network")
    elif outcome.bandwidth_term < trust.factor * outcome.small_collective:
        ratio = outcome.bandwidth_term / outcome.small_collective
        reasons.append(f"bytes take {ratio:.1f} times a collective of 4-byte messages")
    if outcome.host_busy is None or outcome.host_busy >= trust.host_busy:
        busy = "unknown" if outcome.host_busy is None else f"{outcome.host_busy:.0%}"
        reasons.append(f"host busy {busy}")
    return "host-bound: " + ", ".join(reasons) if reasons else None


def kendall(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Kendall's tau-b, in [-1, 1]; None where one side has fewer than two different values.

    (concordant - discordant) / sqrt((pairs untied in x) * (pairs untied in y))
    """
    pairs = list(itertools.combinations(zip(xs, ys, strict=True), 2))
    signs = [(_sign(a[0] - b[0]), _sign(a[1] - b[1])) for a, b in pairs]
    untied_x, untied_y = sum(x != 0 for x, _ in signs), sum(y != 0 for _, y in signs)
    if not (untied_x and untied_y):
        return None
    return sum(x * y for x, y in signs) / math.sqrt(untied_x * untied_y)


def swapped(measured: Sequence[float], simulated: Sequence[float], tie: float) -> list[tuple[int, int]]:
    """Pairs (i, j) in which i was measured faster by more than `tie`, and j simulated faster."""
    return [
        (i, j)
        for i, j in itertools.permutations(range(len(measured)), 2)
        if measured[j] > measured[i] * (1 + tie) and simulated[j] < simulated[i]
    ]


def judge(outcomes: Sequence[Outcome], trust: Trust, bars: Bars) -> list[Bar]:
    """The bars of every grid that is judged, in order."""
    found: list[Bar] = []
    for grid in dict.fromkeys(one.case.grid for one in outcomes if one.case.judged):
        here = [one for one in outcomes if one.case.grid == grid]
        found += _judge_grid(grid, here, [one for one in here if why_not(one, trust) is None], bars)
    return found


def _judge_grid(grid: str, all_cells: Sequence[Outcome], believed: Sequence[Outcome], bars: Bars) -> list[Bar]:
    share = len(believed) / len(all_cells)
    errors = [(abs(one.step_error), str(one.case)) for one in believed if one.step_error is not None]
    median = statistics.median(error for error, _ in errors) if errors else None
    worst, owed = max(errors, default=(None, ""))
    pairs = [line for cells in grouped(believed).values() for line in _swaps(cells, bars.tie)]
    failed = [str(one.case) for one in all_cells if one.failed]
    return [
        Bar(grid, f"share of trustworthy cells, at least {bars.trustworthy:g}", share, share >= bars.trustworthy),
        Bar(grid, f"median step-time error, at most {bars.median:g}", median, _within(median, bars.median)),
        Bar(grid, f"worst step-time error, at most {bars.worst:g}", worst, _within(worst, bars.worst), owed),
        Bar(
            grid,
            "strategies in another order, none",
            len(pairs) if errors else None,
            bool(errors) and not pairs,
            "; ".join(pairs),
        ),
        Bar(grid, "cells that failed, none", len(failed), not failed, "; ".join(failed)),
    ]


def grouped(outcomes: Iterable[Outcome]) -> dict[tuple[str, str, str, int], list[Outcome]]:
    """Cells that differ by nothing but the strategy, together."""
    groups: dict[tuple[str, str, str, int], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.case.group, []).append(one)
    return groups


def tau_of(cells: Sequence[Outcome]) -> float | None:
    """Rank correlation of the strategies of a group; cells that failed are left out."""
    return kendall(*_step_times(cells)[1:])


def _swaps(cells: Sequence[Outcome], tie: float) -> list[str]:
    ran, measured, simulated = _step_times(cells)
    return [f"{ran[i].case} and {ran[j].case.strategy}" for i, j in swapped(measured, simulated, tie)]


def _step_times(cells: Sequence[Outcome]) -> tuple[list[Outcome], list[float], list[float]]:
    """The cells that ran, with their measured and simulated step times."""
    ran = [(one, one.measured.step_time, one.simulated.step_time) for one in cells if one.measured and one.simulated]
    return [one for one, _, _ in ran], [measured for _, measured, _ in ran], [simulated for _, _, simulated in ran]


def _within(found: float | None, limit: float) -> bool:
    return found is not None and found <= limit


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
