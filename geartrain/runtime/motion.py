"""Going through the motions: what is done so often on tensors without numbers that running it would take real time."""

from __future__ import annotations

import torch
from torch import Tensor

from geartrain.runtime.charging import charge
from geartrain.runtime.opcost import FREE, OpCosts

_costs = OpCosts()
_COPY = torch.ops.aten.copy_.default


def copy(target: Tensor, source: Tensor) -> None:
    """`target.copy_(source)`; without numbers there is nothing to move, so it is charged and not run."""
    if not (target.is_meta and source.is_meta):
        target.copy_(source)
        return
    work = _costs(_COPY, (target, source), None, target)
    if work is not FREE:
        charge(work)
