"""DeAR against wait-free backpropagation on emulated machines: communication that is not hidden, as long as computing.

    python benchmarks/dear.py [--workers 8] [--modules 20] [--size "2 MiB"] [--rate "100 Mbit/s"] [--mtu 9000]
                              [--exchange measured]

Modules alike, each with one tensor. Computing is slept: for each module forward a third and backward two thirds of the
time that its all-reduce takes on the wires, so a step computes as long as it communicates. Both methods have the same
groups: one module each. Prints for both the exposed communication per step, emulated and simulated, the ratio (bar:
60 %) and whether the cells can be believed: the bytes take at least five times a small all-reduce of as many ranks,
and the host is less than 80 % busy. Needs the right to make network namespaces.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.cluster import Cluster, Device, NodeGroup, Placement, Star, Wire
from geartrain.cost.compute import Roofline, Work
from geartrain.engines.emulated import EmulatedEngine
from geartrain.engines.simulated import SimulatedEngine
from geartrain.record.means import MeanStep, mean_step
from geartrain.record.split import split
from geartrain.runtime.charging import charge
from geartrain.runtime.context import Context
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.strategies import parse
from geartrain.tasks.data import DealtBatches
from geartrain.units import format_time, parse_rate, parse_size

BAR, FACTOR, BUSY = 0.60, 5.0, 0.80
FLOPS = 1e9  # of the device: a gigaflop is a second


class _Layer(torch.autograd.Function):
    """Computes nothing, and is charged for it; its gradient has the size of the weight."""

    @staticmethod
    def forward(ctx: Any, signal: Tensor, weight: Tensor, seconds: float) -> Tensor:
        ctx.shape, ctx.seconds = weight.shape, seconds
        charge(Work("forward", flop=seconds * FLOPS, nbytes=0))
        return signal.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Any) -> tuple[Tensor, Tensor, None]:
        charge(Work("backward", flop=2 * ctx.seconds * FLOPS, nbytes=0))
        return outputs[0], outputs[0].new_ones(ctx.shape), None


class Module(nn.Module):
    def __init__(self, numel: int, seconds: float) -> None:
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.zeros(numel)), seconds

    def forward(self, signal: Tensor) -> Tensor:
        out: Tensor = _Layer.apply(signal, self.weight, self.seconds)
        return out


@dataclass(frozen=True)
class Alike(Task):
    """Modules alike.

    Attributes:
        modules: how many.
        numel: elements of each.
        seconds: of each one's forward; backward takes twice as long.
    """

    name, source = "alike", "made for this benchmark"

    modules: int
    numel: int
    seconds: float

    def model(self, seed: int) -> nn.Module:
        return nn.Sequential(*(Module(self.numel, self.seconds) for _ in range(self.modules)))

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=1e-3)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        out: Tensor = model(batch.inputs.sum().requires_grad_())
        return out

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        numbers = torch.ones(num_workers)
        return DealtBatches(numbers, numbers, rank=rank, num_workers=num_workers, batch=batch, seed=seed)


def cluster(workers: int, rate: float, mtu: int) -> Cluster:
    device = Device(name="slept", flops={"fp32": FLOPS}, memory=1 << 34, memory_rate=1e13, source="chosen")
    wire = Wire(rate=rate, latency=50e-6, mtu=mtu)
    nodes = (NodeGroup(count=workers, device=device),)
    return Cluster(name="bench", source="chosen", nodes=nodes, topology=Star(wire=wire))


def small_all_reduces(ctx: Context) -> float:
    """Median seconds of an all-reduce of 4 bytes."""
    tensor, took = torch.zeros(1), []
    for _ in range(25):
        begun = ctx.clock.now()
        dist.all_reduce(tensor, group=ctx.workers)
        took.append(ctx.clock.now() - begun)
    return statistics.median(took[5:])


def measured(text: str, task: Alike, machines: Cluster, workers: int, steps: int) -> tuple[MeanStep, MeanStep, float]:
    """The mean step emulated and simulated, and how busy the host was."""
    training = Training(strategy=parse(text), task=task, steps=steps, batch=workers, evaluate=False)
    record = EmulatedEngine(Roofline()).run(training, machines, workers=workers)
    simulated = SimulatedEngine(Roofline()).run(training, machines, workers=workers, meta=True)
    steps_of = mean_step(split(record)), mean_step(split(simulated))
    assert steps_of[0] is not None and steps_of[1] is not None, "the run has steps"
    return steps_of[0], steps_of[1], float(record.emulation["host_busy"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--modules", type=int, default=20)
    parser.add_argument("--size", default="2 MiB")
    parser.add_argument("--rate", default="100 Mbit/s")
    parser.add_argument("--mtu", type=int, default=9000, help="bytes; small packets need more acknowledgements")
    parser.add_argument("--exchange", default="measured", choices=["native", "ring", "measured"])
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    workers, size = options.workers, parse_size(options.size)
    machines = cluster(workers, parse_rate(options.rate), options.mtu)
    place = Placement(machines, workers)
    goodput = min(place.rate(rank, (rank + 1) % workers) for rank in range(workers))
    term = 2 * (workers - 1) / workers * size / goodput
    task = Alike(options.modules, size // 4, term / 3)
    small = EmulatedEngine(Roofline()).run(small_all_reduces, machines, workers=workers).results[0]
    step = options.modules * term
    print(f"{workers} workers, {options.modules} modules of {options.size}, {options.rate}")
    print(
        f"a step computes and carries bytes for {format_time(step)} each, {step / small:.0f} times a small all-reduce"
    )
    found: dict[str, tuple[float, float]] = {}
    believed = step >= FACTOR * small
    for text in ("synchronous:bucket_size=1B", f"dear:neighbours=1,exchange={options.exchange}"):
        emulated, simulated, busy = measured(text, task, machines, workers, options.steps)
        believed = believed and busy < BUSY
        found[text] = emulated.exposed_communication, simulated.exposed_communication
        for name, mean in (("emulated", emulated), ("simulated", simulated)):
            shares = f"compute {mean.compute:.3f} s, exposed {mean.exposed_communication:.3f} s, wait {mean.wait:.3f} s"
            print(f"{text:45s} {name:9s} step {mean.step_time:.3f} s: {shares}")
        print(f"{'':45s} host busy {busy:.0%}", flush=True)
    (wfbp, wfbp_simulated), (mine, mine_simulated) = found.values()
    simulated_ratio = mine_simulated / wfbp_simulated
    print(f"exposed, DeAR / WFBP: emulated {mine / wfbp:.3f} (bar {BAR}), simulated {simulated_ratio:.3f}")
    print("the cells can be believed" if believed else "the cells can NOT be believed: the host decides")
    return 0 if believed and mine <= BAR * wfbp else 1


if __name__ == "__main__":
    sys.exit(main())
