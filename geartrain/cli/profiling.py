"""`geartrain calibrate --profile`: a profile of a device, measured kernel by kernel or read from a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from geartrain.cli.output import print_json, results, tell, told
from geartrain.cluster.load import load_device
from geartrain.errors import ConfigurationError
from geartrain.record.files import check_file, write_together
from geartrain.record.text import print_whole
from geartrain.units import format_flops, format_rate, format_time

if TYPE_CHECKING:
    from rich.table import Table as TextTable

    from geartrain.cost.profile import Profile

_STAGES = 3


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What was asked for on the command line.

    Attributes:
        out: the file of the profile.
        trace, device: a trace of `torch.profiler` that it is read from, and what ran there; else it is measured here.
        others: flags that were given and have no meaning here.
        force, quick: overwrite; fewer shapes and repeats.
    """

    out: Path
    trace: Path | None
    device: str | None
    others: tuple[str, ...]
    force: bool
    quick: bool


def make_profile(asked: Asked, as_json: bool) -> int:
    """Measure or read, tell, and write; the exit code."""
    _check(asked)
    profile = _traced(asked) if asked.trace else _measured(asked)
    write_together({asked.out: profile.text().encode()})
    if as_json:
        print_json(_plain(profile))
    else:
        console = results()
        for line in _lines(profile):
            console.print(line, markup=False, soft_wrap=True)
        print_whole(console, _errors_table(profile))
    tell(f"profile: {asked.out} (--compute profile:{asked.out})")
    return 0


def _check(asked: Asked) -> None:
    if asked.others:
        raise ConfigurationError(
            f"--profile measures kernels of one device and nothing between ranks; leave out {', '.join(asked.others)}"
        )
    if asked.out.suffix != ".json":
        raise ConfigurationError(f"--profile {asked.out}: a profile's name ends in .json")
    if (asked.trace is None) != (asked.device is None):
        raise ConfigurationError(
            "--trace and --device belong together: the device is what ran, a preset like h100-sxm5 or a TOML file, "
            "whose peaks price what the trace has no kernel of"
        )
    check_file(asked.out)
    if asked.out.exists() and not asked.force:
        raise ConfigurationError(f"{asked.out} exists already; give --force to overwrite it, or another name")


def _traced(asked: Asked) -> Profile:
    from geartrain.calibration.trace_import import profile_from_trace

    assert asked.trace is not None and asked.device is not None, "checked before"
    return profile_from_trace(asked.trace, device=load_device(asked.device), name=asked.out.stem)


def _measured(asked: Asked) -> Profile:
    import torch

    from geartrain.calibration.effort import QUICK, USUAL
    from geartrain.calibration.kernels import measure_profile

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with told(_STAGES) as bar:

        @contextmanager
        def stage(what: str) -> Iterator[None]:
            bar.start(what)
            yield
            bar.done(what)

        return measure_profile(device, QUICK if asked.quick else USUAL, name=asked.out.stem, stage=stage)


def _lines(profile: Profile) -> Iterator[str]:
    device, over = profile.device, profile.overheads
    flops = ", ".join(f"{name} {format_flops(rate)}" for name, rate in device.flops.items())
    yield f"{device.name}: {flops}; memory {format_rate(device.memory_rate, 'B')}"
    lanes = "host and device side by side" if profile.queued else "host and device one after the other"
    host = over.between + over.before.get("default", 0.0) + over.launch
    yield f"{lanes}; of an operation the host takes {format_time(host)} before its kernel"


def _errors_table(profile: Profile) -> TextTable:
    from rich import box
    from rich.table import Table as TextTable

    table = TextTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(("class", "kernels held out", "mean error", "worst")):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for kind, (count, mean, worst) in profile.errors.items():
        table.add_row(kind, str(count), f"{mean:.1%}", f"{worst:.1%}")
    return table


def _plain(profile: Profile) -> dict[str, Any]:
    """SI units."""
    return {
        "name": profile.name,
        "device": profile.device.model_dump(mode="json"),
        "queued": profile.queued,
        "errors": {
            kind: {"held_out": count, "mean": mean, "worst": worst}
            for kind, (count, mean, worst) in profile.errors.items()
        },
        "origins": dict(profile.origins),
    }
