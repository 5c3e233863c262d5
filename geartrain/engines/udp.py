"""Many UDP packets in one go, three ways; each system gets the quickest that it has.

    Segmented    the kernel cuts one large piece into packets of equal length, as late as it can, and joins what came
                 again (UDP_SEGMENT, UDP_GRO of Linux): the way through the kernel is taken once for all of them
    ManyAtOnce   a system call takes many packets (`sendmmsg`, `recvmmsg` of Linux, which Python's socket module lacks)
    OneByOne     a system call for each packet

The structures of `sendmmsg` lie in numpy arrays, so that filling them in for many packets takes as long as for one.

    iovec    base 8, length 8
    mmsghdr  name 8, its length 4 (+4), iovec* 8, their number 8, control 8, its length 8, flags 4 (+4), length 4 (+4)
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Address = tuple[str, int]

MOST = 256
"""Packets of one call; chosen: by then the call itself costs next to nothing."""
_SEGMENT, _JOIN = 103, 104  # UDP_SEGMENT, UDP_GRO
_SEGMENTS, _LARGEST, _HEADERS = 64, 65_535, 42  # of a piece; headers count as the smallest of it
_INT, _CONTROL = struct.Struct("=i"), socket.CMSG_SPACE(4)
_NOTHING_NOW = frozenset({errno.EAGAIN, errno.EINTR, errno.ENOBUFS})
_VECTOR = np.dtype([("base", np.uint64), ("length", np.uint64)])
_HEADER = np.dtype(
    [
        ("name", np.uint64),
        ("name_length", np.uint32),
        ("gap_1", np.uint32),
        ("vector", np.uint64),
        ("vectors", np.uint64),
        ("control", np.uint64),
        ("control_length", np.uint64),
        ("flags", np.int32),
        ("gap_2", np.uint32),
        ("length", np.uint32),
        ("gap_3", np.uint32),
    ]
)
_libc: Any = ctypes.CDLL(None, use_errno=True)


class PacketSocket(Protocol):
    """Sends and receives batches; never waits."""

    def send(self, target: int, packets: NDArray[np.uint8]) -> int:
        """Send rows to one of the addresses; how many the system has taken."""

    def receive(self, buffer: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> int:
        """Receive into rows; how many have come, and the bytes of each."""


def many_at_once() -> bool:
    """Whether this system has the calls, and these structures."""
    fits = sys.platform == "linux" and sys.byteorder == "little" and ctypes.sizeof(ctypes.c_void_p) == 8
    return fits and hasattr(_libc, "sendmmsg") and hasattr(_libc, "recvmmsg")


def segmented(sock: socket.socket) -> bool:
    """Whether the kernel cuts and joins packets; it does so for this socket from now on."""
    if sys.platform != "linux":
        return False
    try:
        sock.getsockopt(socket.IPPROTO_UDP, _SEGMENT)
        sock.setsockopt(socket.IPPROTO_UDP, _JOIN, 1)
    except OSError:
        return False
    return True


def packet_socket(sock: socket.socket, addresses: Sequence[Address], piece: int) -> PacketSocket:
    """The quickest that works here. The socket is an IPv4 one that does not block; `piece` see `Segmented`."""
    if segmented(sock):
        return Segmented(sock, addresses, piece)
    return ManyAtOnce(sock, addresses) if many_at_once() else OneByOne(sock, addresses)


class Segmented:
    """Pieces that the kernel cuts.

    Args:
        sock, addresses: as for `OneByOne`.
        piece: bytes that an interface on the way takes uncut; a longer one would be cut before it waits for its wire.
    """

    def __init__(self, sock: socket.socket, addresses: Sequence[Address], piece: int) -> None:
        self._sock, self._addresses, self._piece = sock, list(addresses), piece
        self._joined = np.empty(_LARGEST, np.uint8)

    def send(self, target: int, packets: NDArray[np.uint8]) -> int:
        packets = np.ascontiguousarray(packets)
        width, address = packets.shape[1], self._addresses[target]
        together = max(1, min(_SEGMENTS, (min(self._piece, _LARGEST) - _HEADERS) // width))
        cut = [(socket.IPPROTO_UDP, _SEGMENT, struct.pack("=H", width))]
        for begin in range(0, len(packets), together):
            part = packets[begin : begin + together]
            try:
                self._sock.sendmsg([part.data], cut if len(part) > 1 else [], 0, address)
            except OSError as error:
                if error.errno in _NOTHING_NOW:
                    return begin
                raise
        return len(packets)

    def receive(self, buffer: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> int:
        got, joined = 0, self._joined
        while len(buffer) - got >= _SEGMENTS:
            try:
                size, told, *_ = self._sock.recvmsg_into([joined.data], _CONTROL)
            except OSError as error:
                if error.errno in _NOTHING_NOW:
                    break
                raise
            width = next((_INT.unpack(data[:4])[0] for _, kind, data in told if kind == _JOIN), size)
            whole, rest = divmod(size, width)
            buffer[got : got + whole, :width] = joined[: whole * width].reshape(whole, width)
            lengths[got : got + whole] = width
            got += whole
            if rest:
                buffer[got, :rest] = joined[size - rest : size]
                lengths[got] = rest
                got += 1
        return got


class OneByOne:
    """A system call for each packet.

    Args:
        sock: of UDP, that does not block.
        addresses: where packets may be sent, by number.
    """

    def __init__(self, sock: socket.socket, addresses: Sequence[Address]) -> None:
        self._sock, self._addresses = sock, list(addresses)

    def send(self, target: int, packets: NDArray[np.uint8]) -> int:
        for number, packet in enumerate(packets):
            try:
                self._sock.sendto(packet, self._addresses[target])
            except OSError as error:
                if error.errno in _NOTHING_NOW:
                    return number
                raise
        return len(packets)

    def receive(self, buffer: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> int:
        for number, row in enumerate(buffer):
            try:
                lengths[number] = self._sock.recv_into(row)
            except OSError as error:
                if error.errno in _NOTHING_NOW:
                    return number
                raise
        return len(buffer)


class ManyAtOnce:
    """A system call for up to `MOST` packets; arguments as for `OneByOne`."""

    def __init__(self, sock: socket.socket, addresses: Sequence[Address]) -> None:
        self._sock = sock
        names = [
            struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", p, socket.inet_aton(h)) for h, p in addresses
        ]
        self._names = np.frombuffer(b"".join(names), np.uint8).reshape(len(names), -1).copy()
        self._out, self._in = _Calls(), _Calls()
        self._out.headers["name_length"] = self._names.shape[1]

    def send(self, target: int, packets: NDArray[np.uint8]) -> int:
        packets = np.ascontiguousarray(packets)
        calls, done = self._out, 0
        calls.headers["name"] = self._names.ctypes.data + target * self._names.shape[1]
        while done < len(packets):
            count = calls.point(packets[done : done + MOST])
            sent = self._checked(_libc.sendmmsg(self._sock.fileno(), calls.pointer, count, 0))
            done += sent
            if sent < count:
                break
        return done

    def receive(self, buffer: NDArray[np.uint8], lengths: NDArray[np.uint32]) -> int:
        calls = self._in
        count = calls.point(buffer[:MOST])
        got = self._checked(_libc.recvmmsg(self._sock.fileno(), calls.pointer, count, socket.MSG_DONTWAIT, None))
        lengths[:got] = calls.headers["length"][:got]
        return got

    def _checked(self, result: int) -> int:
        if result >= 0:
            return result
        number = ctypes.get_errno()
        if number in _NOTHING_NOW:
            return 0
        raise OSError(number, os.strerror(number))


class _Calls:
    """The structures of one call."""

    def __init__(self) -> None:
        self._vectors = np.zeros(MOST, _VECTOR)
        self.headers = np.zeros(MOST, _HEADER)
        self.headers["vector"] = self._vectors.ctypes.data + _VECTOR.itemsize * np.arange(MOST, dtype=np.uint64)
        self.headers["vectors"] = 1
        self.pointer = ctypes.c_void_p(self.headers.ctypes.data)
        self._numbers = np.arange(MOST, dtype=np.uint64)

    def point(self, rows: NDArray[np.uint8]) -> int:
        """Let the call be about these rows; how many they are."""
        count = len(rows)
        self._vectors["base"][:count] = self._numbers[:count] * rows.strides[0] + rows.ctypes.data
        self._vectors["length"][:count] = rows.shape[1]
        return count
