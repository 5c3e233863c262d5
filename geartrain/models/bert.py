"""BERT, uncased: encoder-only transformer, normalisation after each part, pooler of the first token.

    x = norm(word(t) + place(0..T-1) + segment(0))
    x = norm(x + attention(x));   x = norm(x + W2 gelu(W1 x))        `depth` times
    pooled = tanh(W x_0)

The base and large models have 109,482,240 and 335,141,888 parameters with the pooler and without any head. The step is
that of fine-tuning: the loss looks at the pooled vector alone.

Source: Devlin, Chang, Lee, Toutanova: BERT (2018, arXiv 1810.04805, section 3 and appendix A.2; vocabulary of 30,522).
Differs from the paper: the classifier of fine-tuning, a few thousand numbers, is left out.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

from geartrain.models.attention import SelfAttention
from geartrain.models.preset import TEXT_SETTINGS, Preset, class_loss, tokens
from geartrain.models.traced import adamw

_DROPOUT = 0.1
_EPSILON = 1e-12


class Embedding(nn.Module):
    """int64 (samples, length) of one text -> (samples, length, width)."""

    def __init__(self, width: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(length, width)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.word(tokens) + self.place(places) + self.segment(torch.zeros_like(tokens))
        out: Tensor = self.dropout(self.norm(embedded))
        return out


class Block(nn.Module):
    """Attention and two linear maps, each added to its input and normalised after."""

    def __init__(self, width: int, num_heads: int, fused: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(width, num_heads, dropout=_DROPOUT, fused=fused)
        self.norm1 = nn.LayerNorm(width, eps=_EPSILON)
        self.widen = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.narrow = nn.Linear(4 * width, width)
        self.norm2 = nn.LayerNorm(width, eps=_EPSILON)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        out: Tensor = self.norm2(x + self.dropout(self.narrow(self.gelu(self.widen(x)))))
        return out


class Pooler(nn.Module):
    """(samples, length, width) -> (samples, width), from the first token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(x[:, 0]).tanh()
        return out


def bert(
    width: int, depth: int, num_heads: int, vocabulary: int = 30_522, length: int = 512, fused: bool = False
) -> nn.Sequential:
    """A new model from int64 (samples, at most `length`) to pooled vectors (samples, width).

    Draws its weights from the global generator, as torch's layers do.
    """
    return nn.Sequential(
        OrderedDict(
            embedding=Embedding(width, vocabulary, length),
            **{f"block{index}": Block(width, num_heads, fused) for index in range(depth)},
            pooler=Pooler(width),
        )
    )


def bert_preset(
    width: int,
    depth: int,
    num_heads: int,
    num_parameters: int | None,
    source: str,
    *,
    vocabulary: int = 30_522,
    length: int,
) -> Preset:
    """The preset of a size on texts of `length`, under AdamW; a text of more than 512 tokens gives it more places."""

    def model(length: int = length, attention: str = "explicit") -> nn.Sequential:
        return bert(width, depth, num_heads, vocabulary, max(length, 512), attention == "fused")

    return Preset(
        model=model,
        example=tokens,
        num_parameters=num_parameters,
        source=source,
        loss=class_loss,
        optimizer=adamw,
        settings={"length": length, **TEXT_SETTINGS},
    )


def _preset(width: int, depth: int, num_heads: int, num_parameters: int, length: int) -> Preset:
    source = f"Devlin et al. 2018, arXiv 1810.04805; uncased, with pooler; fine-tuning, {length} tokens, AdamW"
    return bert_preset(width, depth, num_heads, num_parameters, source, length=length)


PRESETS = {
    "bert-base": _preset(768, 12, 12, 109_482_240, 128),
    "bert-base-512": _preset(768, 12, 12, 109_482_240, 512),
    "bert-large": _preset(1024, 24, 16, 335_141_888, 128),
    "bert-large-512": _preset(1024, 24, 16, 335_141_888, 512),
}
