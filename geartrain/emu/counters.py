"""What a node's wire has carried, as its own kernel counts it: cheap enough to be read at every step."""

from __future__ import annotations

import os
import time
from typing import NamedTuple


class Carried(NamedTuple):
    """Bytes and packets, sent and received. A piece that the stack hands over whole counts its headers once."""

    sent: int
    sent_packets: int
    received: int
    received_packets: int


class HostCounter:
    """How much of the host's cores is in use: where it is nearly all, one measures the host and not the network."""

    def __init__(self) -> None:
        self._begun, self._before = time.monotonic(), _ticks()

    def read(self) -> tuple[float, float]:
        """Seconds since it was made, and the share of all cores that was in use in them."""
        (busy, every), (busy_before, every_before) = _ticks(), self._before
        return time.monotonic() - self._begun, (busy - busy_before) / max(every - every_before, 1)


def _ticks() -> tuple[int, int]:
    """(in use, in all) of all cores together, since the host was started."""
    with open("/proc/stat", encoding="ascii") as file:
        numbers = [int(text) for text in file.readline().split()[1:9]]
    idle = numbers[3] + numbers[4]
    return sum(numbers) - idle, sum(numbers)


class WireCounter:
    """Reads the counters of one device of the network that this process lives in; about 20 us a time.

    Args:
        interface: its name.
    """

    def __init__(self, interface: str) -> None:
        self._name = f"{interface}:".encode()
        self._file = os.open("/proc/thread-self/net/dev", os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Carried:
        """Since the device was made."""
        for line in os.pread(self._file, 65_536, 0).split(b"\n"):
            name, *numbers = line.split() or [b""]
            if name == self._name:
                received, received_packets, sent, sent_packets = (int(numbers[place]) for place in (0, 1, 8, 9))
                return Carried(sent, sent_packets, received, received_packets)
        raise LookupError(f"there is no network device {self._name.decode()!r}")
