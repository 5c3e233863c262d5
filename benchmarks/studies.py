"""Draw the figures of the pages on studies, from the functions that `geartrain validate` predicts with.

    python benchmarks/studies.py

Writes docs/images/studies/*.svg; nothing is measured. What was read in papers comes from validation/*.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

from geartrain.planner import lemmas
from geartrain.report.plot import HEIGHT, Axis, Series, axis_of, line_plot
from geartrain.report.svg import WIDTH, element, figure, label, line, mark
from geartrain.validation import convolution_choice, interconnects, llm_scaling, measured_devices, servers
from geartrain.validation.published import Figure, load_figures
from geartrain.validation.sharded import SIZES, Generation, Layout, sharded_step

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images" / "studies"
RANKS = [8 << n for n in range(9)]
ROW = 18

Points = list[tuple[float, float]]
Lines = list[tuple[str, Points]]


def published(paper: str, function: str) -> Iterator[Figure]:
    """The figures of a paper that a function predicts."""
    for one in load_figures(ROOT / "validation" / f"{paper}.toml").figure:
        if one.predict.endswith(f":{function}"):
            yield one


def drawn(title: str, lines: Lines, x: Axis, y: str, *, read: Sequence[int] = (), log: bool | None = None) -> str:
    """A plot with its title and its legend as an SVG of its own.

    Args:
        lines: name and points of each.
        y: title of the upward axis.
        read: which lines are no predictions; dashed.
        log: of the upward axis; None: where values are far apart.
    """
    series = [
        Series(name=name, points=points, colour=index, shape=index, dash=1 if index in read else 0)
        for index, (name, points) in enumerate(lines)
    ]
    up = axis_of([value for _, points in lines for _, value in points], y, "number")
    up = up if log is None else replace(up, log=log)
    plot = line_plot(series, x, up, title).partition("<script")[0]
    height = 26 + HEIGHT + ROW * len(series) + 10
    style = resources.files("geartrain.report").joinpath("style.css").read_text(encoding="utf-8")
    parts = [
        element("style", style.partition("@media screen")[0] + _rules(style)),
        element("rect", width=float(WIDTH), height=float(height), style="fill: var(--paper)"),
        label(4, 17, title, style="font-weight: 600; fill: var(--ink)"),
        plot.replace("<svg ", f'<svg x="0" y="26" width="{WIDTH}" height="{HEIGHT}" ', 1),
    ]
    for index, one in enumerate(series):
        at = 26.0 + HEIGHT + ROW * (index + 0.5)
        parts.append(line([(10, at), (40, at)], one.cls))
        parts.append(mark(one.shape, 25, at, f"mark s{one.colour}"))
        parts.append(label(50, at + 4, one.name))
    size = {"width_": 1.15 * WIDTH, "height_": 1.15 * height}  # where a page does not say
    return figure(height, "".join(parts), title, xmlns="http://www.w3.org/2000/svg", **size) + "\n"


def _rules(style: str) -> str:
    """Of the report's style sheet what concerns lines and words of figures."""
    wanted = ("svg text", ".grid", ".line", ".mark", ".s0", ".s4", ".d1", "svg {")
    return "\n".join(rule for rule in style.splitlines() if rule.startswith(wanted))


def devices(counts: Sequence[int]) -> Axis:
    return Axis(title="devices", log=True, zero=False, marks=counts)


# hw-scaling


def _relative(one: Generation, **layout: object) -> Points:
    """Throughput per device over that of 128 sharded over all."""

    def time(ranks: int, **changed: object) -> float:
        return sharded_step(SIZES["7b"], one, Layout(ranks=ranks, **changed), batch=2 * ranks).time  # type: ignore[arg-type]

    return [(ranks, time(128) / time(ranks, **layout)) for ranks in RANKS]


def weak_scaling() -> str:
    threshold, loss = llm_scaling.generation("h100"), llm_scaling.generation("h100", "loss")
    lines = [
        ("sharded over all, hop fitted on the threshold at 128", _relative(threshold)),
        ("sharded over all, hop fitted on the loss at 2,048", _relative(loss)),
        ("sharded within nodes, copies between them", _relative(threshold, shards="node")),
        ("published: 37.22 % less on 2,048 than on 128", [(128.0, 1.0), (2048.0, 1 - 0.3722)]),
    ]
    return drawn("7B on H100, weak scaling", lines, devices(RANKS), "throughput per device, 128 = 1", read=[3])


def tensor_degrees(fitted_on: llm_scaling.Fit) -> str:
    lines = [
        (
            f"degree {degree}",
            [
                (ranks, llm_scaling.tensor_gain(tensor=degree, ranks=ranks, fitted_on=fitted_on))
                for ranks in RANKS
                if ranks >= degree
            ],
        )
        for degree in (1, 2, 4, 8, 16)
    ]
    what = "threshold" if fitted_on == "threshold" else "loss"
    return drawn(f"Tensor parallelism, hop fitted on the {what}", lines, devices(RANKS), "gain over sharding alone")


def generations() -> str:
    lines = []
    for name in ("v100", "a100", "h100"):
        one = llm_scaling.generation(name)
        steps = [(n, sharded_step(SIZES["7b"], one, Layout(ranks=n), batch=2 * n)) for n in RANKS]
        lines.append((name.upper(), [(n, 100 * step.mfu) for n, step in steps]))
    return drawn("7B sharded over all, three generations", lines, devices(RANKS), "MFU (%)", log=False)


def exposed_by_size() -> str:
    one = llm_scaling.generation("h100")
    lines = []
    for name, model in SIZES.items():
        steps = [(n, sharded_step(model, one, Layout(ranks=n), batch=2 * n)) for n in RANKS]
        lines.append((name.upper(), [(n, 100 * step.exposed / step.time) for n, step in steps]))
    return drawn(
        "Sizes of models on H100, sharded over all", lines, devices(RANKS), "exposed (% of the step)", log=False
    )


def strong_scaling() -> str:
    ranks = [16, 32, 64, 128, 256]
    lines: Lines = [
        (f"hop fitted on the {fit}", [(n, 100 * llm_scaling.strong_mfu(ranks=n, fitted_on=fit)) for n in ranks])
        for fit in ("threshold", "loss")
    ]
    return drawn("7B, 32 sequences in all, best layout, H100", lines, devices(ranks), "MFU (%)", log=False)


def all_reduces() -> str:
    lines, figures = [], list(published("hw-scaling", "all_reduce_bandwidth"))
    for nodes in (4, 32, 512):
        mine = [one for one in figures if one.given["nodes"] == nodes]
        sizes = [one.given["size"] for one in mine]
        found = [(size / 2**20, llm_scaling.all_reduce_bandwidth(size=size, nodes=nodes) / 1e9) for size in sizes]
        lines.append((f"{nodes} nodes, predicted", found))
        lines.append((f"{nodes} nodes, read", [(one.given["size"] / 2**20, one.published / 1e9) for one in mine]))
    across = Axis(title="size (MiB)", log=True, zero=False, marks=(1, 16, 64, 256, 1024))
    return drawn("All-reduce on nodes of 8 H100", lines, across, "bus bandwidth (GB/s)", read=[1, 3, 5])


# leading-edge

_COUNTS = {"dgx-2": (2, 4, 8, 16), "p3": (2, 4, 8, 16), "p3dn": (2, 4, 8, 16), "ac922": (2, 4), "ts4": (2, 4, 8)}


def bandwidths() -> str:
    lines: Lines = [
        (name, [(n, interconnects.bus_bandwidth(machine_name=name, ranks=n, reached=0.85) / 1e9) for n in counts])
        for name, counts in _COUNTS.items()
    ]
    return drawn("All-reduce of 1 GB, by rings of links", lines, devices((2, 4, 8, 16)), "bus bandwidth (GB/s)")


def efficiencies(workload: str, title: str) -> str:
    def found(name: str, counts: Sequence[int]) -> Points:
        given = {"machine_name": name, "workload": workload, "samples": 64}
        return [(n, 100 * interconnects.efficiency(ranks=n, **given)) for n in counts]  # type: ignore[arg-type]

    lines = [(name, found(name, counts)) for name, counts in _COUNTS.items()]
    return drawn(f"{title}, 64 samples a device", lines, devices((2, 4, 8, 16)), "efficiency (%)", log=False)


# large-scale-archs


def lemma_1() -> str:
    counts = [1, 2, 4, 8, 16, 32, 64]
    lines: Lines = [
        (f"{100 * share:g} % do not shrink", [(n, 100 * lemmas.efficiency(n, share)) for n in counts])
        for share in (0.01, 0.037, 0.091, 0.2)
    ]
    lines.append(
        ("20 %, simulated", [(n, 100 * servers.efficiency(devices=n, overhead=0.2)) for n in counts if n <= 16])
    )
    return drawn(
        "Lemma 1: what does not shrink with devices", lines, devices(counts), "efficiency (%)", read=[4], log=False
    )


def lemma_2() -> str:
    lines: Lines = []
    for workload, title, workers in (("alexnet", "AlexNet, 4 workers", 4), ("vgg16", "VGG-16, 8 workers", 8)):
        size = servers.parameter_bytes(workload=workload)
        given = {"workers": workers, "rate": 1.25e9, "compute": 1.0}
        counts = range(1, workers + 1)
        lines.append((f"{title}, lemma", [(n, lemmas.round_time(size, servers=n, **given)) for n in counts]))  # type: ignore[arg-type]
        found = [(float(n), servers.round_time(workload=workload, servers=n, **given)) for n in counts]  # type: ignore[arg-type]
        lines.append((f"{title}, simulated", found))
    return drawn(
        "Lemma 2: a round of 1 s of computing, 10 Gbit/s",
        lines,
        Axis(title="servers", zero=False, marks=range(1, 9)),
        "seconds",
        read=[1, 3],
    )


def convolution_batches() -> str:
    batches = [1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128]
    found = [(batch, convolution_choice.chosen("vgg16", batch)) for batch in batches]
    plain = [
        (batch, convolution_choice.without_workspace(workload="vgg16", samples=batch)) for batch in (1, *batches[3:])
    ]
    lines: Lines = [
        ("algorithms chosen within the memory left", [(batch, batch / best.seconds) for batch, best in found]),
        ("no workspaces", [(batch, batch / seconds) for batch, seconds in plain]),
    ]
    return drawn("VGG-16, convolutions forward, 12 GiB", lines, Axis(title="batch"), "samples per second", read=[1])


# universal-perf


def kernels_alone() -> str:
    lines: Lines = []
    for model, name in (("ddp", "DLRM_DDP"), ("default", "DLRM_default")):
        figures = [one for one in published("universal-perf", "kernels_error") if one.given["model"] == model]
        lines.append((f"{name}, predicted", [(one.given["samples"], -100 * one.predicted()) for one in figures]))
        lines.append((f"{name}, published", [(one.given["samples"], -100 * one.published) for one in figures]))
    across = Axis(title="batch", log=True, zero=False, marks=(512, 1024, 2048, 4096))
    title = "What a sum of kernels leaves out of a step, V100"
    return drawn(title, lines, across, "% of the step", read=[1, 3], log=False)


def resnet50() -> str:
    lines: Lines = []
    figures = [one for one in published("universal-perf", "step_time") if one.given["workload"] == "resnet50"]
    for device in measured_devices.PEAKS:
        mine = [one for one in figures if one.given["device"] == device]
        lines.append((f"{device}, predicted", [(one.given["batch"], 1e3 * one.predicted()) for one in mine]))
        lines.append((f"{device}, measured", [(one.given["batch"], 1e3 * one.published) for one in mine]))
    return drawn("ResNet-50, a step", lines, Axis(title="batch", marks=(16, 32, 64)), "milliseconds", read=[1, 3, 5])


FIGURES: dict[str, Callable[[], str]] = {
    "hw-scaling-weak": weak_scaling,
    "hw-scaling-tensor-threshold": lambda: tensor_degrees("threshold"),
    "hw-scaling-tensor-loss": lambda: tensor_degrees("loss"),
    "hw-scaling-generations": generations,
    "hw-scaling-sizes": exposed_by_size,
    "hw-scaling-strong": strong_scaling,
    "hw-scaling-all-reduce": all_reduces,
    "leading-edge-bandwidth": bandwidths,
    "leading-edge-alexnet": lambda: efficiencies("alexnet", "AlexNet"),
    "leading-edge-resnet152": lambda: efficiencies("resnet152", "ResNet-152"),
    "large-scale-archs-lemma-1": lemma_1,
    "large-scale-archs-lemma-2": lemma_2,
    "large-scale-archs-batch": convolution_batches,
    "universal-perf-kernels": kernels_alone,
    "universal-perf-resnet50": resnet50,
}


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        path = OUT / f"{name}.svg"
        path.write_text(draw(), encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
