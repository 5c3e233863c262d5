"""`Schedule`: when an exchange starts, and how late its result is applied; and the one that goes by steps, `Every`.

    due(t)      an exchange starts after step t
    applied(t)  the result of the one that started after step t - delay is applied after step t

Steps are counted from 1: `due(t)` is asked when t steps have been taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from geartrain.errors import StrategyError


class Schedule(ABC):
    """When an exchange starts, and how late it is applied.

    Attributes:
        delay: steps from the start of an exchange to when its result is applied; 0 applies it at once.
    """

    delay: int

    @abstractmethod
    def due(self, step: int, signal: float | None = None) -> bool:
        """Whether an exchange starts now.

        Args:
            step: steps taken so far.
            signal: what the method has measured, for schedules that go by more than steps.
        """


@dataclass(frozen=True, kw_only=True)
class Every(Schedule):
    """Every `period` steps, counted from step `start`.

        due(t) = t > start and (t - start) mod period = 0

    Args:
        period: steps, 1 or more.
        start: the step from which they are counted, e.g. the one in which post-local SGD switches.
        delay: steps, from 0 to `period`, so that one exchange is in flight at most.

    Example:
        >>> [step for step in range(12) if Every(period=4, start=2).due(step)]
        [6, 10]
    """

    period: int = 1
    start: int = 0
    delay: int = 0

    def __post_init__(self) -> None:
        if self.period < 1 or self.start < 0 or not 0 <= self.delay <= self.period:
            raise StrategyError(
                f"{self} cannot be: the period is 1 or more, the start 0 or more, and the delay from 0 to the period, "
                "as one exchange is in flight at most"
            )

    def due(self, step: int, signal: float | None = None) -> bool:
        return step > self.start and (step - self.start) % self.period == 0

    def applied(self, step: int) -> bool:
        """Whether the result of an exchange that started `delay` steps ago is applied now."""
        return self.due(step - self.delay)
