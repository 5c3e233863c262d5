"""Self-attention of several heads, the part that all transformers here share.

    heads    q, k, v = x Wq, x Wk, x Wv                    split into heads of width / num_heads
    scores   s = q k' / sqrt(head width)                   -inf where a later place would be seen, if causal
    out      (softmax(s) v) Wo

Explicit, it is written out as matrix products, so that every device runs the same operations: what a fused kernel
would be called and what it keeps for backward differs between devices, and then a table measured on one does not price
another. Fused, it is one kernel that keeps no scores for backward and moves none; traced, it is the one of CUDA
devices.

Where keys and values have fewer heads than queries, groups of queries share them (grouped-query attention).

Source: Vaswani et al.: Attention is all you need (2017, arXiv 1706.03762, section 3.2). Groups: Ainslie et al. 2023,
arXiv 2305.13245. Fused: Dao et al.: FlashAttention (2022, arXiv 2205.14135).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.torch_private import flash_attention_shapes


class SelfAttention(nn.Module):
    """(samples, length, width) -> the same.

    Args:
        width: of a token's vector; a multiple of `num_heads`.
        num_heads: heads.
        length: longest sequence if every place sees only itself and earlier ones; None if all places see all.
        dropout: of the attention weights.
        bias: whether the four linear maps have one.
        turn: applied to queries and keys of shape (samples, heads, length, head width), e.g. a rotary embedding.
        num_groups: heads of keys and values; as many as queries have if left out.
        fused: one kernel for scores, softmax and sum.
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
        num_groups: int | None = None,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.num_heads, self.num_groups = num_heads, num_groups or num_heads
        self.dropout, self.turn, self.fused, self.causal = dropout, turn, fused, length is not None
        inner = width // num_heads * self.num_groups
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, inner, bias=bias)
        self.value = nn.Linear(width, inner, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        later = None if length is None or fused else torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", later, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q = _heads(self.query(x), self.num_heads)
        k, v = (_heads(part(x), self.num_groups) for part in (self.key, self.value))
        if self.turn is not None:
            q, k = self.turn(q), self.turn(k)
        if self.num_groups != self.num_heads:
            k, v = (part.repeat_interleave(self.num_heads // self.num_groups, dim=1) for part in (k, v))
        seen = self._fused(q, k, v) if self.fused else self._explicit(q, k, v)
        out: Tensor = self.out(seen.transpose(1, 2).flatten(2))
        return out

    def _explicit(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
        if self.mask is not None:
            length = q.shape[-2]
            scores = scores.masked_fill(self.mask[:length, :length], -math.inf)
        return F.dropout(scores.softmax(-1), self.dropout, self.training) @ v

    def _fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if q.is_meta:  # where the public function would write it out
            return flash_attention_shapes(q, k, v, dropout, self.causal)
        seen: Tensor = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        return seen


def _heads(x: Tensor, count: int) -> Tensor:
    heads: Tensor = x.unflatten(-1, (count, -1)).transpose(1, 2)
    return heads
