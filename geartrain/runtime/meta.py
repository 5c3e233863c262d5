"""Modules whose tensors have shapes only, and what is traced on them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Step = Callable[[nn.Module, int], Tensor]
"""(module on the meta device, samples) -> scalar loss."""

OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def on_meta(module: nn.Module) -> nn.Module:
    """A copy of a module whose parameters and buffers have shapes only; nothing is allocated, tied ones stay tied."""
    memo: dict[int, Any] = {}
    for p in module.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    for b in module.buffers():
        memo[id(b)] = torch.empty_like(b, device="meta")
    return copy.deepcopy(module, memo)
