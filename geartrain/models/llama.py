"""A model like Llama 7B: decoder-only transformer, root-mean-square norms, turned places, gated linear maps, no biases.

    x = x + attention(norm(x))                    queries and keys turned by their place
    x = x + W2 (silu(W1 norm(x)) * W3 norm(x))    32 times
    scores = norm(x) E                            E is not the token embedding

    turning: the pair (x_i, x_(i + d/2)) of a head of width d, at place p, by the angle p * 10000^(-2i/d)

6,738,415,616 parameters: width 4,096, 32 heads, 11,008 between the gated maps, vocabulary of 32,000.

Source: Touvron et al.: LLaMA (2023, arXiv 2302.13971, section 2.2 and table 2; 2,048 tokens). Turning: Su et al. 2021,
arXiv 2104.09864. Differs from the paper: fp32 throughout, and attention as matrix products that keep their weights.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.models.attention import SelfAttention
from geartrain.models.preset import Preset, adamw, class_loss, tokens

_BASE = 10_000.0
_EPSILON = 1e-6


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

    def __init__(self, width: int, inner: int, num_heads: int, length: int) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(width, eps=_EPSILON)
        turn = Turn(width // num_heads, length)
        self.attention = SelfAttention(width, num_heads, length=length, bias=False, turn=turn)
        self.norm2 = nn.RMSNorm(width, eps=_EPSILON)
        self.gated = Gated(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.gated(self.norm2(x))
        return out


def llama(
    width: int = 4096,
    depth: int = 32,
    num_heads: int = 32,
    inner: int = 11_008,
    vocabulary: int = 32_000,
    length: int = 2048,
) -> nn.Sequential:
    """A new model from int64 (samples, at most `length`) to scores (samples, length, vocabulary).

    Draws its weights from the global generator, as torch's layers do. Build the largest under `torch.device("meta")`:
    its weights fill 27 GB.
    """
    return nn.Sequential(
        OrderedDict(
            embedding=nn.Embedding(vocabulary, width),
            **{f"block{index}": Block(width, inner, num_heads, length) for index in range(depth)},
            norm=nn.RMSNorm(width, eps=_EPSILON),
            head=nn.Linear(width, vocabulary, bias=False),
        )
    )


PRESETS = {
    "llama-7b": Preset(
        model=llama,
        example=tokens(2048),
        num_parameters=6_738_415_616,
        source="Touvron et al. 2023, arXiv 2302.13971, table 2 (7B); 2,048 tokens, fp32, AdamW",
        loss=class_loss,
        optimizer=adamw,
    ),
}
