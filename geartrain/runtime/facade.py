"""`Facade`: an optimizer that shows another one and steps in its own way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer


class Facade(Optimizer):
    """Shows `wrapped`: the same groups, state, defaults and names, whoever changes them. Only `step` differs.

    A real `Optimizer`, for learning-rate schedulers and gradient scalers ask for one. It has no state of its own, so a
    scheduler made from either of the two works for both.

    Args:
        wrapped: the optimizer that is shown.
        step: what `step(closure)` does.
    """

    def __init__(self, wrapped: Optimizer, step: Callable[[Callable[[], Any] | None], Any]) -> None:
        # Not the constructor of the base class: it would make groups of its own.
        self.wrapped, self._own_step = wrapped, step

    def __getattr__(self, name: str) -> Any:
        # What is not found here, the tables of hooks too, is the wrapped optimizer's.
        if name == "wrapped":
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.wrapped.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.wrapped.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.wrapped.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return self._own_step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.wrapped.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return self.wrapped.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.wrapped.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.wrapped.add_param_group(param_group)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.wrapped!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
