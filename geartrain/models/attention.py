"""Self-attention of several heads, the part that all transformers here share.

    heads    q, k, v = x Wq, x Wk, x Wv                    split into heads of width / num_heads
    scores   s = q k' / sqrt(head width)                   -inf where a later place would be seen, if causal
    out      (softmax(s) v) Wo

Written out as matrix products, so that every device runs the same operations: what a fused kernel would be called and
what it keeps for backward differs between devices, and then a table measured on one does not price another.

Source: Vaswani et al.: Attention is all you need (2017, arXiv 1706.03762, section 3.2).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    """(samples, length, width) -> the same.

    Args:
        width: of a token's vector; a multiple of `num_heads`.
        num_heads: heads.
        length: longest sequence if every place sees only itself and earlier ones; None if all places see all.
        dropout: of the attention weights.
        bias: whether the four linear maps have one.
        turn: applied to queries and keys of shape (samples, heads, length, head width), e.g. a rotary embedding.
    """

    mask: Tensor | None

    def __init__(
        self,
        width: int,
        num_heads: int,
        *,
        length: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        turn: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout, self.turn = num_heads, dropout, turn
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        later = None if length is None else torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", later, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._heads(part(x)) for part in (self.query, self.key, self.value))
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
        if self.mask is not None:
            length = x.shape[1]
            scores = scores.masked_fill(self.mask[:length, :length], -math.inf)
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        out: Tensor = self.out((weights @ v).transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        return heads
