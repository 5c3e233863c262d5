"""Models like Llama: decoder-only transformer, root-mean-square norms, turned places, gated linear maps, no biases.

    x = x + attention(norm(x))                    queries and keys turned by their place
    x = x + W2 (silu(W1 norm(x)) * W3 norm(x))    `depth` times
    scores = norm(x) E                            E is not the token embedding

    turning: the pair (x_i, x_(i + d/2)) of a head of width d, at place p, by the angle p * 10000^(-2i/d)

The first 7B has 6,738,415,616 parameters: width 4,096, 32 heads, 11,008 between the gated maps, vocabulary of 32,000.
Llama 2 has the same shape at 7B, 13,015,864,320 and 68,976,648,192 parameters beyond that, and eight heads of keys and
values at 70B.

Source: Touvron et al.: LLaMA (2023, arXiv 2302.13971, section 2.2 and table 2; 2,048 tokens), and Llama 2 (2023, arXiv
2307.09288, section 2.2 and table 1; 4,096 tokens; 13,824 and 28,672 between the gated maps: the released models).
Turning: Su et al. 2021, arXiv 2104.09864. Differs from the papers: fp32 throughout unless another type is asked for,
and attention as matrix products that keep their weights unless fused.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.models.attention import SelfAttention
from geartrain.models.preset import TEXT_SETTINGS, Preset, class_loss, tokens
from geartrain.models.traced import adamw

_BASE = 10_000.0
_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class LlamaSize:
    """The shape of a model.

    Attributes:
        width, depth, num_heads: of a token's vector, in blocks, of queries.
        inner: between the gated maps.
        vocabulary, length: in words.
        num_groups: heads of keys and values; as many as of queries if None.
        tied: whether the head is the token embedding.
        fused: whether attention is one kernel.
    """

    width: int = 4096
    depth: int = 32
    num_heads: int = 32
    inner: int = 11_008
    vocabulary: int = 32_000
    length: int = 2048
    num_groups: int | None = None
    tied: bool = False
    fused: bool = False


class Turn(nn.Module):
    """Rotary embedding of (..., length, head width): a query's product with a key depends on their distance."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, length: int) -> None:
        super().__init__()
        frequencies = _BASE ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(length), frequencies).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[-2]
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[:length] + torch.cat([-second, first], dim=-1) * self.sin[:length]


class Gated(nn.Module):
    """W2 (silu(W1 x) * W3 x)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.widen = nn.Linear(width, inner, bias=False)
        self.narrow = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.narrow(F.silu(self.gate(x)) * self.widen(x))
        return out


class Block(nn.Module):
    """Attention and gated maps, each normalised before and added to its input."""

    def __init__(self, size: LlamaSize) -> None:
        super().__init__()
        width = size.width
        self.norm1 = nn.RMSNorm(width, eps=_EPSILON)
        self.attention = SelfAttention(
            width,
            size.num_heads,
            length=size.length,
            bias=False,
            turn=Turn(width // size.num_heads, size.length),
            num_groups=size.num_groups,
            fused=size.fused,
        )
        self.norm2 = nn.RMSNorm(width, eps=_EPSILON)
        self.gated = Gated(width, size.inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.gated(self.norm2(x))
        return out


def llama(size: LlamaSize) -> nn.Sequential:
    """A new model from int64 (samples, at most `length`) to scores (samples, length, vocabulary).

    Draws its weights from the global generator, as torch's layers do. Build the largest under `torch.device("meta")`:
    the weights of 7B fill 27 GB.
    """
    embedding, head = nn.Embedding(size.vocabulary, size.width), nn.Linear(size.width, size.vocabulary, bias=False)
    if size.tied:
        head.weight = embedding.weight
    return nn.Sequential(
        OrderedDict(
            embedding=embedding,
            **{f"block{index}": Block(size) for index in range(size.depth)},
            norm=nn.RMSNorm(size.width, eps=_EPSILON),
            head=head,
        )
    )


def llama_preset(size: LlamaSize, num_parameters: int | None, source: str) -> Preset:
    """The preset of a size, under AdamW."""

    def model(length: int = size.length, attention: str = "explicit") -> nn.Sequential:
        return llama(replace(size, length=length, fused=attention == "fused"))

    return Preset(
        model=model,
        example=tokens,
        num_parameters=num_parameters,
        source=source,
        loss=class_loss,
        optimizer=adamw,
        settings={"length": size.length, **TEXT_SETTINGS},
    )


def _llama2(size: LlamaSize, num_parameters: int, which: str) -> Preset:
    source = f"Touvron et al. 2023, arXiv 2307.09288, table 1 ({which}); 4,096 tokens, fp32, AdamW"
    return llama_preset(replace(size, length=4096), num_parameters, source)


_13B = LlamaSize(width=5120, depth=40, num_heads=40, inner=13_824)
_70B = LlamaSize(width=8192, depth=80, num_heads=64, inner=28_672, num_groups=8)

PRESETS = {
    "llama-7b": llama_preset(
        LlamaSize(), 6_738_415_616, "Touvron et al. 2023, arXiv 2302.13971, table 2 (7B); 2,048 tokens, fp32, AdamW"
    ),
    "llama2-7b": _llama2(LlamaSize(), 6_738_415_616, "7B"),
    "llama2-13b": _llama2(_13B, 13_015_864_320, "13B"),
    "llama2-70b": _llama2(_70B, 68_976_648_192, "70B"),
}
