"""Workloads of Hugging Face configurations, without weights and without the network.

    hf:gpt2                     a name of the table `KNOWN`: the model is built here, of the families below
    hf:path/to/config.json      a configuration file, of the same families
    hf:any/other-name           with the optional package `transformers`, from its cache on this machine

Families are those of `model_type`: gpt2, llama and mistral (without the window on attention), bert, t5 (with relu). The
configuration's context is the length, at most 4,096 tokens; `length=` says another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from geartrain.errors import ConfigurationError, TaskError
from geartrain.models.bert import bert_preset
from geartrain.models.gpt2 import GPT2Size, gpt_preset
from geartrain.models.hf_auto import auto_workload
from geartrain.models.hf_known import known_config
from geartrain.models.llama import LlamaSize, llama_preset
from geartrain.models.preset import Preset
from geartrain.models.settings import Settings
from geartrain.models.t5 import T5Size, t5_preset
from geartrain.workload.spec import Workload

LONGEST = 4096
"""Tokens of a text, unless `length` says otherwise: contexts of many thousands are not what models are trained on."""

Config = Mapping[str, Any]


def hf_workload(hub_name: str, settings: Settings | None = None, *, name: str = "") -> Workload:
    """The workload of a configuration.

    Args:
        hub_name: of the table `KNOWN`, the path of a `config.json`, or of a model in the cache of `transformers`.
        settings: behind the name.
        name: of the workload; "hf:HUB_NAME" if left out.

    Raises UnknownName for a name that is not in the table where `transformers` is not installed or does not know it,
    TaskError for a file that is no configuration, ConfigurationError for one of another shape than its family here.
    """
    settings, name = settings or Settings(), name or f"hf:{hub_name}"
    known = known_config(hub_name)
    if known is not None:
        return _preset(known.config, f"config.json of {hub_name}", known.num_parameters).workload(name, settings)
    if hub_name.endswith(".json"):
        config = _read(Path(hub_name))
        if config["model_type"] in FAMILIES:
            return _preset(config, hub_name).workload(name, settings)
    return auto_workload(hub_name, settings, name=name)


def _read(path: Path) -> Config:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TaskError(f"cannot read the configuration {str(path)!r}: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise TaskError(f"{str(path)!r} is no configuration of Hugging Face: it has no model_type")
    return config


def _preset(config: Config, source: str, num_parameters: int | None = None) -> Preset:
    kind = config["model_type"]
    try:
        preset = FAMILIES[kind](config, f"{source} ({kind})")
        return replace(preset, num_parameters=num_parameters)
    except KeyError as error:
        raise TaskError(f"{source}: a {kind} configuration gives {error.args[0]}, and this one does not") from None


def _as_here(source: str, config: Config, wanted: Mapping[str, Any]) -> None:
    """ConfigurationError where a configuration has another shape than the family here; what it leaves out fits."""
    other = [
        f"{key} = {config[key]!r}, not {value!r}" for key, value in wanted.items() if config.get(key, value) != value
    ]
    if other:
        raise ConfigurationError(
            f"{source} has a shape that is not built here: {'; '.join(other)}\n"
            "  install transformers (pip install geartrain[transformers]) and give the model's name, or write a "
            "function that makes it and give path/file.py:function"
        )


def _gpt2(config: Config, source: str) -> Preset:
    width = config["n_embd"]
    inner = config.get("n_inner") or 4 * width
    _as_here(source, {**config, "n_inner": inner}, {"n_inner": 4 * width, "activation_function": "gelu_new"})
    size = GPT2Size(
        width=width,
        depth=config["n_layer"],
        num_heads=config["n_head"],
        vocabulary=config["vocab_size"],
        length=config["n_positions"],
        dropout=config.get("attn_pdrop", 0.1),
        tied=config.get("tie_word_embeddings", True),
    )
    return gpt_preset(size, None, source)


def _llama(config: Config, source: str) -> Preset:
    heads, width = config["num_attention_heads"], config["hidden_size"]
    _as_here(
        source, config, {"attention_bias": False, "mlp_bias": False, "head_dim": width // heads, "hidden_act": "silu"}
    )
    size = LlamaSize(
        width=width,
        depth=config["num_hidden_layers"],
        num_heads=heads,
        inner=config["intermediate_size"],
        vocabulary=config["vocab_size"],
        length=min(config["max_position_embeddings"], LONGEST),
        num_groups=config.get("num_key_value_heads", heads),
        tied=config.get("tie_word_embeddings", False),
    )
    return llama_preset(size, None, source)


def _bert(config: Config, source: str) -> Preset:
    width = config["hidden_size"]
    _as_here(source, config, {"intermediate_size": 4 * width, "type_vocab_size": 2, "max_position_embeddings": 512})
    return bert_preset(
        width,
        config["num_hidden_layers"],
        config["num_attention_heads"],
        None,
        source,
        vocabulary=config["vocab_size"],
        length=config["max_position_embeddings"],
    )


def _t5(config: Config, source: str) -> Preset:
    depth = config["num_layers"]
    _as_here(
        source,
        config,
        {"feed_forward_proj": "relu", "num_decoder_layers": depth, "tie_word_embeddings": True},
    )
    size = T5Size(
        width=config["d_model"],
        depth=depth,
        num_heads=config["num_heads"],
        inner=config["d_ff"],
        head_width=config["d_kv"],
        vocabulary=config["vocab_size"],
        length=config.get("n_positions", 512),
        num_buckets=config.get("relative_attention_num_buckets", 32),
    )
    return t5_preset(size, None, source)


FAMILIES: Mapping[str, Callable[[Config, str], Preset]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "bert": _bert,
    "t5": _t5,
}
"""`model_type` -> what makes the preset of a configuration."""
