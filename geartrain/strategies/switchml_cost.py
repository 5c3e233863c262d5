"""Closed forms of SwitchML: how long a tensor takes through the switch, and what the wire allows at most.

For P packets of b bytes, sent in bursts of u (P / 8 at most), on wires of B bytes per second with a round trip of RTT:

    turn = RTT + 2 u b / B                  a burst goes up, and its sums come down
    wire = (P - u) b / B                    the bursts after the first, if the wire never rests
    wait = floor((P - 1) / s) turn + floor(((P - 1) mod s) / u) u b / B         if all s slots wait for their results
    T    = turn + max(wire, wait)
    T    = T + RTT + 2 u h / B              block floating point: first exponents, in headers of h bytes

With u = 1 and s >= turn B / b this is about the paper's RTT + P b / B, and with fewer slots P RTT / s; the packets
without integers are in its P.
"""

from __future__ import annotations

from dataclasses import dataclass

from geartrain.collectives.aggregation.packets import HEADER_SIZE
from geartrain.collectives.aggregation.stream import burst_size
from geartrain.models import get_workload


@dataclass(frozen=True, kw_only=True)
class Path:
    """Between workers and switch: seconds there and back, bytes per second each way."""

    round_trip: float
    rate: float


def aggregation_time(path: Path, *, num_packets: int, packet: int, slots: int, burst: int, ahead: bool) -> float:
    """Seconds until all sums of a tensor are there; see the module.

    Args:
        num_packets: P, with integers in them.
        packet: b, bytes.
        slots, burst: s and u.
        ahead: exponents go a window ahead.
    """
    together = min(slots, burst_size(num_packets, burst))
    turn = path.round_trip + 2 * together * packet / path.rate
    wire = (num_packets - together) * packet / path.rate
    rounds, rest = divmod(num_packets - 1, slots)
    waiting = rounds * turn + rest // together * together * packet / path.rate
    first = path.round_trip + 2 * together * HEADER_SIZE / path.rate if ahead else 0.0
    return first + turn + max(wire, waiting)


def elements_per_second(rate: float, payload: int, header: int) -> float:
    """Numbers of 32 bits that can be aggregated in a second: rate / (4 (1 + header / payload)).

    Args:
        rate: bytes per second.
        payload, header: bytes of a packet, the header with all that the wire adds.
    """
    return rate / (4 * (1 + header / payload))


def gain_over_ring(num_workers: int) -> float:
    """How many times as many bytes a worker sends in a ring: 2 (n - 1) / n."""
    return 2 * (num_workers - 1) / num_workers


def images_per_second(
    workload: str, alone: float, num_workers: int, batch: int, rate: float, payload: int, header: int
) -> float:
    """Training throughput where nothing of the aggregation is hidden: W b / (W b / alone + T).

    Args:
        workload: a preset.
        alone: images per second of all workers if communication took no time.
        batch: images of one worker.
        rate, payload, header: as above.
    """
    images = num_workers * batch
    aggregating = get_workload(workload).num_parameters / elements_per_second(rate, payload, header)
    return images / (images / alone + aggregating)
