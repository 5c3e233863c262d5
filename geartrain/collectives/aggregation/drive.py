"""The state machines over datagrams: `SwitchedSum` on a worker, `serve` on the switch. The same text on every engine.

Packets go out in bursts: a burst is one message of a simulator and about one system call on sockets, and a switch
answers what it has got at once, so results come back in bursts, too. The slots in use are at most what the smallest
receive buffer holds of all workers' windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from geartrain.collectives.aggregation.numbers import BlockFloatingPoint, Chunks, FixedFactor, Integers, Numbers
from geartrain.collectives.aggregation.packets import HEADER_SIZE, Rows, to_bytes, to_rows
from geartrain.collectives.aggregation.stream import WorkerStream, burst_size
from geartrain.collectives.aggregation.switch import SwitchState
from geartrain.collectives.aggregation.timer import RetransmissionTimer
from geartrain.cost.compute import Work
from geartrain.errors import RunError
from geartrain.runtime.charging import charge, uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.opcost import dtype_key

PATIENCE = 300.0
"""Seconds for which a worker waits for others before the switch says for whom; it waits twice as long; chosen."""
_LONGEST = 100
"""How many times the least timeout the longest one is; chosen."""
_LOOK = 1.0  # seconds between two looks for who is missing; chosen


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What workers and switch agree on.

    Attributes:
        slots: s, at most.
        width: k, integers in a packet.
        factor: f, the same for all chunks; None: block floating point.
        timeout: seconds, the least after which a packet is sent again.
        loss: probability with which a packet that came is thrown away, in each direction.
        burst: packets that are sent together, at most.
    """

    slots: int
    width: int
    factor: float | None
    timeout: float
    loss: float
    burst: int

    @property
    def packet_size(self) -> int:
        """Bytes, with our header."""
        return HEADER_SIZE + 4 * self.width

    def numbers(self, num_workers: int, dtype: Any) -> Numbers:
        """How a tensor of this type becomes integers."""
        if dtype == np.int32:
            return Integers()
        if self.factor is None:
            return BlockFloatingPoint(num_workers, dtype)
        return FixedFactor(num_workers, self.factor, dtype)


class Port:
    """Packets of the protocol over datagrams: in bursts, and with losses drawn from the rank's own stream.

    Attributes:
        slots: in use.
        loses: whether packets may be lost.
    """

    def __init__(self, ctx: Context, settings: Settings) -> None:
        self._datagrams = ctx.datagrams(settings.packet_size)
        self._loss = settings.loss
        self._random = ctx.rng("packets lost") if settings.loss else None
        fits = self._datagrams.room // (ctx.num_workers * settings.packet_size)
        self.slots = max(1, min(settings.slots, fits))
        self.loses = settings.loss > 0 or not self._datagrams.reliable
        self.operation, self.close = self._datagrams.operation, self._datagrams.close

    def send(self, targets: Sequence[int], rows: Rows, burst: int) -> None:
        for begin in range(0, len(rows), burst):
            self._datagrams.send(targets, to_bytes(rows[begin : begin + burst]))

    def receive(self, deadline: float | None, enough: int) -> list[Rows]:
        return [self._kept(to_rows(packets)) for packets in self._datagrams.receive(deadline, enough)]

    def _kept(self, rows: Rows) -> Rows:
        if self._random is None:
            return rows
        with uncharged():
            kept: Rows = rows[(torch.rand(len(rows), generator=self._random) >= self._loss).numpy()]
        return kept


class SwitchedSum:
    """Sums tensors over the workers through the switch, one after another; the same bits on all.

    Args:
        ctx: of a worker.
        settings: the same on all ranks.
        switch: the switch's rank.

    Attributes:
        packets: how many were needed so far, without those that were sent again.
    """

    def __init__(self, ctx: Context, settings: Settings, switch: int) -> None:
        self._ctx, self._settings, self._switch = ctx, settings, switch
        self._port = Port(ctx, settings)
        self._timer = RetransmissionTimer(settings.timeout, _LONGEST * settings.timeout)
        self.packets = 0

    def __call__(self, flat: Tensor, group: dist.ProcessGroup) -> None:
        """`flat` becomes the sum over the group, which is that of all workers."""
        if not flat.numel():
            return
        numel, element, dtype = flat.numel(), flat.element_size(), dtype_key(flat.dtype)
        with self._port.operation("all_reduce", flat.nbytes, range(group.size())):
            charge(quantising(numel, element, dtype))
            with uncharged():
                chunks = to_chunks(flat, self._settings.width)
                self._stream(chunks, self._settings.numbers(group.size(), chunks.dtype))
                if not flat.is_meta:
                    flat.copy_(torch.from_numpy(chunks.reshape(-1)[:numel]))
            charge(restoring(numel, element, dtype))

    def _stream(self, chunks: Chunks, numbers: Numbers) -> None:
        clock, port = self._ctx.clock, self._port
        stream = WorkerStream(self._ctx.rank, chunks, numbers, port.slots, self.packets, self._timer)
        self.packets += stream.num_packets
        burst = burst_size(len(chunks), self._settings.burst)
        progress = clock.now()
        going = stream.start(progress)
        while not stream.done:
            for rows in going:
                port.send([self._switch], rows, burst)
            came = port.receive(stream.deadline if port.loses else None, enough=burst)
            now = clock.now()
            going = [out for rows in came for out in stream.on_packets(rows, now)]
            if came:
                progress = now
            if port.loses and now >= stream.deadline:
                going += stream.on_timeout(now)
                self._check(now - progress)

    def _check(self, silent: float) -> None:
        if silent > 2 * PATIENCE:
            raise RunError(
                f"the switch (rank {self._switch}) has not answered worker {self._ctx.rank} for {silent:.0f} s, though "
                "packets were sent again and again.\n  look whether it still runs, and whether packets reach it"
            )

    def close(self) -> None:
        self._port.close()


def serve(ctx: Context, settings: Settings) -> None:
    """The switch, for ever. RunError when workers wait for others that send nothing."""
    port = Port(ctx, settings)
    state = SwitchState(ctx.num_workers, port.slots, settings.width)
    workers = range(ctx.num_workers)
    look = progress = ctx.clock.now()
    while True:
        missing = state.missing()
        came = port.receive(look + _LOOK if port.loses and missing else None, settings.burst * len(workers))
        now = ctx.clock.now()
        if not missing:  # nobody waited for anybody until now, however long that was
            look = progress = now
        for rows in came:
            replies = state.on_packets(rows)
            for results in replies.to_all:
                port.send(workers, results, settings.burst)
                progress = now
            for worker, results in replies.to_one:
                port.send([worker], results, settings.burst)
        if port.loses and now >= look + _LOOK:  # else whoever drives the ranks sees that nobody can go on
            look = now
            _check_missing(state.missing(), now - progress)


def _check_missing(missing: Sequence[int], waited: float) -> None:
    if missing and waited > PATIENCE:
        raise RunError(
            f"the others have waited {waited:.0f} s for worker(s) {', '.join(map(str, missing))}, from which the "
            "switch got no packet.\n  look whether they still run, and whether all workers make the same calls with "
            "tensors of the same sizes"
        )


def to_chunks(flat: Tensor, width: int) -> Chunks:
    """The tensor as rows of `width` numbers that numpy can scale, in its own memory where that is possible.

    Of a tensor without numbers, zeros that take no memory and cannot be written to.
    """
    count = -(-flat.numel() // width)
    if flat.is_meta:
        return np.broadcast_to(np.zeros((), np.float32), (count, width))
    if flat.dtype not in (torch.float32, torch.float64, torch.int32):
        flat = flat.float()
    host = flat.detach().cpu()
    if host.numel() != count * width:
        host = torch.cat([host, host.new_zeros(count * width - host.numel())])
    chunks: Chunks = host.numpy().reshape(count, width)
    return chunks


def quantising(numel: int, element: int, dtype: str) -> Work:
    """What making integers costs a device: the numbers are read twice, for exponents and for scaling."""
    return Work("quantise", 2.0 * numel, float(numel * (2 * element + 4)), dtype, 2)


def restoring(numel: int, element: int, dtype: str) -> Work:
    """What making numbers of the sums costs a device."""
    return Work("restore", float(numel), float(numel * (4 + element)), dtype)
