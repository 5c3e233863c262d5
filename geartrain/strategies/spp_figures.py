"""What SPP's examples come to: list ordering on given times, and what the order of devices is worth.

iteration_time  T of list ordering                                                        seconds
bound_used      T / ((M + 4N - 4) C + max A), at most 1
order_gain      T of the best plan in the order of the devices' numbers / T of the best plan in SPP's order
"""

from __future__ import annotations

from collections.abc import Sequence

from geartrain.parallel.list_order import Channel, Times, list_order
from geartrain.parallel.ordering import min_cut_order
from geartrain.parallel.planning import UniformPrices, partition


def iteration_time(*, forward: Sequence[float], backward: Sequence[float], channel: float, micro_batches: int) -> float:
    """Seconds of one iteration by list ordering.

    Args:
        forward, backward: of each stage for a micro-batch.
        channel: of each channel for a micro-batch, each way; half duplex.
        micro_batches: M.
    """
    return list_order(_times(forward, backward, channel), micro_batches).total


def bound_used(*, forward: Sequence[float], backward: Sequence[float], channel: float, micro_batches: int) -> float:
    """How much of its bound list ordering takes; arguments as for `iteration_time`."""
    times = _times(forward, backward, channel)
    return list_order(times, micro_batches).total / times.bound(micro_batches)


def _times(forward: Sequence[float], backward: Sequence[float], channel: float) -> Times:
    channels = (Channel(channel, channel),) * (len(forward) - 1)
    sums = (0.0,) * len(forward)
    return Times(forward=tuple(forward), backward=tuple(backward), channels=channels, sums=sums)


def order_gain(
    *, work: float, handed_on: Sequence[float], places: str, fast: float, slow: float, stages: int, micro_batches: int
) -> float:
    """How many times as long a planner takes that leaves devices in the order of their numbers.

    Args:
        work: seconds of one part forward for a micro-batch; all are alike, and backward takes twice as long.
        handed_on: bytes that each part hands on for a micro-batch; as many come back.
        places: of each device, a letter; devices at one place have fast wires.
        fast, slow: bytes per second within a place and between places.
        stages: of the pipeline, without replicas.
        micro_batches: M.
    """
    rates = [[0.0 if a == b else fast if places[a] == places[b] else slow for b in range(len(places))]
             for a in range(len(places))]  # fmt: skip
    parts = len(handed_on)
    prices = UniformPrices([work] * parts, [2 * work] * parts, handed_on, handed_on, [0.0] * parts, rates)
    blind = _time(prices, range(len(places)), stages, micro_batches)
    return blind / _time(prices, min_cut_order(rates), stages, micro_batches)


def _time(prices: UniformPrices, order: Sequence[int], stages: int, micro_batches: int) -> float:
    """By list ordering, on the plan of dynamic programming."""
    plan, _ = partition(prices, order, stages, micro_batches, replicate=False)
    pieces = plan.pieces
    work = [prices.work(span, plan.ranks_of(piece)) for piece, span in enumerate(pieces)]
    channels = tuple(
        prices.channel(span.stop, plan.ranks_of(piece), plan.ranks_of(piece + 1))
        for piece, span in enumerate(pieces[:-1])
    )
    forward, backward = zip(*work, strict=True)
    times = Times(forward=forward, backward=backward, channels=channels, sums=(0.0,) * stages)
    return list_order(times, micro_batches).total
