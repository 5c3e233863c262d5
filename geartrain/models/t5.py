"""T5: encoder and decoder, root-mean-square norms before each part, a learned bias for distances instead of places.

    encoder   x = x + attention(norm(x));    x = x + W2 relu(W1 norm(x))                                `depth` times
    decoder   y = y + attention(norm(y)), only earlier places;    y = y + attention(norm(y), encoded);
              y = y + W2 relu(W1 norm(y))                                                               `depth` times
    scores    norm(y) / sqrt(width) E'       E: the token embedding, one for encoder, decoder and head

    attention   softmax(q k' + b) v          b: by head and distance, one table for all blocks of a stack, none in
    between

60,506,624 (small), 222,903,552 (base), 737,668,096 (large), 2,851,598,336 (3B) and 11,307,321,344 (11B) parameters.

Source: Raffel et al.: Exploring the limits of transfer learning (2019, arXiv 1910.10683, section 2.1 and 3.7;
vocabulary of 32,128 in the released models). Differs from the paper: a text of the same length goes in on both sides;
no dropout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from geartrain.models.preset import Preset, class_loss, tokens
from geartrain.models.traced import adamw

_EPSILON = 1e-6
_FARTHEST = 128


@dataclass(frozen=True, kw_only=True)
class T5Size:
    """The shape of a model: `depth` blocks in each stack, heads of `head_width`, `inner` between the linear maps."""

    width: int
    depth: int
    num_heads: int
    inner: int
    head_width: int = 64
    vocabulary: int = 32_128
    length: int = 512
    num_buckets: int = 32


class DistanceBias(nn.Module):
    """-> (heads, length, length), what is added to scores: near distances have a number each, far ones share."""

    buckets: Tensor
    later: Tensor | None

    def __init__(self, size: T5Size, both_ways: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(size.num_buckets, size.num_heads)
        places = torch.arange(size.length)
        buckets = _buckets(places[None, :] - places[:, None], size.num_buckets, both_ways)
        self.register_buffer("buckets", buckets, persistent=False)
        later = None if both_ways else torch.ones(size.length, size.length, dtype=torch.bool).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, length: int) -> Tensor:
        bias: Tensor = self.table(self.buckets[:length, :length]).permute(2, 0, 1)
        return bias if self.later is None else bias.masked_fill(self.later[:length, :length], -math.inf)


def _buckets(distance: Tensor, count: int, both_ways: bool) -> Tensor:
    """Half of the buckets for distances up to their number, half for logarithms of those up to `_FARTHEST`."""
    first = torch.zeros_like(distance)
    if both_ways:
        count //= 2
        first = (distance > 0).long() * count
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = count // 2
    ratio = (distance.clamp(min=1) / exact).log() / math.log(_FARTHEST / exact)
    far = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return first + torch.where(distance < exact, distance, far)


class Attention(nn.Module):
    """Queries from x, keys and values from `seen`, both (samples, length, width); without biases and scaling."""

    def __init__(self, size: T5Size) -> None:
        super().__init__()
        inner = size.num_heads * size.head_width
        self.num_heads = size.num_heads
        self.query = nn.Linear(size.width, inner, bias=False)
        self.key = nn.Linear(size.width, inner, bias=False)
        self.value = nn.Linear(size.width, inner, bias=False)
        self.out = nn.Linear(inner, size.width, bias=False)

    def forward(self, x: Tensor, seen: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (
            part(of).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part, of in ((self.query, x), (self.key, seen), (self.value, seen))
        )
        scores = q @ k.transpose(-2, -1)
        if bias is not None:
            scores = scores + bias
        out: Tensor = self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention to itself, in the decoder then to what was encoded, and two linear maps."""

    def __init__(self, size: T5Size, decodes: bool) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(size.width, eps=_EPSILON)
        self.attention = Attention(size)
        self.norm2 = nn.RMSNorm(size.width, eps=_EPSILON) if decodes else None
        self.across = Attention(size) if decodes else None
        self.norm3 = nn.RMSNorm(size.width, eps=_EPSILON)
        self.widen = nn.Linear(size.width, size.inner, bias=False)
        self.relu = nn.ReLU()
        self.narrow = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: Tensor, bias: Tensor, encoded: Tensor | None) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, bias)
        if self.norm2 is not None and self.across is not None and encoded is not None:
            x = x + self.across(self.norm2(x), encoded, None)
        out: Tensor = x + self.narrow(self.relu(self.widen(self.norm3(x))))
        return out


class Stack(nn.Module):
    """The blocks of one side and the norm after them."""

    def __init__(self, size: T5Size, decodes: bool) -> None:
        super().__init__()
        self.bias = DistanceBias(size, both_ways=not decodes)
        self.block = nn.ModuleList(Block(size, decodes) for _ in range(size.depth))
        self.norm = nn.RMSNorm(size.width, eps=_EPSILON)

    def forward(self, x: Tensor, encoded: Tensor | None = None) -> Tensor:
        bias = self.bias(x.shape[1])
        for block in self.block:
            x = block(x, bias, encoded)
        out: Tensor = self.norm(x)
        return out


class T5(nn.Module):
    """int64 (samples, at most `length`) -> scores (samples, length, vocabulary) of the same text decoded."""

    def __init__(self, size: T5Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.encoder = Stack(size, decodes=False)
        self.decoder = Stack(size, decodes=True)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = size.width**-0.5

    def forward(self, tokens: Tensor) -> Tensor:
        encoded = self.encoder(self.embedding(tokens))
        decoded = self.decoder(self.embedding(tokens), encoded)
        scores: Tensor = self.head(decoded * self.scale)
        return scores


def t5_preset(size: T5Size, num_parameters: int | None, source: str) -> Preset:
    """The preset of a size, under AdamW."""
    return Preset(
        model=lambda length: T5(replace(size, length=length)),
        example=tokens,
        num_parameters=num_parameters,
        source=source,
        loss=class_loss,
        optimizer=adamw,
        settings={"length": size.length},
    )


def _preset(which: str, size: T5Size, num_parameters: int) -> Preset:
    source = f"Raffel et al. 2019, arXiv 1910.10683, section 3.7 ({which}); 512 tokens in and out, AdamW"
    return t5_preset(size, num_parameters, source)


PRESETS = {
    "t5-small": _preset("small", T5Size(width=512, depth=6, num_heads=8, inner=2048), 60_506_624),
    "t5-base": _preset("base", T5Size(width=768, depth=12, num_heads=12, inner=3072), 222_903_552),
    "t5-large": _preset("large", T5Size(width=1024, depth=24, num_heads=16, inner=4096), 737_668_096),
    "t5-3b": _preset("3B", T5Size(width=1024, depth=24, num_heads=32, inner=16_384, head_width=128), 2_851_598_336),
    "t5-11b": _preset("11B", T5Size(width=1024, depth=24, num_heads=128, inner=65_536, head_width=128), 11_307_321_344),
}
