"""Workloads of any model that `transformers` can build from a configuration: on the meta device, without weights."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.errors import ConfigurationError, TaskError, UnknownName
from geartrain.models.hf_known import KNOWN
from geartrain.models.preset import class_loss
from geartrain.models.settings import Settings, of_their_kind
from geartrain.models.traced import Model, adamw, traced
from geartrain.runtime.untraceable import explained
from geartrain.workload.spec import Workload

LENGTH = 512
"""Tokens of a text, unless `length` says otherwise."""


def auto_workload(hub_name: str, settings: Settings, *, name: str) -> Workload:
    """The workload of a model from a configuration in the cache of `transformers`, or in a file; asks no network.

    A causal or a sequence-to-sequence language model where the configuration says so, else the bare model.

    Args:
        hub_name: on the hub, or the path of a `config.json`.
        settings: behind the name; its own one is `length`, for models that take text.
        name: of the workload.

    Raises ConfigurationError without `transformers`, UnknownName where it has no such configuration;
    TaskError where it cannot be built.
    """
    transformers = _transformers(hub_name)
    try:
        config = transformers.AutoConfig.from_pretrained(hub_name, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UnknownName("cached configuration of transformers", hub_name, KNOWN) from error
    with explained(name), torch.device("meta"):
        module = _kind(transformers, config).from_config(config)
    length = of_their_kind(name, settings.own, {"length": LENGTH})["length"]
    model = Model(module=_Output(module), inputs=[_input(module, config, length)], loss=class_loss, optimizer=adamw)
    return traced(
        model, settings, name=name, source=f"config.json of {hub_name}, transformers {transformers.__version__}"
    )


def _transformers(hub_name: str) -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        known = ", ".join(KNOWN)
        raise ConfigurationError(
            f"hf:{hub_name} needs the package transformers, which is not installed\n"
            f"  install it (pip install geartrain[transformers]), or give one that is known without it: {known}"
        ) from error


def _kind(transformers: Any, config: Any) -> Any:
    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    causal = any(name.endswith("ForCausalLM") or name.endswith("LMHeadModel") for name in config.architectures or ())
    return transformers.AutoModelForCausalLM if causal else transformers.AutoModel


def _input(module: Any, config: Any, length: int) -> Tensor:
    """What a sample is: a text or a picture."""
    match module.main_input_name:
        case "input_ids":
            return torch.empty(1, length, dtype=torch.long)
        case "pixel_values":
            return torch.empty(1, config.num_channels, config.image_size, config.image_size)
    raise TaskError(
        f"a model whose input is called {module.main_input_name!r} takes neither text nor pictures; write a function "
        "that makes it with its inputs, and give path/file.py:function"
    )


class _Output(nn.Module):
    """A model of `transformers` on its main input; returns scores, else its last hidden state."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.model = module

    def forward(self, given: Tensor) -> Tensor:
        more = {"decoder_input_ids": given} if self.model.config.is_encoder_decoder else {}
        output = self.model(**{self.model.main_input_name: given}, **more)
        logits = getattr(output, "logits", None)
        found: Tensor = output.last_hidden_state if logits is None else logits
        return found
