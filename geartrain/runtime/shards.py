"""Sharded updates: a rank sums the gradients of its shard in a fixed order and updates it with its own optimizer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from geartrain.errors import StrategyError
from geartrain.runtime.buckets import Layout, even_cuts, trainable
from geartrain.runtime.worker import Task

Split = Literal["even", "tensors"]

# Each element's update depends on that element's gradients alone, so a slice may be updated on its own.
_ELEMENTWISE = (
    torch.optim.ASGD,
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.SGD,
)


def deal_tensors(num_tensors: int, num_shards: int) -> list[list[int]]:
    """Whole tensors dealt round-robin in registration order: shard s has tensors s, s + num_shards, ..."""
    return [list(range(shard, num_tensors, num_shards)) for shard in range(num_shards)]


def shard_sizes(numels: Sequence[int], num_shards: int, split: Split) -> list[int]:
    """Elements of each shard of a model whose tensors have these numbers of elements."""
    if split == "tensors":
        return [sum(numels[index] for index in indices) for indices in deal_tensors(len(numels), num_shards)]
    cuts = even_cuts(sum(numels), num_shards)
    return [end - begin for begin, end in itertools.pairwise(cuts)]


def shard_layout(model: nn.Module, num_shards: int, split: Split) -> Layout:
    """The model's parameters in one flat tensor, cut so that each bucket is one shard."""
    parameters = trainable(model)
    kinds = {(parameter.dtype, parameter.device) for parameter in parameters}
    if len(kinds) != 1:
        named = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "no trainable parameter"
        raise StrategyError(
            f"sharded updates need trainable parameters of one data type on one device; the model has {named}.\n"
            "  use synchronous, which keeps a bucket for each"
        )
    sizes = shard_sizes([parameter.numel() for parameter in parameters], num_shards, split)
    if split == "tensors":
        order = [index for indices in deal_tensors(len(parameters), num_shards) for index in indices]
        parameters = [parameters[index] for index in order]
    cuts = [0]
    for size in sizes:
        cuts.append(cuts[-1] + size)
    return Layout(tuple(parameters), tuple(cuts))


def add_in_order(parts: Sequence[Tensor], into: int) -> None:
    """parts[into] becomes ((parts[0] + parts[1]) + parts[2]) + ..., whichever it is; earlier parts are used up."""
    for earlier, part in itertools.pairwise(parts[: into + 1]):
        part.add_(earlier)  # a sum of two does not depend on their order
    for part in parts[into + 1 :]:
        parts[into].add_(part)


class ShardUpdate:
    """The optimizer of one shard.

    Args:
        task: makes the optimizer.
        flat: the shard's values, 1-D; updated in place.
        gradient: where its gradient will be, 1-D.
        shapes: the shapes of the whole tensors that the shard consists of; None when it may cut through tensors, which
            needs an optimizer that works element by element.
    """

    def __init__(self, task: Task, flat: Tensor, gradient: Tensor, shapes: Sequence[torch.Size] | None = None) -> None:
        whole = [flat.shape] if shapes is None else list(shapes)
        parameters = [nn.Parameter(view) for view in _cut(flat, whole)]
        for parameter, view in zip(parameters, _cut(gradient, whole), strict=True):
            parameter.grad = view
        self.optimizer = task.optimizer(parameters)
        if isinstance(self.optimizer, torch.optim.LBFGS) or (shapes is None and not _is_elementwise(self.optimizer)):
            raise StrategyError(
                f"{type(self.optimizer).__name__} does not update element by element; shards cannot be updated apart.\n"
                "  use synchronous, or parameter_server:shard=tensors where whole tensors are enough for it"
            )

    def apply(self) -> None:
        """Update the shard with what is in its gradient now."""
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)


def regroup_even(updates: Sequence[dict[str, Any] | None], index: int, num_shards: int) -> dict[str, Any]:
    """The optimizer state of one of `num_shards` even shards, from the states of all shards of another number.

    What an element-wise optimizer keeps for each element is joined and cut anew; what it keeps once (a count of steps)
    is the same for all.

    Args:
        updates: `ShardUpdate.state_dict()` of all shards in order; None of one without elements.
    """
    there = [update for update in updates if update is not None]
    kept: dict[str, Any] = {}
    for name, value in there[0]["state"].get(0, {}).items():
        if not isinstance(value, Tensor) or value.dim() == 0:
            kept[name] = value
            continue
        if value.dim() != 1:
            raise StrategyError(f"{name!r}, which the optimizer keeps, is not one number for each element of a shard")
        whole = torch.cat([update["state"][0][name] for update in there])
        cuts = even_cuts(whole.numel(), num_shards)
        kept[name] = whole[cuts[index] : cuts[index + 1]].clone()
    return {**there[0], "state": {0: kept} if kept else {}}


def _cut(flat: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """The tensors of these shapes that lie one after another in a flat one."""
    parts = flat.split([shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def _is_elementwise(optimizer: torch.optim.Optimizer) -> bool:
    # An optimizer that torch does not bring is taken at its word: it cannot be told from outside.
    known = type(optimizer).__module__.startswith("torch.optim")
    return isinstance(optimizer, _ELEMENTWISE) or not known
