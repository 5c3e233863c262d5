"""Loss against virtual time, one line per method: which way of training is best on which network.

    python benchmarks/time_to_accuracy.py [--out runs/time-to-accuracy] [--only digits,8] [--jobs 2]

Trains `digits` and `characters` with 8 and 16 workers on networks of 100 Mbit/s, 1 Gbit/s and 10 Gbit/s, under the
virtual clock, by `geartrain compare`: real numerics, the same data for all, seed 0. What is done is not done again; the
same command goes on after Ctrl-C. Then draws the pictures and prints when each method first reached the target.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from geartrain.report.reading import Run, read_runs
from geartrain.report.svg import Scale, element, label, log_ticks, number
from geartrain.strategies import parse

HERE = Path(__file__).parent
Curves = dict[str, list[tuple[float, float]]]
RATES = ("100 Mbit/s", "1 Gbit/s", "10 Gbit/s")
CLUSTER = """\
# Machines of 20 GFLOP/s, what a core reaches on small products.
name = "workstations-{name}"
summary = "sixteen machines on {rate}"
source = "chosen, for this comparison"

[[nodes]]
name = "node"
count = 32

[nodes.device]
name = "core"
flops = {{ fp32 = "20 GFLOP/s" }}
memory = "16 GiB"
memory_rate = "10 GB/s"
source = "chosen"

[topology]
kind = "star"
wire = {{ rate = "{rate}", latency = "50 us", mtu = "1500 B" }}
"""

STRATEGIES = {  # as on the command line -> family
    "synchronous": "in step",
    "dear": "in step",
    "adascale": "in step",
    "powersgd:rank=2": "compressed",
    "top_k:density=0.01": "compressed",
    "local_sgd:period=8": "local steps",
    "cocod_sgd:period=8": "local steps",
    "dasgd:period=8,delay=2": "local steps",
    "diloco:period=16": "local steps",
    "dpsgd:graph=exponential": "gossip",
    "adpsgd": "gossip",
    "async_sgd": "asynchronous",
    "apam": "asynchronous",
    "abs_sgd": "asynchronous",
    "switchml": "in the network",
    "gear": "parts of the model",
}
FAMILIES = {str(parse(text)): family for text, family in STRATEGIES.items()}  # as runs call them
COLOURS = {
    "in step": "#0072b2",
    "compressed": "#009e73",
    "local steps": "#d55e00",
    "gossip": "#b5548c",
    "asynchronous": "#7a6f00",
    "in the network": "#3d9bd1",
    "parts of the model": "#5a5a5a",
}
DASHES = ("", "7 3", "2 3", "9 3 2 3")
TASKS = {"digits": (300, 64, 0.3), "characters": (100, 32, 2.7)}  # -> steps, global batch, loss to reach


def command(task: str, workers: int, out: Path, jobs: int) -> list[str]:
    """The comparison of one task with one number of workers, on all networks."""
    steps, batch, _ = TASKS[task]
    folder = out / f"{task}-{workers}"
    if (folder / "grid.json").exists():
        return ["compare", "--resume", str(folder), "--jobs", str(jobs)]
    clusters = ",".join(str(cluster(out, rate)) for rate in RATES)
    asked: dict[str, object] = {
        "task": task,
        "strategies": ",".join(STRATEGIES),
        "cluster": clusters,
        "compute": "roofline",
    }
    asked |= {"ranks": workers, "batch": batch, "steps": steps, "seed": 0, "out": folder, "jobs": jobs}
    return ["compare", *(word for name, value in asked.items() for word in (f"--{name}", str(value)))]


def cluster(out: Path, rate: str) -> Path:
    """The file of the machines on one network."""
    name = rate.replace(" ", "").replace("/s", "").lower()
    path = out / f"workstations-{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CLUSTER.format(name=name, rate=rate), encoding="utf-8")
    return path


def smooth(run: Run) -> list[tuple[float, float]]:
    """(seconds, loss): means over a tenth of the run."""
    curve = [point for point in run.curve if point.time > 0]
    width = max(1, len(curve) // 20)
    return [
        (curve[i].time, sum(point.loss for point in curve[i - width + 1 : i + 1]) / width)
        for i in range(width - 1, len(curve))
    ]


def reached(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Seconds until the smoothed loss is at the target."""
    return next((time for time, loss in points if loss <= target), None)


def picture(runs: Sequence[Run], title: str, target: float, width: float = 800, height: float = 420) -> str:
    """Loss against virtual time, both logarithmic, down to the target; who got there first is on top of the list."""
    lines = {run.strategy: until(smooth(run), target) for run in runs if len(run.curve) > 20}
    points = [point for line in lines.values() for point in line]
    right = width - 265
    x = Scale(min(time for time, _ in points), max(time for time, _ in points), 56, right, log=True)
    y = Scale(target, max(loss for _, loss in points), height - 44, 40, log=True)
    parts = [element("rect", width=width, height=height, fill="#ffffff"), *_frame(x, y, title, target, height, right)]
    for name, line in lines.items():
        path = "M" + "L".join(f"{number(x(time))},{number(y(loss))}" for time, loss in line)
        parts.append(element("path", d=path, **_pen(name)))
        if line[-1][1] <= target:
            parts.append(
                element("circle", cx=number(x(line[-1][0])), cy=number(y(target)), r=3, fill=_pen(name)["stroke"])
            )
    order = sorted(lines, key=lambda name: (lines[name][-1][1] > target, lines[name][-1][0]))
    parts += _list(order, lines, target, right)
    box = f"0 0 {number(width)} {number(height)}"
    font = "system-ui, Segoe UI, Roboto, Arial, sans-serif"
    return element(
        "svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=box, font_family=font, font_size="12"
    )


def until(points: Sequence[tuple[float, float]], target: float) -> list[tuple[float, float]]:
    """A curve up to where it is at the target first, and no further."""
    found: list[tuple[float, float]] = []
    for time, loss in points:
        found.append((time, max(loss, target)))
        if loss <= target:
            break
    return found


def _pen(name: str) -> dict[str, Any]:
    family = FAMILIES[name]
    place = [other for other in FAMILIES if FAMILIES[other] == family].index(name)
    dash = DASHES[place % len(DASHES)] or None
    return {"fill": "none", "stroke": COLOURS[family], "stroke_width": 1.8, "stroke_dasharray": dash}


def _frame(x: Scale, y: Scale, title: str, target: float, height: float, right: float) -> Iterator[str]:
    yield label(8, 20, title, font_weight="600", font_size="14", fill="#1b1f24")
    for tick in log_ticks(x.low, x.high):
        yield element("path", d=f"M{number(x(tick))},40V{number(height - 44)}", stroke="#e6eaee")
        yield label(x(tick), height - 28, f"{tick:g} s", text_anchor="middle", fill="#59636e")
    for tick in log_ticks(y.low, y.high):
        yield element("path", d=f"M56,{number(y(tick))}H{number(right)}", stroke="#e6eaee")
        yield label(50, y(tick) + 4, f"{tick:g}", text_anchor="end", fill="#59636e")
    yield label(right, height - 10, "virtual time", text_anchor="end", fill="#59636e")
    yield label(8, 36, f"loss, down to {target:g}", fill="#59636e")


def _list(order: Sequence[str], lines: Curves, target: float, right: float) -> Iterator[str]:
    """Seconds to the target and names, the first on top."""
    for row, name in enumerate(order):
        at = 52 + 21 * row
        time, loss = lines[name][-1]
        told = f"{time:.3g} s" if loss <= target else "-"
        yield element("path", d=f"M{number(right + 14)},{at - 4}H{number(right + 42)}", **_pen(name))
        yield label(right + 92, at, told, text_anchor="end", fill="#1b1f24")
        yield label(right + 98, at, name, fill=_pen(name)["stroke"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/time-to-accuracy"))
    parser.add_argument("--only", default="", help="e.g. digits,8: one task and number of workers")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--pictures", type=Path, default=HERE.parent / "docs" / "images")
    given = parser.parse_args()
    wanted = [(task, workers) for task in TASKS for workers in (8, 16)]
    if given.only:
        task, _, workers = given.only.partition(",")
        wanted = [(task, int(workers))]
    for task, workers in wanted:
        words = command(task, workers, given.out, given.jobs)
        code = subprocess.run([sys.executable, "-m", "geartrain", *words]).returncode
        if code < 0 or code == 130:
            return 130
        tell(given.out / f"{task}-{workers}", task, workers, given.pictures)
    return 0


def tell(folder: Path, task: str, workers: int, pictures: Path) -> None:
    """A picture for each network, and the times to the target as a table."""
    runs = [run for run in read_runs([folder]) if run.curve]
    target = TASKS[task][2]
    print(f"\n{task}, {workers} workers: seconds until the loss is {target}\n")
    print(f"{'':24}" + "".join(f"{rate:>14}" for rate in RATES))
    times = {}
    for rate in RATES:
        name = "workstations-" + rate.replace(" ", "").replace("/s", "").lower()
        here = [run for run in runs if run.cluster == name]
        times[rate] = {run.strategy: reached(smooth(run), target) for run in here}
        if here:
            title = f"{task}, {workers} workers, {rate}"
            drawn = picture(here, title, target)
            (pictures / f"time-{task}-{workers}-{name.removeprefix('workstations-')}.svg").write_text(drawn + "\n")
    for strategy in FAMILIES:
        cells = [times[rate].get(strategy) for rate in RATES]
        print(f"{strategy:24}" + "".join(f"{'-' if cell is None else f'{cell:.3g}':>14}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
