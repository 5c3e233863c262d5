"""geartrain: one training strategy, written once, on any cluster: real, emulated or simulated.

Public names are loaded when first used, so that reading a cluster or a cost needs no torch. A new name goes into three
places below, in sorted order; a test compares them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geartrain.api import init
    from geartrain.models.traced import Model
    from geartrain.runtime.attach import attach, attached

__version__ = "0.1.0"

__all__ = [
    "Model",
    "__version__",
    "attach",
    "attached",
    "init",
]

# name -> the module that defines it
_HOMES: dict[str, str] = {
    "Model": "geartrain.models.traced",
    "attach": "geartrain.runtime.attach",
    "attached": "geartrain.runtime.attach",
    "init": "geartrain.api",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
