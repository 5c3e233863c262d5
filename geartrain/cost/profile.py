"""What was measured of a device, kernel by kernel, and the model that prices work by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, Work
from geartrain.cost.curves import ProductFit, TimeCurve
from geartrain.cost.kernel_class import KernelClass
from geartrain.cost.table import Table
from geartrain.errors import UnknownName


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
        fits: of products, by kind and type: "product/fp32", "convolution3x3/fp32".
        overheads: of the host.
        table: single operations at their shapes.
        errors: by kind: how many kernels were held out of the fits, and their mean and worst relative error.
        origins: where each constant comes from, as in `Cluster.origins`.
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

    def save(self, path: str | Path) -> None:
        """Write the profile as JSON."""
        raise NotImplementedError("profiles are not written yet")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read what `save` wrote."""
        raise NotImplementedError("profiles are not read yet")


@dataclass(frozen=True)
class Profiled(ComputeModel):
    """Prices work by a profile."""

    profile: Profile

    def __str__(self) -> str:
        return f"profile:{self.profile.name}"

    def seconds(self, work: Work, device: Device) -> float:
        raise NotImplementedError("profiles are not priced yet")


def load_profile(name_or_path: str) -> Profile:
    """The shipped profile of that name, or the one in that file; UnknownName if there is none."""
    raise UnknownName("profile", name_or_path, ())
