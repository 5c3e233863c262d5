"""Configurations that are known without `transformers`: what public `config.json` files say of shapes.

Only keys that decide a shape are here. The counts of parameters are those of the released models, without heads for
BERT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class HFConfig:
    """What a `config.json` says, and how many parameters the released model has."""

    config: Mapping[str, Any]
    num_parameters: int


def _gpt2(width: int, depth: int, heads: int, num_parameters: int) -> HFConfig:
    config = {"model_type": "gpt2", "n_embd": width, "n_layer": depth, "n_head": heads}
    return HFConfig(config={**config, "vocab_size": 50_257, "n_positions": 1024}, num_parameters=num_parameters)


def _bert(width: int, depth: int, heads: int, num_parameters: int) -> HFConfig:
    config = {"model_type": "bert", "hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": heads}
    config |= {"intermediate_size": 4 * width, "vocab_size": 30_522, "max_position_embeddings": 512}
    return HFConfig(config=config, num_parameters=num_parameters)


def _t5(width: int, depth: int, heads: int, inner: int, num_parameters: int) -> HFConfig:
    config = {"model_type": "t5", "d_model": width, "num_layers": depth, "num_heads": heads, "d_ff": inner, "d_kv": 64}
    return HFConfig(config={**config, "vocab_size": 32_128, "n_positions": 512}, num_parameters=num_parameters)


def _llama(width: int, depth: int, heads: tuple[int, int], inner: int, num_parameters: int, **others: Any) -> HFConfig:
    config = {"model_type": "llama", "hidden_size": width, "num_hidden_layers": depth, "intermediate_size": inner}
    config |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "vocab_size": 32_000}
    return HFConfig(config={**config, "max_position_embeddings": 4096, **others}, num_parameters=num_parameters)


KNOWN: Mapping[str, HFConfig] = {
    "gpt2": _gpt2(768, 12, 12, 124_439_808),
    "gpt2-medium": _gpt2(1024, 24, 16, 354_823_168),
    "gpt2-large": _gpt2(1280, 36, 20, 774_030_080),
    "gpt2-xl": _gpt2(1600, 48, 25, 1_557_611_200),
    "bert-base-uncased": _bert(768, 12, 12, 109_482_240),
    "bert-large-uncased": _bert(1024, 24, 16, 335_141_888),
    "t5-small": _t5(512, 6, 8, 2048, 60_506_624),
    "t5-base": _t5(768, 12, 12, 3072, 222_903_552),
    "t5-large": _t5(1024, 24, 16, 4096, 737_668_096),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _llama(2048, 22, (32, 4), 5632, 1_100_048_384, max_position_embeddings=2048),
    "meta-llama/Llama-2-7b-hf": _llama(4096, 32, (32, 32), 11_008, 6_738_415_616),
    "meta-llama/Llama-2-13b-hf": _llama(5120, 40, (40, 40), 13_824, 13_015_864_320),
    "meta-llama/Llama-2-70b-hf": _llama(8192, 80, (64, 8), 28_672, 68_976_648_192),
    "meta-llama/Meta-Llama-3-8B": _llama(
        4096, 32, (32, 8), 14_336, 8_030_261_248, vocab_size=128_256, max_position_embeddings=8192
    ),
    "mistralai/Mistral-7B-v0.1": _llama(
        4096, 32, (32, 8), 14_336, 7_241_732_096, model_type="mistral", max_position_embeddings=32_768
    ),
}
"""Name on the hub -> its configuration."""

_OWNERS = ("openai-community", "google-bert", "google-t5")
"""Before names that the hub has with and without them."""


def known_config(hub_name: str) -> HFConfig | None:
    """The configuration of that name, if it is known; `openai-community/gpt2` is `gpt2`."""
    owner, _, short = hub_name.rpartition("/")
    return KNOWN.get(short if owner in _OWNERS else hub_name)
