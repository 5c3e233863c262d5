"""How long a message takes: a ping-like exchange of datagrams between two networks, by one process in both."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from statistics import median

from geartrain.emu.namespaces import inside
from geartrain.errors import ConfigurationError

_TURNS = 20  # chosen
_LIMIT = 3.0  # seconds for one turn; the longest delay there and back is below; chosen


@dataclass(frozen=True)
class Ping:
    """Seconds one way, as half of there and back: the least and the median of `num` exchanges."""

    least: float
    median: float
    num: int


def ping(network_a: int, network_b: int, address_b: str) -> Ping:
    """Send datagrams from one network to an address in the other, and back."""
    with inside(network_b):
        there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        there.bind((address_b, 0))
    with inside(network_a):
        here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with here, there:
        here.settimeout(_LIMIT)
        there.settimeout(_LIMIT)
        _turn(here, there)  # the first finds out who has the address
        first = _turn(here, there)
        turns = max(5, min(_TURNS, int(1.0 / first)))
        took = sorted([first, *(_turn(here, there) for _ in range(turns - 1))])
    return Ping(took[0] / 2, median(took) / 2, turns)


def _turn(here: socket.socket, there: socket.socket) -> float:
    begun = time.perf_counter()
    try:
        here.sendto(b"ping", there.getsockname())
        word, back = there.recvfrom(16)
        there.sendto(word, back)
        here.recv(16)
    except TimeoutError:
        raise ConfigurationError("no message arrives in the emulated network; a firewall may forbid it") from None
    return time.perf_counter() - begun
