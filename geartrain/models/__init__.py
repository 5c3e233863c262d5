"""Model definitions, and the workloads that are made from them: traced when first asked for, once per process."""

from collections.abc import Callable, Mapping
from functools import cache, partial

from geartrain.errors import UnknownName
from geartrain.models import alexnet, bert, googlenet, gpt2, llama, resnet, vgg
from geartrain.models.preset import Preset
from geartrain.workload.spec import Workload

PRESETS: Mapping[str, Preset] = {
    **alexnet.PRESETS,
    **vgg.PRESETS,
    **googlenet.PRESETS,
    **resnet.PRESETS,
    **bert.PRESETS,
    **gpt2.PRESETS,
    **llama.PRESETS,
}
"""Name -> the model behind it. A new one stands in the `PRESETS` of its model's file."""

WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    name: partial(preset.workload, name) for name, preset in PRESETS.items()
}
"""Name -> what builds it."""

WORKLOAD_SOURCES: Mapping[str, str] = {name: preset.source for name, preset in PRESETS.items()}
"""Name -> where the model comes from; told without building it."""


@cache
def get_workload(text: str) -> Workload:
    """The workload that a text stands for, built once per process; UnknownName if there is none."""
    if text not in WORKLOADS:
        raise UnknownName("workload", text, WORKLOADS)
    return WORKLOADS[text]()
