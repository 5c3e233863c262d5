"""Clusters from and to TOML, and the presets.

    load_cluster("ethernet-25g")      a preset by name
    load_cluster("my/cluster.toml")   a file by path: whatever has a separator or ends in .toml, or is a pathlib.Path
    dump_cluster(cluster)             TOML that loads back equal
    load_device("h100-sxm5")          a device, by the name of a preset or the path of a file in the same way

A file that cannot be read as a cluster ends in one ClusterError that lists every problem with the key where it stands.
"""

import os
import tomllib
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

import tomlkit
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from geartrain.cluster.fields import TEXT_ONLY
from geartrain.cluster.overrides import Overrides
from geartrain.cluster.spec import Cluster, Collectives, Device, NodeGroup, Star, Topology, Wire
from geartrain.errors import ClusterError, UnknownName, nearest
from geartrain.units import POWER, format_flops, format_rate, format_size

_Kind = TypeVar("_Kind", bound=BaseModel)


class Preset(NamedTuple):
    """What a list of presets shows of one."""

    name: str
    summary: str
    source: str


_EMPTY: dict[str, object] = {"collectives": Collectives(), "overrides": Overrides(), "origins": {}}
"""Parts that are left out of a file when there is nothing in them."""

_TRAINED = ("fp32", "bf16", "fp16")
"""Types whose rates a list of devices shows."""


def load_cluster(name_or_path: str | Path) -> Cluster:
    """The preset of that name, or the cluster in that file; UnknownName or ClusterError if there is none."""
    if _is_path(name_or_path):
        return parse_cluster(_content(name_or_path, "cluster"), str(name_or_path))
    text = str(name_or_path)
    if text == "local":
        return local_cluster()
    presets = _preset_files("presets")
    if text not in presets:
        raise UnknownName("cluster preset", text, ["local", *presets])
    return parse_cluster(presets[text], f"preset {text}")


def load_device(name_or_path: str | Path) -> Device:
    """The device of that name, or the one in that file; UnknownName or ClusterError if there is none."""
    if _is_path(name_or_path):
        return _parse(Device, _content(name_or_path, "device"), str(name_or_path), "device")
    text, presets = str(name_or_path), _preset_files("devices")
    if text not in presets:
        raise UnknownName("device", text, presets)
    return _parse(Device, presets[text], f"device {text}", "device")


def list_presets() -> list[Preset]:
    """Name, one line and source of every preset, by name."""
    files = _preset_files("presets").items()
    clusters = [local_cluster(), *(parse_cluster(text, name) for name, text in files)]
    return sorted(Preset(cluster.name, cluster.summary, cluster.source) for cluster in clusters)


def list_devices() -> list[Preset]:
    """Name, one line and source of every device, by name."""
    devices = ((name, load_device(name)) for name in _preset_files("devices"))
    return sorted(Preset(name, _summary(device), device.source) for name, device in devices)


def _summary(device: Device) -> str:
    """Like "80 GiB at 3.35 TB/s, fp32 66.9 TFLOP/s, bf16 989.4 TFLOP/s, 700 W"."""
    rates = [f"{dtype} {format_flops(rate)}" for dtype, rate in device.flops.items() if dtype in _TRAINED]
    power = [] if device.power is None else [POWER.format(device.power)]
    memory = f"{format_size(device.memory, binary=True)} at {format_rate(device.memory_rate, 'B')}"
    return ", ".join([memory, *rates, *power])


def parse_cluster(text: str, where: str = "text") -> Cluster:
    """The cluster that TOML text describes; `where` is named in errors, like a file's path."""
    return _parse(Cluster, text, where, "cluster")


def _is_path(name_or_path: str | Path) -> bool:
    text = str(name_or_path)
    return isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or os.sep in text


def _content(path: str | Path, what: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"cannot read {what} file {str(path)!r}: {error}") from error


def _parse(kind: type[_Kind], text: str, where: str, what: str) -> _Kind:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{where} is no TOML: {error}") from error
    try:
        return kind.model_validate(data, context={TEXT_ONLY: True})
    except ValidationError as error:
        problems = [problem for details in error.errors() for problem in _problems(details, kind)]
        plural = "problem" if len(problems) == 1 else "problems"
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ClusterError(f"{where} describes no {what}: {len(problems)} {plural}\n{listed}") from error


def dump_cluster(cluster: Cluster) -> str:
    """TOML, every quantity as text with a unit; `parse_cluster` reads an equal cluster from it."""
    unused = {name for name, empty in _EMPTY.items() if getattr(cluster, name) == empty}
    return tomlkit.dumps(cluster.model_dump(mode="json", exclude_none=True, exclude=unused))


def local_cluster() -> Cluster:
    """This machine: one node per rank, each with one core's share of the memory, joined by the loopback interface.

    Any number of ranks may be placed; that more ranks than cores slow each other down is not modelled.
    """
    cores = os.cpu_count() or 1
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        measured = f"{cores} cores and memory: the operating system"
    except (AttributeError, OSError, ValueError):
        memory = 8 * 2**30
        measured = f"{cores} cores: the operating system; memory of 8 GiB: chosen, as the system does not tell"
    core = Device(
        name="cpu",
        flops={"fp32": 32e9, "fp64": 16e9},
        memory=max(memory // cores, 1),
        memory_rate=10e9,
        source=f"{measured}; defaults, not measured: 32 GFLOP/s fp32 per core (8 lanes, multiply-add, 2 GHz), 10 GB/s",
    )
    return Cluster(
        name="local",
        summary="this machine: one CPU core per rank, joined by the loopback interface",
        source=f"{measured}; defaults, not measured: compute rates of a core, loopback of 20 Gbit/s and 20 us",
        nodes=(NodeGroup(name="local", count="any", device=core),),
        topology=Star(wire=Wire(rate=2.5e9, latency=20e-6)),
        collectives=Collectives(  # what gloo does
            all_reduce="ring", broadcast="tree", gather="linear", scatter="linear", all_to_all="pairwise"
        ),
    )


def _preset_files(kind: str) -> dict[str, str]:
    """Name -> text of the files in a folder of the package."""
    folder = resources.files("geartrain.cluster").joinpath(kind)
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}


def _problems(details: ErrorDetails, root: type[BaseModel]) -> Iterator[str]:
    """The lines for one of pydantic's errors: the key as it stands in the file, then what is wrong with it."""
    where, models = _locate(details["loc"], root)
    known = sorted({name for model in models for name in model.model_fields})
    context = details.get("ctx", {})
    match details["type"]:
        case "value_error":
            prefix = f"{where}: " if where else ""
            for line in str(context["error"]).split("\n"):
                yield prefix + line
        case "extra_forbidden":
            yield f"{where}: unknown key{_hint(str(details['loc'][-1]), known)}; known here: {', '.join(known)}"
        case "missing":
            yield f"{where}: missing; this key must be given"
        case "union_tag_not_found":
            yield f"{where}.kind: missing; give one of {', '.join(_KINDS)}"
        case "union_tag_invalid":
            tag = str(context["tag"])
            yield f"{where}.kind: {tag!r} is no topology{_hint(tag, _KINDS)}; give one of {', '.join(_KINDS)}"
        case "literal_error":
            yield f"{where}: {details['input']!r} is not known here; give one of {context['expected']}"
        case "string_pattern_mismatch":
            yield f"{where}: {details['input']!r} is no name; use letters, digits and `_.-`, a letter or digit first"
        case _:
            message = details["msg"][:1].lower() + details["msg"][1:]
            yield f"{where}: {message}; given: {details['input']!r}"


def _hint(given: str, known: Iterable[str]) -> str:
    near = nearest(given, known)
    return f" (did you mean {near!r}?)" if near else ""


def _locate(loc: tuple[int | str, ...], root: type[BaseModel]) -> tuple[str, list[type[BaseModel]]]:
    """Where an error stands, like `nodes[0].device.memry`, and the models whose keys may stand there."""
    where = ""
    models: list[type[BaseModel]] = [root]
    for part in loc:
        holders = [model for model in models if part in model.model_fields]
        tagged = [model for model in models if part == _kind(model)]
        if isinstance(part, int):
            where += f"[{part}]"
        elif not holders and tagged:
            models = tagged  # pydantic names the chosen topology here; the file has no such key
        elif part != "[key]":
            where += f".{part}" if where else part
        if holders:
            models = [inner for model in holders for inner in _models_in(model.model_fields[str(part)].annotation)]
    return where, models


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in get_args(annotation) for model in _models_in(inner)]


def _kind(model: type[BaseModel]) -> str | None:
    return model.model_fields["kind"].default if "kind" in model.model_fields else None


_KINDS = tuple(str(_kind(model)) for model in _models_in(Topology))
