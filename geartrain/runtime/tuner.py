"""`Tuner`: finds a number while training goes on, by Bayesian optimisation of the time of a step.

    trial k     a window of steps with x_k; y_k = mean time of the steps in it, without the first one, which may pay for
                the change. The very first window of a run warms up and does not count.
    x_1         = where one starts
    x_k+1       = argmax over a grid of E[max(0, y_best - xi * s - Y(x))],   Y ~ Gaussian process through the trials
    in the end  the x_k with the least y_k

Times are standardised before the process is fitted, s is their standard deviation, and x is taken in the logarithm:
all three are chosen. Deterministic: the same times give the same trials.

Source: Zhang et al., 2023, arXiv 2302.12445, tunes its buffer size so (10 trials of 5 steps, xi = 0.1); the process is
scikit-learn's.
"""

from __future__ import annotations

import math
import statistics
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GRID = 200
"""Points among which the next trial is chosen."""


class Tuner:
    """Proposes values for a number above 0, given how long steps take with them.

    Args:
        low, high: bounds.
        start: the first value.
        trials: how many values are tried.
        window: steps of each trial, 2 or more.
        xi: how much better, in standard deviations of the times, a value shall be expected to be.

    Example:
        tuner = Tuner(1e6, 100e6, start=25e6)
        if tuner.observe(seconds):           # after every step
            tuner.use(tuner.proposal())      # the first worker's, where there are several
    """

    def __init__(
        self, low: float, high: float, start: float, *, trials: int = 10, window: int = 5, xi: float = 0.1
    ) -> None:
        self._low, self._high, self._xi = low, high, xi
        self._trials, self._window = trials, window
        self._seconds: list[float] = []
        self._warm = False
        self._tried: list[tuple[float, float]] = []
        self.value = start
        self.done = False

    def observe(self, seconds: float) -> bool:
        """A step took so long; whether a new value is due."""
        if self.done:
            return False
        self._seconds.append(seconds)
        if len(self._seconds) < self._window:
            return False
        mean, self._seconds = statistics.fmean(self._seconds[1:]), []
        if not self._warm:
            self._warm = True
            return False
        self._tried.append((self.value, mean))
        return True

    def proposal(self) -> float:
        """The next value to try, or after the last trial the best of them."""
        if len(self._tried) < self._trials:
            return self._most_promising()
        return min(self._tried, key=lambda trial: trial[1])[0]

    def use(self, value: float) -> None:
        """Go on with this value: a proposal."""
        self.value, self.done = value, len(self._tried) >= self._trials

    def _most_promising(self) -> float:
        from sklearn.exceptions import ConvergenceWarning  # only who tunes waits for this import
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern

        process = GaussianProcessRegressor(Matern(0.2, (0.05, 2.0), nu=2.5), alpha=1e-4, normalize_y=True)
        grid = np.linspace(0.0, 1.0, _GRID)
        points = np.array([self._place(value) for value, _ in self._tried])
        times = np.array([seconds for _, seconds in self._tried])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # a length scale at its bound is as good as another
            process.fit(points[:, None], times)
        mean, deviation = process.predict(grid[:, None], return_std=True)
        gain = _expected_improvement(mean, deviation, times.min() - self._xi * times.std())
        return self._low * math.exp(float(grid[int(np.argmax(gain))]) * math.log(self._high / self._low))

    def _place(self, value: float) -> float:
        """From 0 at the lower bound to 1 at the upper one."""
        return math.log(value / self._low) / math.log(self._high / self._low)

    def state_dict(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "tried": list(self._tried),
            "seconds": list(self._seconds),
            "warm": self._warm,
            "done": self.done,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self._warm, self.done = state["value"], state["warm"], state["done"]
        self._tried, self._seconds = [tuple(trial) for trial in state["tried"]], list(state["seconds"])


def _expected_improvement(
    mean: NDArray[np.float64], deviation: NDArray[np.float64], target: float
) -> NDArray[np.float64]:
    """E[max(0, target - Y)] for normal Y."""
    gain = target - mean
    score = gain / np.maximum(deviation, 1e-12)
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in score])
    density = np.exp(-(score**2) / 2) / math.sqrt(2 * math.pi)
    return np.asarray(gain * below + deviation * density)
