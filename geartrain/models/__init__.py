"""Model definitions, and the workloads that are made from them."""

from collections.abc import Callable, Mapping
from functools import cache

from geartrain.errors import UnknownName
from geartrain.models import resnet
from geartrain.workload.spec import Workload

WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    "resnet50": resnet.resnet50_workload,
}
"""Name -> what builds it."""

WORKLOAD_SOURCES: Mapping[str, str] = {
    "resnet50": resnet.SOURCE,
}
"""Name -> where the model comes from; told without building it."""


@cache
def get_workload(name: str) -> Workload:
    """The workload of that name, built once per process; UnknownName if there is none."""
    if name not in WORKLOADS:
        raise UnknownName("workload", name, WORKLOADS)
    return WORKLOADS[name]()
