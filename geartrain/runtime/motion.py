"""Going through the motions: what is done so often on tensors without numbers that running it would take real time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from geartrain.cost.compute import Work
from geartrain.runtime.charging import charge
from geartrain.runtime.opcost import FREE, work_of

_COPY = torch.ops.aten.copy_.default
_copies: dict[tuple[Any, ...], Work] = {}
"""What copies cost, by all that it depends on. Few entries: shapes of parameters."""


def copy(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)`; without numbers there is nothing to move, so it is charged and not run."""
    if not (target.is_meta and source.is_meta):
        target.copy_(source)
        return
    key = (target.shape, source.shape, target.stride(), source.stride(), target.dtype, source.dtype)
    work = _copies.get(key)
    if work is None:
        work = _copies[key] = work_of(_COPY, (target, source), None, target)
    if work is not FREE:
        charge(work)
