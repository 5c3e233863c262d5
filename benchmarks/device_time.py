"""Device time predicted and measured on this machine: single operations by class, and whole steps from end to end.

    python benchmarks/device_time.py [--quick] [--cases digits,gpt2-1] [--ranks 1,2,4] [--clock cpu] [--results]

Predicted, and held against the median step of real runs, of which nothing is fitted to:

    curves only      kernels by class, as `measure_profile` finds them on grids of shapes
    + operations     every distinct operation of the step, measured alone (`measure_operations`); the step is never run

All processes are told to keep memory that they have been given (`KEPT`). By itself glibc's allocator gives blocks of
some megabytes back in one process and not in the next, from what happens to lie beside them: a step of packages-text
then has 1,330 page faults or none, and takes 4.5 or 3.4 ms.

With 2 and 4 processes the cluster has what they take from each other, and what an all-reduce adds, measured.
Predicting and measuring take turns, each in a fresh process, and the median over the rounds counts.

Bars, of `+ operations`: a mean error of 8 % and a worst of 15 % with one process, of 10 % and 20 % with several. Where
one process runs, `cpu / wall` far below one says that other programs took the core: then errors are load and not
prediction. `--clock cpu` prices by the CPU time of a thread and compares with the CPU time of the step (one process
only), which a busy machine leaves almost alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.calibration.collectives import joined
from geartrain.calibration.effort import QUICK, USUAL
from geartrain.calibration.kernels import measure_profile
from geartrain.calibration.operations import measure_operations
from geartrain.calibration.overheads import PHASES
from geartrain.calibration.recording import Recorded, record_step
from geartrain.calibration.together import TimeSharing, curve_asks, curves, joined_sharing
from geartrain.cluster import Cluster, local_cluster
from geartrain.cluster.measured import Measurements
from geartrain.cost.profile import Profile, Profiled
from geartrain.cost.table import Table
from geartrain.engines.real import RealEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.models.gpt2 import GPT2Size, gpt2
from geartrain.models.resnet import resnet18
from geartrain.record.means import mean_step
from geartrain.record.split import split
from geartrain.runtime.context import Context
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.strategies import parse
from geartrain.tasks import get_task
from geartrain.tasks.data import DealtBatches

BARS = {1: (0.08, 0.15), 2: (0.10, 0.20), 4: (0.10, 0.20)}
SIMULATED = 3  # steps, of which the first is left out
PATIENCE = 240.0  # seconds of one part
TABLES = 3  # of each operation the one in the middle counts
LENGTH = 128  # tokens of a sample of GPT-2
KEPT = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),  # the most it takes
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}


@dataclass(frozen=True)
class ResNet18(Task):
    """ResNet-18 on random pictures of 224x224."""

    name = "resnet18"
    source = "random pictures"
    sample_kind = "pictures"

    def model(self, seed: int) -> nn.Module:
        return seeded(seed, resnet18)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.01, momentum=0.9)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        pictures, labels = torch.rand(2 * batch, 3, 224, 224), torch.randint(1000, (2 * batch,))
        return DealtBatches(pictures, labels, rank=rank, num_workers=num_workers, batch=batch, seed=seed)


class Tied(nn.Sequential):
    """GPT-2 whose head stays its token embedding when it is moved to tensors without numbers."""

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Tied:
        super()._apply(fn, recurse)
        self.head.weight = self.embedding.token.weight
        return self


@dataclass(frozen=True)
class GPT2Small(Task):
    """GPT-2 small on random tokens."""

    name = "gpt2"
    source = "random tokens"
    sample_kind = "sequences"

    def model(self, seed: int) -> nn.Module:
        made = seeded(seed, lambda: gpt2(GPT2Size(width=768, depth=12, num_heads=12, length=LENGTH)))
        return Tied(OrderedDict(made.named_children()))

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-4, foreach=True)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        tokens = torch.randint(50_257, (2 * batch, LENGTH + 1))
        return DealtBatches(tokens[:, :-1], tokens[:, 1:], rank=rank, num_workers=num_workers, batch=batch, seed=seed)


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


@dataclass(frozen=True)
class Case:
    """A task and how it is measured.

    Attributes:
        batch: samples of each worker.
        steps: measured ones of one process; of several as many fewer, as they share cores.
        trainings: that are timed one after another, as short ones may fall into a slow second of the host.
        numbers: they matter to what it costs, and are cheap to compute.
        most_ranks, most_rounds: what the time allows.
    """

    task: Callable[[], Task]
    batch: int
    steps: int
    trainings: int = 1
    numbers: bool = False
    most_ranks: int = 4
    most_rounds: int = 9

    @property
    def warm_up(self) -> int:
        return 3 if self.steps >= 20 else 2


CASES: Mapping[str, Case] = {
    "digits": Case(lambda: get_task("digits"), 64, 60, trainings=10, numbers=True),
    "characters": Case(lambda: get_task("characters"), 16, 40),
    "packages-text": Case(lambda: get_task("packages-text"), 64, 60, trainings=10, numbers=True),
    "resnet18": Case(ResNet18, 8, 12),
    "gpt2-1": Case(GPT2Small, 1, 8, most_rounds=1),
    "gpt2-8": Case(GPT2Small, 8, 3, most_ranks=1, most_rounds=1),
}


def training(case: Case, ranks: int, steps: int) -> Training:
    strategy = parse("single" if ranks == 1 else "synchronous")
    return Training(strategy=strategy, task=case.task(), steps=steps, batch=case.batch * ranks, evaluate=False)


# --- parts, each in a process of its own ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Timed:
    """`main(ctx)`: trainings whose steps are timed; of each, per step (wall seconds, CPU seconds of the process)."""

    training: Training
    trainings: int

    def __call__(self, ctx: Context) -> list[list[tuple[float, float]]]:
        return [self._once(ctx) for _ in range(self.trainings)]

    def _once(self, ctx: Context) -> list[tuple[float, float]]:
        marks: list[tuple[float, float]] = []
        mark = ctx.mark_step

        def noted(step: int, phase: Any, **values: Any) -> None:
            marks.append((time.perf_counter(), time.process_time()))
            mark(step, phase, **values)

        ctx.mark_step = noted  # type: ignore[method-assign]
        self.training(ctx)
        ctx.mark_step = mark  # type: ignore[method-assign]
        pairs = zip(marks[::2], marks[1::2], strict=True)
        return [(end[0] - begin[0], end[1] - begin[1]) for begin, end in pairs]


def real_part(asked: dict[str, Any]) -> dict[str, float]:
    """Median over the steps: of the slowest worker's wall time, and of the mean CPU time of a worker."""
    case, ranks = CASES[asked["case"]], asked["ranks"]
    wanted = case.steps // 3 if asked["quick"] else case.steps
    steps = case.warm_up + max(3, wanted // ranks)
    main = Timed(training(case, ranks, steps), 1 if asked["quick"] else case.trainings)
    results = RealEngine(device=asked["device"]).run(main, local_cluster(), workers=ranks).results
    by_training = (zip(*ranks_steps, strict=True) for ranks_steps in zip(*results[:ranks], strict=True))
    by_step = [step for steps in by_training for step in list(steps)[case.warm_up :]]
    return {
        "wall": statistics.median(max(wall for wall, _ in step) for step in by_step),
        "cpu": statistics.median(statistics.fmean(cpu for _, cpu in step) for step in by_step),
    }


def profile_part(asked: dict[str, Any]) -> dict[str, Any]:
    """The profile of curves, saved; its errors."""
    effort = QUICK if asked["quick"] else USUAL
    device = torch.device(asked["device"])
    found = measure_profile(device, effort, name="here", stage=lambda what: nullcontext(), clock=clock_of(asked))
    found.save(asked["profile"])
    return {"errors": dict(found.errors)}


def shared_part(asked: dict[str, Any]) -> dict[str, Any]:
    """The curve of all-reduces of so many processes, and what they take from each other."""
    ranks, effort = asked["ranks"], QUICK if asked["quick"] else USUAL
    program = TimeSharing(curve_asks(effort, ranks), effort)
    results = RealEngine(device=asked["device"]).run(program, local_cluster(), workers=ranks).results
    measured = Measurements(
        ranks=ranks,
        backend="gloo",
        curves=curves(joined([times for times, _ in results]), ranks),
        sharing=(joined_sharing([shared for _, shared in results]),),
    )
    return {"measured": measured.model_dump(exclude_none=True)}


def predicted_part(asked: dict[str, Any]) -> dict[str, Any]:
    """Step times by curves alone, and with single operations, for each number of ranks."""
    case, shared = CASES[asked["case"]], {int(ranks): one for ranks, one in asked["measured"].items()}
    rough = Profile.load(asked["profile"])
    ranks = [ranks for ranks in asked["all_ranks"] if ranks <= case.most_ranks]
    steps = case.warm_up + case.steps // 2 if case.numbers else SIMULATED  # how many zeros there are half way
    recorded = {each: record_step(training(case, each, 1), each, numbers=case.numbers, steps=steps) for each in ranks}
    table = median_of([measured_table(asked, [*recorded.values()]) for _ in range(1 if asked["quick"] else TABLES)])
    fine = replace(rough, table=table)
    return {
        str(each): {
            "curves": step_seconds(case, each, rough, shared),
            "operations": step_seconds(case, each, fine, shared),
            "left out": table.what.partition("; ")[2],
            "by phase": by_phase(recorded[each], fine),
        }
        for each in ranks
    }


def measured_table(asked: dict[str, Any], recorded: Sequence[Recorded]) -> Table:
    return measure_operations(
        recorded,
        repeats=5 if asked["quick"] else 15,
        seconds=0.1 if asked["quick"] else 0.2 / TABLES,
        device=torch.device(asked["device"]),
        clock=clock_of(asked),
    )


def median_of(tables: Sequence[Table]) -> Table:
    """Of each operation the table in the middle: one of them may have been measured in a slow second of the host."""
    keys = [key for key in tables[0].entries if all(key in table.entries for table in tables)]
    middle = {key: sorted((one.entries[key] for one in tables), key=lambda entry: entry.seconds) for key in keys}
    return replace(tables[0], entries={key: entries[len(entries) // 2] for key, entries in middle.items()})


def step_seconds(case: Case, ranks: int, profile: Profile, shared: Mapping[int, dict[str, Any]]) -> float:
    """Of the simulated step, what computing loses to communication beside it, and what the loop takes beside both."""
    cluster = local_cluster()
    if ranks in shared:
        cluster = cluster.model_copy(update={"measured": Measurements.model_validate(shared[ranks])})
    engine = SimulatedEngine(Profiled(profile))
    record = engine.run(training(case, ranks, SIMULATED), cluster, workers=ranks, meta=not case.numbers)
    mean = mean_step(split(record))
    assert mean is not None, "steps were taken"
    beside = profile.overheads.inside.get("step", 0.0)
    return mean.step_time + beside + steals(cluster, ranks) * mean.hidden_communication


def steals(cluster: Cluster, ranks: int) -> float:
    sharing = cluster.measured.sharing_of(ranks) if cluster.measured else None
    return sharing.steals if sharing else 0.0


def by_phase(recorded: Recorded, profile: Profile) -> dict[str, float]:
    """Sums of the operations alone, without overheads."""
    entries = profile.table.entries if profile.table else {}
    sums = dict.fromkeys(PHASES, 0.0)
    for call in recorded.step:
        sums[call.phase] += entries[call.work.key].seconds if call.work.key in entries else 0.0
    return dict(sums)


def clock_of(asked: Mapping[str, Any]) -> Callable[[], float]:
    return time.thread_time if asked["clock"] == "cpu" else time.perf_counter


PARTS: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "profile": profile_part,
    "shared": shared_part,
    "predicted": predicted_part,
    "real": real_part,
}


def part(name: str, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a part found, run in a fresh process; None if it failed, which is told."""
    command = [sys.executable, __file__, "--part", name, "--asked", json.dumps(asked)]
    what = " ".join(str(one) for one in (name, asked.get("case", ""), asked.get("ranks", "")) if one != "")
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **KEPT})
    except subprocess.TimeoutExpired:
        print(f"  {what}: not done after {PATIENCE:.0f} s, left out", flush=True)
        return None
    if done.returncode:
        print(f"  {what}: failed\n{done.stderr[-1500:]}", flush=True)
        return None
    print(f"  {what}: {time.perf_counter() - begin:.0f} s", flush=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# --- rounds --------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What the rounds found for one case and number of ranks."""

    case: str
    ranks: int
    curves: list[float]
    operations: list[float]
    wall: list[float]
    cpu: list[float]

    def error(self, which: Sequence[float], clock: str) -> float:
        measured = self.cpu if clock == "cpu" else self.wall
        return statistics.median(which) / statistics.median(measured) - 1


def rounds(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Everything measured; rows without a prediction or a measurement are left out."""
    end = time.monotonic() + 60 * options.minutes
    all_ranks = [int(one) for one in options.ranks.split(",")]
    common = {"quick": options.quick, "device": options.device, "clock": options.clock, "all_ranks": all_ranks}
    common["profile"] = str(folder / "profile.json")
    errors = (part("profile", common) or sys.exit("no profile"))["errors"]
    rows = {
        (name, ranks): Row(name, ranks, [], [], [], [])
        for name in options.cases.split(",")
        for ranks in all_ranks
        if ranks <= CASES[name].most_ranks
    }
    for turn in range(options.rounds):
        print(f"round {turn + 1} of {options.rounds}", flush=True)
        found = {ranks: part("shared", {**common, "ranks": ranks}) for ranks in all_ranks if ranks > 1}
        measured = {ranks: one["measured"] for ranks, one in found.items() if one}
        for one in measured.values():
            print(f"    {one['sharing'][0]}", flush=True)
        for name in options.cases.split(","):
            if turn >= CASES[name].most_rounds:
                continue
            if time.monotonic() > end:
                print(f"  {name}: left out, as {options.minutes:g} minutes are over", flush=True)
                continue
            one_case({**common, "case": name, "measured": measured}, rows)
    return errors, [row for row in rows.values() if row.operations and row.wall]


def one_case(asked: dict[str, Any], rows: dict[tuple[str, int], Row]) -> None:
    predicted = part("predicted", asked) or {}
    for ranks in asked["all_ranks"]:
        row = rows.get((asked["case"], ranks))
        if row is None:
            continue
        if str(ranks) in predicted:
            row.curves.append(predicted[str(ranks)]["curves"])
            row.operations.append(predicted[str(ranks)]["operations"])
            if predicted[str(ranks)]["left out"]:
                print(f"    {predicted[str(ranks)]['left out']}")
        real = part("real", {**asked, "ranks": ranks})
        if real:
            row.wall.append(real["wall"])
            row.cpu.append(real["cpu"])
        if row.operations and row.wall:
            print(f"    {ranks} rank(s): {row_text(row, asked['clock'])}", flush=True)


def row_text(row: Row, clock: str) -> str:
    curves, operations, wall, cpu = (
        statistics.median(one) * 1e3 for one in (row.curves, row.operations, row.wall, row.cpu)
    )
    error, rough = row.error(row.operations, clock), row.error(row.curves, clock)
    return (
        f"curves {curves:.2f} ms ({rough:+.1%}), + operations {operations:.2f} ms ({error:+.1%}); "
        f"measured {wall:.2f} ms, cpu / wall {cpu / wall:.2f}"
    )


# --- what is told --------------------------------------------------------------------------------------------------


def report(options: argparse.Namespace, errors: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """A section of RESULTS.md."""
    command = "python benchmarks/device_time.py" + "".join(f" {one}" for one in sys.argv[1:] if one != "--results")
    lines = [f"## {date.today().isoformat()}: device time, `{command}`", ""]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    lines += [f"{torch.get_num_threads()} threads there, 1 used; PyTorch {torch.__version__}, {options.device}, gloo;"]
    lines += [f"commit {commit}. Compared: {options.clock} time. Held-out kernels of the grids:", ""]
    lines += ["| class | kernels held out | mean error | worst |", "|---|---:|---:|---:|"]
    lines += [f"| {kind} | {count} | {mean:.1%} | {worst:.1%} |" for kind, (count, mean, worst) in errors.items()]
    lines += ["", "Steps, medians over the rounds:", ""]
    lines += [
        "| case | processes | curves only | + operations | measured | cpu / wall |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    lines += [table_row(row, options.clock) for row in rows]
    lines += ["", *verdicts(rows, options.clock), ""]
    return "\n".join(lines)


def table_row(row: Row, clock: str) -> str:
    curves, operations = (
        f"{statistics.median(which) * 1e3:.2f} ms ({row.error(which, clock):+.1%})"
        for which in (row.curves, row.operations)
    )
    wall, cpu = statistics.median(row.wall), statistics.median(row.cpu)
    measured = cpu if clock == "cpu" else wall
    return f"| {row.case} | {row.ranks} | {curves} | {operations} | {measured * 1e3:.2f} ms | {cpu / wall:.2f} |"


def verdicts(rows: Sequence[Row], clock: str) -> list[str]:
    lines = []
    for ranks in sorted({row.ranks for row in rows}):
        found = [abs(row.error(row.operations, clock)) for row in rows if row.ranks == ranks]
        mean, worst = statistics.fmean(found), max(found)
        bar_mean, bar_worst = BARS.get(ranks, BARS[4])
        held = "held" if mean <= bar_mean and worst <= bar_worst else "MISSED"
        bar = f"bar {bar_mean:.0%} and {bar_worst:.0%}"
        lines.append(f"- {ranks} process(es): mean error {mean:.1%}, worst {worst:.1%} ({bar}): {held}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--ranks", default="1,2,4")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=15.0, help="after which nothing new is begun")
    parser.add_argument("--quick", action="store_true", help="one round, fewer repeats and steps")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"])
    parser.add_argument("--results", action="store_true", help="write the section at the top of RESULTS.md")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--asked", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        torch.set_num_threads(1)
        print(json.dumps(PARTS[options.part](json.loads(options.asked))))
        return 0
    options.rounds = options.rounds or (1 if options.quick else 2)
    with tempfile.TemporaryDirectory() as folder:
        errors, rows = rounds(options, Path(folder))
    text = report(options, errors, rows)
    print(f"\n{text}")
    if options.results:
        path = Path(__file__).with_name("RESULTS.md")
        head, mark, rest = path.read_text(encoding="utf-8").partition("\n## ")
        path.write_text(f"{head}\n{text}{mark}{rest}", encoding="utf-8")
    return 1 if "MISSED" in text else 0


if __name__ == "__main__":
    sys.exit(main())
