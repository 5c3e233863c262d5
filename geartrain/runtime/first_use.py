"""Neighbouring modules in groups, and when in forward the parameters of each group are first needed.

    groups       modules that own trainable parameters, in registration order; a shared parameter at its first owner
    needed at    the parameters of a module: before it runs
                 of one that does not run by itself (a ParameterList, the output projection of attention): before the
                 nearest module around it that runs, or at once where there is none. The first step shows it.

What is needed early is only ever asked for too early, never too late, with one exception: a module that reads the
parameters of another one, before that other one runs, in forward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


def group_neighbours(
    sizes: Sequence[int], kinds: Sequence[Hashable], *, threshold: int | None = None, count: int | None = None
) -> list[list[int]]:
    """Put neighbours into groups, from the first on.

        a group takes the next one while  size(group) + size(next) < threshold  and it has fewer than `count`

    What is larger than the threshold has a group of its own.

    Args:
        sizes: bytes.
        kinds: what must not be mixed in a group.
        threshold: bytes; None is no limit.
        count: members of a group; None is no limit.

    Example:
        >>> group_neighbours([4, 4, 4, 20, 4], "aaaaa", threshold=10)
        [[0, 1], [2], [3], [4]]
    """
    groups: list[list[int]] = []
    filled = 0
    for index, size in enumerate(sizes):
        current = groups[-1] if groups else []
        fits = (threshold is None or filled + size < threshold) and (count is None or len(current) < count)
        if current and fits and kinds[index] == kinds[current[-1]]:
            current.append(index)
            filled += size
        else:
            groups.append([index])
            filled = size
    return groups


def owned_parameters(model: nn.Module) -> list[tuple[nn.Parameter, ...]]:
    """The trainable parameters of each module that owns some, in registration order.

    A shared one is at its first owner; a module with several data types or devices counts once for each.
    """
    seen: set[nn.Parameter] = set()
    owned: list[tuple[nn.Parameter, ...]] = []
    for module in model.modules():
        kinds: dict[Hashable, list[nn.Parameter]] = {}
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and parameter not in seen:
                seen.add(parameter)
                kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        owned += map(tuple, kinds.values())
    return owned


class FirstUse:
    """Says, in every forward, which group is needed next.

    Args:
        model: whose forward is watched, by hooks on its modules; in evaluation, `eval()` without gradients, they rest.
        need: told the number of a group, before a module runs that needs it and perhaps some with lower numbers.
    """

    def __init__(self, model: nn.Module, need: Callable[[int], None]) -> None:
        self._need = need
        self._modules: dict[str, nn.Module] = dict(model.named_modules())
        self._holders: dict[nn.Parameter, list[nn.Module]] = {}
        for module in self._modules.values():
            for parameter in module.parameters(recurse=False):
                self._holders.setdefault(parameter, []).append(module)
        self._group_of: Mapping[nn.Parameter, int] = {}
        self._needed: dict[nn.Module, int] = {}
        self._ran: set[nn.Module] = set()  # in this step
        self._learned = False
        self._hooks: dict[nn.Module, RemovableHandle] = {
            module: module.register_forward_pre_hook(self._runs) for module in self._modules.values()
        }
        self.at_once = -1
        """The last group that no module announces: needed as soon as it can be had."""

    def assign(self, group_of: Mapping[nn.Parameter, int]) -> None:
        """The parameters are in these groups from now on."""
        self._group_of, self._needed, self.at_once = group_of, {}, -1
        for parameter, group in group_of.items():
            for module in self._holders[parameter]:
                self._needed[module] = max(group, self._needed.get(module, -1))
            if not self._holders[parameter]:
                self.at_once = max(group, self.at_once)

    def announced(self, parameter: nn.Parameter) -> bool:
        """Whether a module that stands for this parameter has run in this step; in the first step nobody knows."""
        holders = self._holders[parameter]
        return not (self._learned and holders) or not self._ran.isdisjoint(holders)

    def end_step(self, used: Iterable[nn.Parameter]) -> None:
        """A step is over; the first one shows for which of the parameters that it used other modules stand."""
        if not self._learned:
            self._learned = True
            self._learn(used)
        self._ran.clear()

    def _learn(self, used: Iterable[nn.Parameter]) -> None:
        names = {module: name for name, module in self._modules.items()}
        for parameter in used:
            holders = self._holders[parameter]
            if self._ran.isdisjoint(holders):
                around = [self._around(names[module]) for module in holders]
                self._holders[parameter] = [module for module in around if module is not None]
        self.assign(self._group_of)
        for module in [module for module in self._hooks if module not in self._needed]:
            self._hooks.pop(module).remove()

    def _around(self, name: str) -> nn.Module | None:
        """The nearest module around one that ran."""
        while name:
            name = name.rpartition(".")[0]
            if self._modules[name] in self._ran:
                return self._modules[name]
        return None

    def _runs(self, module: nn.Module, inputs: Any) -> None:
        # A re-entrant checkpoint runs forward without gradients, too: that is training, and needs what training needs.
        if not (torch.is_grad_enabled() or module.training):
            return
        self._ran.add(module)
        if module in self._needed:
            self._need(self._needed[module])

    def close(self) -> None:
        """Remove all hooks."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks.clear()
