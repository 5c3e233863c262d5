"""What a rank of the emulated engine has around it: its interface, the counters of its wire, its accelerator."""

from __future__ import annotations

import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from geartrain.cluster.placement import Pace
from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel
from geartrain.emu.begin import program_begins
from geartrain.emu.cleanup import MARK
from geartrain.emu.counters import Carried, WireCounter
from geartrain.emu.namespaces import sharp_timers
from geartrain.engines.accelerator import Accelerator
from geartrain.engines.rank_process import Program, RankProcess
from geartrain.runtime.seeding import stream_seed
from geartrain.sim.compute import Pacer, Prices


@dataclass(frozen=True)
class Seat:
    """Where a rank sits.

    Attributes:
        interface: of its way out; `first` on its host, it tells what the wire carried at each step.
        device, pace: what computes, if that is emulated.
    """

    interface: str
    first: bool
    device: Device | None = None
    pace: Pace = field(default_factory=Pace)


@dataclass(frozen=True)
class EmulatedProgram:
    """Runs another program with the surroundings of an emulated rank.

    Args:
        inner: what the rank runs.
        seats: of all ranks.
        mark: id of the run, for those who look for what it left.
        compute: prices the work of devices; None leaves computing to the host.
        seed: of the run.
    """

    inner: Program
    seats: tuple[Seat, ...]
    mark: str
    compute: ComputeModel | None
    seed: int

    def run(self, rank: RankProcess) -> Any:
        """See `Program`."""
        seat = self.seats[rank.rank]
        # What a script starts by itself shall bear the mark and use the wire, too.
        os.environ.update({MARK: self.mark, "GLOO_SOCKET_IFNAME": seat.interface, "TP_SOCKET_IFNAME": seat.interface})
        accelerator = None
        if self.compute is not None and seat.device is not None:
            pacer = Pacer(seat.pace, stream_seed(self.seed, rank.rank, "pace"))
            accelerator = Accelerator(Prices(self.compute, seat.device), pacer, rank.recorder.log.counts)
        rank.recorder.surroundings = Emulation(accelerator, WireCounter(seat.interface) if seat.first else None)
        sharp_timers()
        with accelerator.lane() if accelerator is not None else nullcontext():
            return self.inner.run(rank)


class Emulation:
    """See `Surroundings`."""

    def __init__(self, accelerator: Accelerator | None, counter: WireCounter | None) -> None:
        self._accelerator, self._counter = accelerator, counter
        self._before: Carried | None = None

    def settle(self) -> None:
        if self._accelerator is not None:
            self._accelerator.settle()

    def resume(self) -> None:
        if self._accelerator is not None:
            self._accelerator.resume()

    def enter_lane(self) -> None:
        if self._accelerator is not None:
            self._accelerator.enter_lane()

    def begin_program(self) -> None:
        program_begins()

    def begin_step(self) -> None:
        if self._accelerator is not None:
            self._accelerator.new_step()
        if self._counter is not None:
            self._before = self._counter.read()

    def end_step(self) -> dict[str, float]:
        """What the host's wire carried in the step, both ways."""
        if self._counter is None or self._before is None:
            return {}
        now = self._counter.read()
        return {f"wire_{name}": float(n - b) for name, n, b in zip(Carried._fields, now, self._before, strict=True)}


def serve_store(address: str, port: int) -> None:
    """The store in which ranks meet, as torchrun's agent would keep it: for as long as this process lives."""
    store = TCPStore(address, port, is_master=True, wait_for_workers=False)
    while store is not None:
        signal.pause()
