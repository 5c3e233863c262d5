"""Model definitions, and the workloads that are made from them: traced when first asked for, once per process."""

from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

from geartrain.errors import UnknownName
from geartrain.models import alexnet, bert, dlrm, googlenet, gpt2, gpt3, llama, resnet, t5, vgg
from geartrain.models.hf import hf_workload
from geartrain.models.hf_known import known_config
from geartrain.models.kept import kept_workload
from geartrain.models.own import own_workload
from geartrain.models.preset import Preset
from geartrain.models.settings import split
from geartrain.workload.spec import Workload

PRESETS: Mapping[str, Preset] = {
    **alexnet.PRESETS,
    **vgg.PRESETS,
    **googlenet.PRESETS,
    **resnet.PRESETS,
    **bert.PRESETS,
    **gpt2.PRESETS,
    **gpt3.PRESETS,
    **llama.PRESETS,
    **t5.PRESETS,
    **dlrm.PRESETS,
}
"""Name -> the model behind it. A new one stands in the `PRESETS` of its model's file."""

WORKLOADS: Mapping[str, Callable[[], Workload]] = {
    name: partial(preset.workload, name) for name, preset in PRESETS.items()
}
"""Name -> what builds it."""

WORKLOAD_SOURCES: Mapping[str, str] = {name: preset.source for name, preset in PRESETS.items()}
"""Name -> where the model comes from; told without building it."""

HF = "hf:"
"""Before the name or the file of a Hugging Face configuration."""


def get_workload(text: str) -> Workload:
    """The workload that a text stands for, built once per process.

    Args:
        text: the name of a preset; "hf:ID" or "hf:path/config.json", see `geartrain.models.hf`; or
            "path/to/file.py:function", see `geartrain.models.own`. Each may be followed by settings,
            ":dtype=bf16,checkpointing=blocks", see `geartrain.models.settings`.

    Raises UnknownName for a name, setting or choice that is not known, TaskError for a model that cannot be traced.
    """
    return _workload(text, _changed(split(text)[0]))


def _changed(name: str) -> int:
    """When the file that a text names was changed last; 0 where it names none."""
    path = Path(name.removeprefix(HF) if name.startswith(HF) else name.rpartition(":")[0])
    return path.stat().st_mtime_ns if path.suffix in (".py", ".json") and path.is_file() else 0


@cache
def _workload(text: str, changed: int) -> Workload:
    name, settings = split(text)
    if name in PRESETS:
        return kept_workload(text, lambda: PRESETS[name].workload(text, settings))
    if name.startswith(HF) and known_config(name.removeprefix(HF)):
        return kept_workload(text, lambda: hf_workload(name.removeprefix(HF), settings, name=text))
    if name.startswith(HF):
        return hf_workload(name.removeprefix(HF), settings, name=text)
    path, _, function = name.rpartition(":")
    if path.endswith(".py"):
        return own_workload(Path(path), function, settings, name=text)
    raise UnknownName("workload", name, [*WORKLOADS, "hf:ID", "path/file.py:function"])
