"""How many devices and how many parameter servers are worth having: two lemmas.

    lemma 1   speedup    = G (1 + R) / (1 + G R)          G devices, R = T_O / T_C: what does not shrink with G (T_O)
              efficiency = (1 + R) / (1 + G R)            over what does (T_C), both on one device
              R <= (1 - a) / (a G - 1)                    for an efficiency of a on G devices
              G <= (1 + R - a) / (a R)                    likewise
    lemma 2   N >= 2 S W / (B T)                          servers, so that pushes and pulls of S bytes by W workers hide
                                                          behind T seconds of computing; B bytes per second and server

Efficiency is that of time per sample: that a larger batch may need more samples is not in it. Lemma 2 wants parameters
that are spread evenly by bytes and wires on which nothing else is sent.

Source: Zou and others, 2017, arXiv 1709.06622, lemmas 1 and 2, recalled; each is derived again from its terms.
"""

from __future__ import annotations

import math

_ROUNDING = 1e-9
"""Relative error of quotients of floats, which must not become a whole device or server."""


def speedup(devices: int, overhead: float) -> float:
    """How many times as fast so many devices are as one.

    Args:
        overhead: R, time that does not shrink with devices over time that does.
    """
    return devices * efficiency(devices, overhead)


def efficiency(devices: int, overhead: float) -> float:
    """The speed-up per device."""
    return (1 + overhead) / (1 + devices * overhead)


def overhead_for(wanted: float, devices: int) -> float:
    """The largest R at which so many devices have an efficiency; infinite where any R will do.

    Args:
        wanted: the efficiency, above 0 and at most 1.
    """
    if wanted * devices <= 1:
        return math.inf
    return (1 - wanted) / (wanted * devices - 1)


def devices_for(wanted: float, overhead: float, most: int) -> int:
    """The most devices that have an efficiency; at least 1.

    Args:
        wanted: the efficiency, above 0 and at most 1.
        overhead: R.
        most: how many there are.
    """
    if overhead <= 0:
        return most
    bound = (1 + overhead - wanted) / (wanted * overhead)
    return max(1, min(most, math.floor(min(bound, most) * (1 + _ROUNDING))))


def servers_for(
    size: float,
    workers: int,
    rate: float,
    compute: float,
    *,
    duplex: bool = False,
    largest_share: float | None = None,
) -> int | None:
    """The fewest servers behind which pushes and pulls hide; None where no number of them does it.

    Args:
        size: bytes of all parameters.
        workers: that push and pull all of them in each round.
        rate: bytes per second of a server.
        compute: seconds of computing in a round.
        duplex: pushes and pulls travel at the same time, each with the whole rate.
        largest_share: of the bytes that one server has at least, where its tensors are not cut.
    """
    needed = (1 if duplex else 2) * size * workers / rate
    if not needed:
        return 1
    if compute <= 0 or (largest_share is not None and needed * largest_share > compute * (1 + _ROUNDING)):
        return None
    return max(1, math.ceil(needed / compute * (1 - _ROUNDING)))


def round_time(
    size: float,
    workers: int,
    servers: int,
    rate: float,
    compute: float,
    *,
    worker_rate: float = math.inf,
    duplex: bool = False,
    largest_share: float = 0.0,
) -> float:
    """Seconds of a round in which pushes and pulls run beside computing.

        max(T, 2 S W max(1/N, s) / B, 2 S / B_w)

    Args:
        size, workers, rate, compute, duplex: as for `servers_for`.
        servers: N.
        worker_rate: B_w, bytes per second of a worker.
        largest_share: s, of the bytes that one server has at least.
    """
    moved = (1 if duplex else 2) * size
    return max(compute, moved * workers * max(1 / servers, largest_share) / rate, moved / worker_rate)
