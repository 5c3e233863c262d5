"""Rates, by the kernel: a token bucket for a wire, classes of a hierarchical one where destinations differ.

burst     at least one frame as the network stack hands it over, which is up to 64 KiB of packets in one piece;
          the piece is kept to `PIECE` seconds of the rate, so that little is sent before the rate counts
queue     `QUEUE` bytes (of a class: `QUEUE_PIECES` pieces), more than senders put into it: nothing is dropped, as
          on a wire with flow control
window    what one connection may have on its way to a host: `WINDOW` seconds of what comes to it, and of a round
          trip. A sender faster than the wire to its receiver would fill the switch's queue for up to a second, and
          acknowledgements of what the receiver itself sends wait in that queue: a ring over one slow wire among
          fast ones then takes 10 to 20 % longer than its bytes do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from geartrain.emu.plan import ETHERNET_HEADER, TCP_HEADER, Way

PIECE = 1e-3  # chosen
QUEUE = 32 << 20  # bytes; chosen
WINDOW = 10e-3  # chosen: longer than a busy host leaves a process waiting
LEAST_WINDOW = 65_536
QUEUE_PIECES = 4000  # as a device's length of queue; chosen
_LARGEST_PIECE = 65_536
_ROOT = 0x10000
_IPV4 = 0x0800


def piece(rate: float, mtu: int) -> int:
    """Bytes that the network stack may hand over in one piece: two packets at least, 64 KiB at most."""
    if math.isinf(rate):
        return _LARGEST_PIECE
    return int(min(max(rate * PIECE, 2 * mtu), _LARGEST_PIECE))


def burst(rate: float, mtu: int) -> int:
    """Bytes that may leave at once: a piece with a header for each of its packets, and a little."""
    packets = math.ceil(piece(rate, mtu) / (mtu - TCP_HEADER))
    return piece(rate, mtu) + packets * (TCP_HEADER + ETHERNET_HEADER) + mtu


def window(rate: float, delay: float) -> int:
    """Bytes of a receiver's buffer, of which the kernel gives half to data: for a rate in bytes per second."""
    return max(round(2 * rate * (WINDOW + 2 * delay)), LEAST_WINDOW)


def shape(route: IPRoute, device: int, ways: Sequence[Way], mtu: int) -> None:
    """Hold what leaves a device to the rates of its ways."""
    if len(ways) == 1 and not ways[0].nodes:
        if math.isfinite(ways[0].rate):
            rate = round(ways[0].rate)
            route.tc("add", "tbf", device, handle=_ROOT, rate=rate, burst=burst(rate, mtu), limit=QUEUE)
        return
    route.tc("add", "htb", device, handle=_ROOT, default=0)
    for number, way in enumerate(ways, 1):
        rate = round(way.rate)
        size = burst(rate, mtu)
        route.tc("add-class", "htb", device, handle=_ROOT + number, parent=_ROOT, rate=rate, ceil=rate,
                 burst=size, cburst=size, quantum=mtu)  # fmt: skip
        for node in way.nodes:
            keys = [f"{0x0A4D0000 | node << 8:#010x}/0xffffff00+16"]
            route.tc("add-filter", "u32", device, parent=_ROOT, prio=1, protocol=_IPV4,
                     target=_ROOT + number, keys=keys)  # fmt: skip


def delay_by_kernel(route: IPRoute, device: int, ways: Sequence[Way]) -> None:
    """Hold back what leaves a device, by netem below its token buckets."""
    for number, way in enumerate(ways, 1):
        if way.latency > 0:
            below = {"parent": _ROOT + number} if math.isfinite(way.rate) else {}
            late = round(way.latency * 1e6)
            route.tc("add", "netem", device, handle=(0x200 + number) << 16, delay=late, limit=1_000_000, **below)


def has_netem(route: IPRoute, device: int) -> bool:
    """Whether this kernel has netem: it is put on a device without a queue of its own, and taken off again."""
    try:
        route.tc("add", "netem", device, handle=0x2000000, delay=1000)
    except NetlinkError:
        return False
    route.tc("del", "netem", device, handle=0x2000000)
    return True


def carried(route: IPRoute, device: int, ways: Sequence[Way]) -> dict[str, tuple[int, int]]:
    """Link -> (bytes, packets) that a device's shapers have let through, headers of all packets included."""
    if len(ways) == 1 and not ways[0].nodes:
        found = [_counts(q) for q in route.get_qdiscs() if q["index"] == device and q["handle"] == _ROOT]
        return {ways[0].link: found[0]} if found and ways[0].link else {}
    classes = {entry["handle"]: _counts(entry) for entry in route.get_classes(device)}
    return {way.link: classes.get(_ROOT + number, (0, 0)) for number, way in enumerate(ways, 1)}


def _counts(entry: Any) -> tuple[int, int]:
    stats = entry.get_attr("TCA_STATS2")
    basic = stats.get_attr("TCA_STATS_BASIC") if stats is not None else None
    return (int(basic["bytes"]), int(basic["packets"])) if basic is not None else (0, 0)
