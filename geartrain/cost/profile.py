"""What was measured of a device, kernel by kernel, kept as JSON, and the model that prices work by it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, Roofline, Work
from geartrain.cost.curves import ProductFit, TimeCurve
from geartrain.cost.extents import Extents, attention_extents, base_of, convolution_extents, product_extents
from geartrain.cost.kernel_class import KernelClass, kernel_class
from geartrain.cost.lanes import Fronts, Launch
from geartrain.cost.lookup import lookup_seconds
from geartrain.cost.table import Key, Table
from geartrain.errors import ConfigurationError, UnknownName

_FORMAT = "geartrain profile 1"
_SHIPPED = Path(__file__).parent / "profiles"
_PLAIN = (
    "name",
    "host",
    "date",
    "num_threads",
    "source",
    "queued",
    "errors",
    "origins",
    "cache",
    "cache_rate",
)
_OWN = frozenset({"add", "copy", "merge", "move", "quantise", "reduce", "restore", "squares", "update"})
"""Names of the work that strategies do by themselves, of which each is a kernel or several alike."""
_EXTENTS: Mapping[KernelClass, Callable[[Key], Extents | None]] = {
    "product": product_extents,
    "convolution": convolution_extents,
    "attention": attention_extents,
}


@dataclass(frozen=True, kw_only=True)
class Overheads:
    """Host seconds around kernels, by operation where they are known, else under "default".

    Attributes:
        between: from one operation to the next.
        before, after: in an operation, before its first kernel and after its last one.
        inside: between two kernels of an operation.
        launch: of a kernel itself.
    """

    between: float
    before: Mapping[str, float]
    after: Mapping[str, float]
    inside: Mapping[str, float]
    launch: float


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A device as it was measured.

    Attributes:
        name: what it is called.
        host, date, num_threads, source: where, when and how it was measured.
        device: its peaks.
        queued: two lanes (an accelerator's); else one, where host and device add up (a CPU's).
        curves: time over bytes, by kind of kernels.
        fits: of products, by kind and type: "product/fp32", "convolution3x3/fp32", "convolution_backward3x3/fp32".
        overheads: of the host.
        table: single operations at their shapes.
        errors: by kind: how many kernels were held out of the fits, and their mean and worst relative error.
        origins: where each constant comes from, as in `Cluster.origins`.
        cache, cache_rate: bytes of the last cache and bytes per second from it; given, look-ups are priced by what
            they find there, else by their curve.
    """

    name: str
    host: str
    date: str
    num_threads: int
    source: str
    device: Device
    queued: bool = False
    curves: Mapping[KernelClass, TimeCurve]
    fits: Mapping[str, ProductFit]
    overheads: Overheads
    table: Table | None = None
    errors: Mapping[KernelClass, tuple[int, float, float]]
    origins: Mapping[str, str]
    cache: int | None = None
    cache_rate: float | None = None

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON."""
        Path(path).write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The profile as JSON."""
        data = {
            "format": _FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "device": self.device.model_dump(mode="json"),
            "curves": {kind: curve.points for kind, curve in self.curves.items()},
            "fits": {key: asdict(fit) for key, fit in self.fits.items()},
            "overheads": {key: value for key, value in asdict(self.overheads).items()},
            "table": None if self.table is None else self.table.data(),
        }
        return json.dumps(data, indent=1) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read what `save` wrote; ConfigurationError when there is no such file or it is something else."""
        try:
            return cls._read(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise ConfigurationError(f"no profile can be read from {str(path)!r}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"{str(path)!r} is no profile of a device ({error}); measure one and save it with Profile.save"
            ) from error

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Profile:
        if data["format"] != _FORMAT:
            raise ValueError("another format")
        plain = {name: data[name] for name in _PLAIN}
        plain["errors"] = {kind: tuple(numbers) for kind, numbers in data["errors"].items()}
        return cls(
            **plain,
            device=Device.model_validate(data["device"]),
            curves={kind: TimeCurve(_pairs(points)) for kind, points in data["curves"].items()},
            fits={key: _fit(fit) for key, fit in data["fits"].items()},
            overheads=Overheads(**data["overheads"]),
            table=None if data["table"] is None else Table.read(data["table"]),
        )


def _pairs(points: Iterable[Any]) -> tuple[tuple[float, float], ...]:
    return tuple((float(nbytes), float(seconds)) for nbytes, seconds in points)


def _fit(data: Mapping[str, Any]) -> ProductFit:
    first, second, third = (float(half) for half in data["halves"])
    return ProductFit(rate=data["rate"], halves=(first, second, third), overhead=data["overhead"])


def list_profiles() -> list[str]:
    """The names of the profiles that are shipped."""
    return sorted(path.stem for path in _SHIPPED.glob("*.json"))


def load_profile(name_or_path: str) -> Profile:
    """The shipped profile of that name, or the one in that file.

    Raises UnknownName for a name that no shipped profile has, ConfigurationError for a file that is no profile.
    """
    if name_or_path.endswith(".json") or "/" in name_or_path:
        return Profile.load(name_or_path)
    if name_or_path not in list_profiles():
        raise UnknownName("profile", name_or_path, [*list_profiles(), "FILE.json"])
    return Profile.load(_SHIPPED / f"{name_or_path}.json")


@dataclass(frozen=True)
class Profiled(ComputeModel):
    """Prices work by a profile, kernel by kernel; the device of the cluster does not matter.

        seconds of a kernel = entry of the table at its shapes
                              else the fit or the curve of its class
                              else a roofline of the profile's device, which `report` counts
        before it           + host: between + before + launch;  after it: + after        seconds, by operation

    With one lane (a CPU) a run of kernels takes the sum of both. With two the host runs ahead of the device, so that
    its time shows only where the device would otherwise be done.

    Work whose kernels are not known (a layer of sums only) is priced by the roofline, launches included.

    Args:
        profile: of the device.
        path: what `load_profile` read it from, if anything.

    Example:
        Profiled(load_profile("FILE.json")).seconds(Work("aten.relu.default", 0.0, 8e6), device)
    """

    profile: Profile
    path: str = ""
    _known: dict[Any, float] = field(default_factory=dict, init=False, repr=False, compare=False)
    _missed: dict[Any, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return f"profile:{self.path or self.profile.name}"

    @property
    def queued(self) -> bool:
        return self.profile.queued

    def seconds(self, work: Work, device: Device) -> float:
        launches = self.launches(work, device)
        if not self.queued:
            return sum(launch.host + launch.device for launch in launches)
        fronts = Fronts()
        for launch in launches:
            fronts.run(launch)
        return fronts.device

    def launches(self, work: Work, device: Device) -> tuple[Launch, ...]:
        found: list[Launch] = []
        after = 0.0
        for one in work.parts or (work,):
            if not one.num_kernels:
                continue
            if one.key is None and one.name not in _OWN:
                self._missed[one.name] = one.name
                found.append(Launch(after, Roofline().seconds(one, self.profile.device)))
                after = 0.0
                continue
            seconds = self._device_seconds(one)
            for _ in range(one.num_kernels):
                found.append(Launch(after + self._before(one.name), seconds))
                after = _of(self.profile.overheads.after, one.name)
        return (*found, Launch(after, 0.0)) if after else tuple(found)

    def _before(self, op: str) -> float:
        overheads = self.profile.overheads
        return overheads.between + _of(overheads.before, op) + overheads.launch

    def _device_seconds(self, work: Work) -> float:
        """Of one of the kernels that `work` stands for."""
        key = work if work.key is None else (work.key, work.lookup)
        seconds = self._known.get(key)
        if seconds is None:
            seconds = self._known[key] = self._price(work)
        return seconds

    def _price(self, work: Work) -> float:
        profile, nbytes = self.profile, work.nbytes / work.num_kernels
        entry = None if profile.table is None or work.key is None else profile.table.entries.get(work.key)
        if entry is not None:
            return entry.seconds
        kind = kernel_class(work.name)
        seconds = self._fitted(kind, work)
        if seconds is None and kind == "lookup":
            seconds = self._looked_up(work)
        if seconds is None and kind in profile.curves:
            seconds = profile.curves[kind].seconds(nbytes)
        if seconds is None:
            self._missed[work if work.key is None else work.key] = work.name
            bare = replace(work, num_kernels=0, flop=work.flop / work.num_kernels, nbytes=nbytes)
            seconds = Roofline().seconds(bare, profile.device)
        return seconds

    def _fitted(self, kind: KernelClass, work: Work) -> float | None:
        """By the product that is behind an operation; its backward pass takes longer in proportion to operations."""
        if kind not in _EXTENTS or work.key is None:
            return None
        extents = _EXTENTS[kind](work.key)
        fit = None if extents is None else self._fit(base_of(work.name), kind, extents.size, work.dtype)
        if extents is None or fit is None or not extents.flop:
            return None
        seconds = fit.seconds(extents.m, extents.n, extents.k, extents.count)
        return seconds * work.flop / extents.flop if work.flop else seconds

    def _fit(self, base: str, kind: KernelClass, size: str, dtype: str) -> ProductFit | None:
        """The fit of an operation, else of its class; of a convolution the one whose kernel is nearest in size."""
        fits = self.profile.fits
        for start in (base, kind):
            near = {key: key.removeprefix(start).removesuffix(f"/{dtype}") for key in fits if key.endswith(f"/{dtype}")}
            sizes = {
                key: rest for key, rest in near.items() if key.startswith(start) and (not rest or rest[0].isdigit())
            }
            if sizes:
                return fits[min(sizes, key=lambda key: _apart(sizes[key], size))]
        return None

    def _looked_up(self, work: Work) -> float | None:
        lookup, profile = work.lookup, self.profile
        if lookup is None or profile.cache is None or profile.cache_rate is None:
            return None
        rest = max(0.0, work.nbytes - 4.0 * lookup.per_sample * lookup.width)
        rates = {"cache_rate": profile.cache_rate, "memory_rate": profile.device.memory_rate}
        return lookup_seconds(lookup, 1, cache=profile.cache, rest=rest, **rates)

    def report(self) -> tuple[str, ...]:
        profile, counts = self.profile, Counter(self._missed.values())
        lanes = "host and device side by side" if profile.queued else "host and device one after the other"
        lines = [f"times by the profile {profile.name} of {profile.host}, {profile.date}, {lanes}: {profile.source}"]
        if counts:
            shown = ", ".join(f"{name} ({count})" for name, count in counts.most_common(5))
            lines.append(f"not in the profile, so by its roofline: {counts.total()} kernels or layers, {shown}")
        return tuple(lines)


def _of(seconds: Mapping[str, float], op: str) -> float:
    return seconds.get(op, seconds.get("default", 0.0))


def _apart(size: str, other: str) -> float:
    """How far two sizes of kernels like "3x3" are from each other; no size is that of any."""
    areas = [math.prod(map(int, one.split("x"))) if one else 1 for one in (size, other)]
    return abs(math.log(areas[0] / areas[1])) if size and other else 0.0
