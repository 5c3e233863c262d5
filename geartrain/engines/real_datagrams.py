"""Datagrams over UDP sockets: of processes on one host, or in namespaces of an emulated cluster.

Each endpoint has a port of its own on the interface that gloo uses, too; addresses are exchanged in the run's store.
Buffers are as large as the kernel grants: what finds no room in them is lost. A sender waits as long as its own wire
holds it back; what could not be sent in `_STUCK` seconds is lost as well.

A protocol in Python takes about as long for one packet as for sixteen. So a receiver waits for `enough` packets where,
at the rate at which they came last, that takes `_MOMENT` at most, as network cards do before they interrupt.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from pyroute2 import IPRoute

from geartrain.engines.recorder import Recorder
from geartrain.engines.udp import MOST, packet_socket
from geartrain.record.log import Op
from geartrain.runtime.datagrams import Datagrams, Packets

_BUFFER = 32 << 20  # bytes asked for; chosen: jumbo packets of 32 workers, 64 each
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_FORCED = {socket.SO_RCVBUF: 33, socket.SO_SNDBUF: 32}  # SO_RCVBUFFORCE, SO_SNDBUFFORCE: beyond the system's limit
_OVERHEAD = 512  # bytes that the kernel counts for a packet besides; it rounds its memory up to a power of two, too
_STUCK, _PAUSE = 1.0, 1e-4  # seconds; chosen
_IP_UDP = 28
_MOMENT = 2e-3  # seconds; chosen
_TOGETHER = 0.05  # seconds within which sends outside operations are one entry of the log; chosen


class RealDatagrams(Datagrams):
    """See `Datagrams` and the module.

    Args:
        name: of the endpoint, the same on all ranks.
        store: a part of the run's store for it.
        recorder: of this rank.
        rank, world_size: see `Context`.
        size: bytes of the longest packet.
    """

    reliable = False

    def __init__(self, name: str, store: Any, recorder: Recorder, rank: int, world_size: int, size: int) -> None:
        self._name, self._recorder, self._rank = name, recorder, rank
        self._sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        interface = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        self._sock.bind((_address(interface), 0))
        _enlarge(self._sock, socket.SO_SNDBUF)
        room = _enlarge(self._sock, socket.SO_RCVBUF) * size // (2 * (size + _OVERHEAD))
        store.set(str(rank), json.dumps([*self._sock.getsockname(), room, _piece(interface, size)]))
        told = [json.loads(store.get(str(other))) for other in range(world_size)]
        self.room = min(room for _, _, room, _ in told)
        addresses = [(host, port) for host, port, *_ in told]
        self._packets = packet_socket(self._sock, addresses, min(piece for *_, piece in told))
        self._buffer = np.empty((2 * MOST, -(-size // 8) * 8), np.uint8)
        self._lengths = np.zeros(2 * MOST, np.uint32)
        self._rate, self._counted = 0.0, recorder.now()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._writable.register(self._sock, select.POLLOUT)
        self._operation: Op | None = None
        self._last: Op | None = None
        self._num_operations = self._num_sends = 0

    def send(self, targets: Sequence[int], packets: Packets) -> None:
        if not len(packets) or not targets:
            return
        self._recorder.settle()
        op = self._operation or self._sending(packets.nbytes)
        op.nbytes += packets.nbytes * len(targets)
        op.messages += len(packets) * len(targets)
        for target in targets:
            self._send(target, packets)

    def _send(self, target: int, packets: Packets) -> None:
        """Send, waiting as long as the system takes nothing: the socket is full, or what lies behind it is."""
        since = self._recorder.now()
        while len(packets):
            sent = self._packets.send(target, packets)
            packets, now = packets[sent:], self._recorder.now()
            if sent:
                since = now
            elif now - since > _STUCK:
                return
            else:
                self._writable.poll(1000 * _STUCK)
                time.sleep(_PAUSE)

    def _sending(self, size: int) -> Op:
        """The entry of the log for what is sent outside operations."""
        now, op = self._recorder.now(), self._last
        if op is None or now - op.posted > _TOGETHER or op.lane != self._recorder.lane:
            key = (self._name, "d", self._rank, self._num_sends)
            op = self._last = Op(key, "send", 0, 0, now, self._recorder.lane, (self._rank,), size, done=now)
            self._num_sends += 1
            self._write(op)
        op.done = now
        return op

    def _write(self, op: Op) -> None:
        if self._recorder.recording:
            self._recorder.log.ops.append(op)

    def receive(self, deadline: float | None = None, enough: int = 1) -> list[Packets]:
        got = self._more(0)
        if not got:
            self._wait(deadline)
            got = self._more(0)
        if 0 < got < enough and self._rate * _MOMENT > 1:
            time.sleep(min(_MOMENT, (enough - got) / self._rate))
            got = self._more(got)
        self._count(got)
        lengths = self._lengths[:got]
        widths = np.unique(lengths).tolist()
        if len(widths) == 1:
            return [self._buffer[:got, : widths[0]]]
        return [self._buffer[:got, :width][lengths == width] for width in widths]

    def _more(self, got: int) -> int:
        """Take what is there behind what was taken already; how much that is together."""
        while got < len(self._buffer):
            new = self._packets.receive(self._buffer[got:], self._lengths[got:])
            got += new
            if new < MOST:
                break
        return got

    def _count(self, got: int) -> None:
        """At what rate packets come: the mean over the last few calls."""
        now = self._recorder.now()
        self._rate += (got / max(now - self._counted, 1e-6) - self._rate) / 4
        self._counted = now

    def _wait(self, deadline: float | None) -> None:
        recorder = self._recorder
        left = None if deadline is None else max(0.0, deadline - recorder.now())
        timeout = None if left is None or left == float("inf") else 1000 * left
        if recorder.lane:  # what lanes wait for is their own affair, and too much to write down
            recorder.settle()
            self._readable.poll(timeout)
            recorder.resume()
            return
        with recorder.blocked("datagrams", self._operation.key if self._operation is not None else None):
            self._readable.poll(timeout)

    @contextmanager
    def operation(self, kind: str, size: int, ranks: Sequence[int]) -> Iterator[None]:
        recorder = self._recorder
        recorder.settle()
        key = (self._name, "c", self._num_operations)
        self._num_operations += 1
        self._operation = op = Op(key, kind, 0, 0, recorder.now(), recorder.lane, tuple(ranks), size)
        self._write(op)
        yield
        self._operation = None
        op.done = recorder.now()

    def close(self) -> None:
        self._sock.close()


def _address(interface: str) -> str:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        told = fcntl.ioctl(sock.fileno(), _GET_ADDRESS, struct.pack("256s", interface.encode()[:15]))
    return socket.inet_ntoa(told[20:24])


def _piece(interface: str, size: int) -> int:
    """Bytes that an interface takes in one piece, to be cut into packets; 0 where packets do not fit its mtu whole."""
    with IPRoute() as route:
        (link,) = route.get_links(ifname=interface)
    piece, mtu = link.get_attr("IFLA_GSO_MAX_SIZE"), link.get_attr("IFLA_MTU")
    return int(piece) if piece and size + _IP_UDP <= mtu else 0


def _enlarge(sock: socket.socket, which: int) -> int:
    """Ask for a larger buffer; its bytes as the kernel counts them, for what it needs itself, too."""
    sock.setsockopt(socket.SOL_SOCKET, which, _BUFFER)
    with suppress(PermissionError):
        sock.setsockopt(socket.SOL_SOCKET, _FORCED[which], _BUFFER)
    return sock.getsockopt(socket.SOL_SOCKET, which)
