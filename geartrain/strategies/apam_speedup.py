"""How fast APAM gets with workers, from two rows of a table: workers that think, and one master that serves.

    t_g    seconds of a worker for a gradient, its messages included
    s      seconds of the master for an update and a reply
    X(W)   updates per second with W workers:
           R(W) = s (1 + Q(W - 1)),   X(W) = W / (t_g + R(W)),   Q(W) = X(W) R(W),   Q(0) = 0
    speed-up(W) = X(W) / X(1),   at most (t_g + s) / s

This is the mean-value analysis of a closed network with one server, the card's wait in a queue made definite: linear
until the master is busy, with a soft bend. Only s / t_g matters; it is found from the published speed-up of the most
workers, and the rows between are then predicted.

Synchronous AMSGrad with a fixed global batch, per epoch: t(W) = gradient / W + fixed + traffic * W, three unknowns from
three rows.

Source: derived; after the cost model of Xu and others, 2020, arXiv 2002.09095, which was read in the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from geartrain.errors import ConfigurationError


def speedup(workers: int, most: int = 20, reached: float = 11.42) -> float:
    """The speed-up of so many workers, where `most` workers have reached one that was measured.

    Args:
        reached: above 1, at most `most`; the default is LeNet5 on MNIST in the authors' table.

    Example:
        >>> round(speedup(20), 2)
        11.42
    """
    if not 1 < reached <= most:
        raise ConfigurationError(f"a speed-up of {reached!r} with {most} workers is none; give one from 1 to {most}")
    low, high = 0.0, 1.0
    while high - low > 1e-12:  # more service, less speed-up
        middle = (low + high) / 2
        low, high = (middle, high) if _speedup(most, middle) > reached else (low, middle)
    return _speedup(workers, (low + high) / 2)


def _speedup(workers: int, service: float) -> float:
    """With `service` = s / t_g."""
    queue = rate = 0.0
    for count in range(1, workers + 1):
        response = service * (1 + queue)
        rate = count / (1 + response)
        queue = rate * response
    return rate * (1 + service)


def sync_epoch_time(
    workers: int, rows: Sequence[Sequence[float]] = ((1, 1.80), (5, 0.69), (10, 0.77)), unit: float = 3600.0
) -> float:
    """Seconds of an epoch of synchronous AMSGrad with a fixed global batch.

    Args:
        rows: three measured (workers, time); the default is ResNet18 on CINIC-10, hours read off the authors' plot.
        unit: seconds in a unit of the rows' times.
    """
    counts, times = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    gradient, fixed, traffic = np.linalg.solve(np.stack([1 / counts, np.ones(len(rows)), counts], axis=1), times)
    return float(unit * (gradient / workers + fixed + traffic * workers))
