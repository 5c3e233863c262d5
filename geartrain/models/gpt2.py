"""GPT-2: decoder-only transformer, normalisation before each part, learned places.

    x = token(t) + place(0..T-1)
    x = x + attention(norm(x));   x = x + W2 gelu(W1 norm(x))        `depth` times
    scores = norm(x) E                                               E: the token embedding when tied, else its own

The small, medium and XL models have 124,439,808, 354,823,168 and 1,557,611,200 parameters with a tied head.

Source: Radford, Wu, Child, Luan, Amodei, Sutskever: Language models are unsupervised multitask learners (2019, section
2.3 and table 2; vocabulary of 50,257, context of 1,024). Differs from the released weights: queries, keys and values
are three linear maps instead of one of three times the width, which is the same arithmetic.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from geartrain.models.attention import SelfAttention
from geartrain.models.preset import TEXT_SETTINGS, Preset, class_loss, tokens
from geartrain.models.traced import adamw


@dataclass(frozen=True, kw_only=True)
class GPT2Size:
    """The shape of a model; `tied` when the head is the token embedding, `fused` when attention is one kernel."""

    width: int
    depth: int
    num_heads: int
    vocabulary: int = 50_257
    length: int = 1024
    dropout: float = 0.1
    tied: bool = True
    fused: bool = False


class Embedding(nn.Module):
    """int64 (samples, length) -> (samples, length, width)."""

    def __init__(self, size: GPT2Size) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.place = nn.Embedding(size.length, size.width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        out: Tensor = self.dropout(self.token(tokens) + self.place(places))
        return out


class Block(nn.Module):
    """Attention and two linear maps, each normalised before and added to its input."""

    def __init__(self, size: GPT2Size) -> None:
        super().__init__()
        width = size.width
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(
            width, size.num_heads, length=size.length, dropout=size.dropout, fused=size.fused
        )
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.narrow(self.gelu(self.widen(self.norm2(x)))))
        return out


def gpt2(size: GPT2Size) -> nn.Sequential:
    """A new model from int64 (samples, length) to scores (samples, length, vocabulary).

    Draws its weights from the global generator: normal with deviation 0.02, less for what is added to the residual.
    """
    embedding, head = Embedding(size), nn.Linear(size.width, size.vocabulary, bias=False)
    if size.tied:
        head.weight = embedding.token.weight
    model = nn.Sequential(
        OrderedDict(
            embedding=embedding,
            **{f"block{index}": Block(size) for index in range(size.depth)},
            norm=nn.LayerNorm(size.width),
            head=head,
        )
    )
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() == 2:
            added = name.endswith(("narrow.weight", "attention.out.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * size.depth) ** 0.5 if added else 0.02)
    return model


def gpt_preset(size: GPT2Size, num_parameters: int | None, source: str) -> Preset:
    """The preset of a size of GPT-2 or of a model like it, under AdamW; longer texts than its own add places."""

    def model(length: int = size.length, attention: str = "explicit") -> nn.Sequential:
        return gpt2(replace(size, length=max(length, size.length), fused=attention == "fused"))

    return Preset(
        model=model,
        example=tokens,
        num_parameters=num_parameters,
        source=source,
        loss=class_loss,
        optimizer=adamw,
        settings={"length": size.length, **TEXT_SETTINGS},
    )


def _preset(size: GPT2Size, num_parameters: int, which: str) -> Preset:
    return gpt_preset(size, num_parameters, f"Radford et al. 2019, table 2 ({which}); 1,024 tokens, tied head, AdamW")


PRESETS = {
    "gpt2": _preset(GPT2Size(width=768, depth=12, num_heads=12), 124_439_808, "small"),
    "gpt2-medium": _preset(GPT2Size(width=1024, depth=24, num_heads=16), 354_823_168, "medium"),
    "gpt2-xl": _preset(GPT2Size(width=1600, depth=48, num_heads=25), 1_557_611_200, "XL"),
}
