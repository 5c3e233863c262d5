"""Delay in user space, where the kernel has no netem: a process between two tap devices, in place of a wire.

Frames come in the size in which the network stack makes them, up to 64 KiB with the work of cutting and summing left
open (`IFF_VNET_HDR`), and go on as they came. So Python moves a few large pieces, not many packets. Each frame waits
for its time on a heap; the kernel's timer wakes the process. Rates are the kernel's business on either side.

What one frame costs, and with it the rate that one relay carries, `benchmarks/emulated_links.py` measures: 2.5 Gbit/s
of one stream took 37 % of a core and came within 2 %, on a busy host; at 5 Gbit/s a tenth was missing.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from geartrain.emu.namespaces import sharp_timers
from geartrain.errors import ConfigurationError

FASTEST = 3e9 / 8
"""Bytes per second, headers included, of the fastest wire with a delay; chosen by that measurement."""

_SET_DEVICE, _SET_OFFLOAD = 0x400454CA, 0x400454D0
_TAP, _NO_PACKET_INFO, _VNET_HEADER = 0x0002, 0x1000, 0x4000
_OFFLOADS = 0x01 | 0x02 | 0x08  # checksums; TCP over IPv4 in one piece; ECN
_HEADER = 10  # bytes before each frame that say what was left open
_ETHERTYPE = _HEADER + 12
_NODE = _HEADER + 14 + 18  # the byte of an IPv4 destination that is the node
_IPV4 = b"\x08\x00"
_LARGEST = 70_000
_BATCH = 64  # frames read from one device before the others get a turn; chosen
_BATCH_OUT = 64


def open_tap(name: str) -> int:
    """Make a tap device in the network this process is in; it lives as long as the descriptor is open."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(
            f"the cluster has delays, this kernel has no netem, and /dev/net/tun cannot be opened: {error}\n"
            "  load sch_netem, allow this user to open /dev/net/tun, or take a cluster without delays"
        ) from error
    try:
        flags = _TAP | _NO_PACKET_INFO | _VNET_HEADER
        fcntl.ioctl(device, _SET_DEVICE, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(device, _SET_OFFLOAD, _OFFLOADS)
    except OSError:
        os.close(device)
        raise
    return device


@dataclass
class Direction:
    """One way through the relay.

    Attributes:
        source, target: descriptors of tap devices.
        hold: seconds that a frame waits.
        by_node: instead of it, for frames to these nodes.
    """

    source: int
    target: int
    hold: float = 0.0
    by_node: Mapping[int, float] = field(default_factory=dict)

    def delay(self, frame: bytes) -> float:
        """How long this frame waits."""
        if self.by_node and frame[_ETHERTYPE : _ETHERTYPE + 2] == _IPV4:
            return self.by_node.get(frame[_NODE], self.hold)
        return self.hold


@dataclass
class RelayReport:
    """What the relay did: frames, how late it let them go (seconds), frames lost, and its share of a core."""

    frames: int = 0
    late_sum: float = 0.0
    late_most: float = 0.0
    lost: int = 0
    busy: float = 0.0
    since: float = field(default_factory=time.monotonic)

    def as_json(self) -> dict[str, float]:
        """For the record of a run."""
        wall = max(time.monotonic() - self.since, 1e-9)
        mean = self.late_sum / self.frames if self.frames else 0.0
        return {
            "frames": self.frames,
            "late_mean": mean,
            "late_most": self.late_most,
            "lost": self.lost,
            "busy": (time.process_time() - self.busy) / wall,
        }


class Relay:
    """The loop of the relay's process.

    Args:
        directions: all ways through it.
        control: takes ("hold", [(hold, by_node) per direction]) and ("report",), which is answered and starts anew.
            When its other end is closed, the relay ends.
    """

    def __init__(self, directions: Sequence[Direction], control: Connection) -> None:
        self._control, self._from = control, {direction.source: direction for direction in directions}
        self._directions = directions
        self._heap: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self._timer = _Timer()
        self._report = RelayReport()

    def run(self) -> None:
        """Until nobody wants it any more."""
        sharp_timers()
        poll = select.epoll()
        for descriptor in (*self._from, self._control.fileno(), self._timer.descriptor):
            poll.register(descriptor, select.EPOLLIN)
        self._start_report()
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._control.fileno():
                    if not self._obey():
                        return
                elif descriptor in self._from:
                    self._read(self._from[descriptor])
                else:
                    self._timer.clear()
            self._let_go()

    def _start_report(self) -> None:
        self._report = RelayReport(busy=time.process_time())

    def _obey(self) -> bool:
        try:
            word, *rest = self._control.recv()
        except EOFError:
            return False
        if word == "hold":
            for direction, (hold, by_node) in zip(self._directions, rest[0], strict=True):
                direction.hold, direction.by_node = hold, by_node
        self._control.send(self._report.as_json())
        self._start_report()
        return True

    def _read(self, direction: Direction) -> None:
        source = direction.source
        for _ in range(_BATCH):
            try:
                frame = os.read(source, _LARGEST)
            except BlockingIOError:
                return
            due = time.monotonic() + direction.delay(frame)
            self._number += 1
            heapq.heappush(self._heap, (due, self._number, direction.target, frame))

    def _let_go(self) -> None:
        heap, report = self._heap, self._report
        for _ in range(_BATCH_OUT):
            if not heap:
                self._timer.stop()
                return
            now = time.monotonic()
            if heap[0][0] > now:
                break
            due, _, target, frame = heapq.heappop(heap)
            try:
                os.write(target, frame)
            except OSError:
                report.lost += 1
            report.frames += 1
            report.late_sum += now - due
            report.late_most = max(report.late_most, now - due)
        self._timer.set(heap[0][0]) if heap else self._timer.stop()


class _Timer:
    """The kernel's timer as a descriptor; epoll's own timeouts are whole milliseconds."""

    _monotonic, _nonblocking, _absolute = 1, 0o4000, 1

    def __init__(self) -> None:
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.timerfd_create(self._monotonic, self._nonblocking)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._at = -1.0

    def set(self, when: float) -> None:
        if when != self._at:
            self._at = when
            self._set(when)

    def stop(self) -> None:
        if self._at >= 0:
            self._at = -1.0
            self._set(0.0)

    def clear(self) -> None:
        self._at = -1.0
        try:
            os.read(self.descriptor, 8)
        except BlockingIOError:
            return

    def _set(self, when: float) -> None:
        seconds = int(when)
        setting = struct.pack("llll", 0, 0, seconds, int((when - seconds) * 1e9))
        self._libc.timerfd_settime(self.descriptor, self._absolute, setting, None)
