"""What a host needs between operations: a net of operations too small to compute anything, less the operations alone.

    overhead of a phase = (time of the phase - sum of its operations, each alone) / operations of the phase

Phases are forward (Python and modules), backward (the engine of autograd) and update (the optimizer, one parameter
after another or all at once). Between small operations the net has larger ones, whose bytes push code and tensors out
of the inner caches, as a step does.

Source: overheads T1 to T5 of Lin et al. (2024, arXiv 2404.12674); they take them from a trace of the workload itself,
this from a net that nobody trains, so that it can be held against any workload.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from geartrain.calibration.operations import CPU, Clock, finish, measure_operations
from geartrain.calibration.recording import Phase, Recorded, record_step
from geartrain.cluster.load import local_cluster
from geartrain.cost.profile import Overheads
from geartrain.cost.table import Table
from geartrain.engines.real import Kind, RealEngine
from geartrain.runtime.context import Context
from geartrain.runtime.loop import Training
from geartrain.runtime.measure import threads
from geartrain.runtime.meta import OptimizerFactory
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.strategies import parse

_BLOCKS, _WIDTH, _SAMPLES, _WIDE = 10, 16, 4, 1 << 17  # chosen
_STEPS = 40
_BACKWARD = (  # what a net of other operations has in its backward
    "_embedding_bag_backward",
    "_log_softmax_backward_data",
    "_softmax_backward_data",
    "convolution_backward",
    "embedding_dense_backward",
    "gelu_backward",
    "max_pool2d_with_indices_backward",
    "mm",
    "native_batch_norm_backward",
    "native_dropout_backward",
    "native_layer_norm_backward",
    "nll_loss_backward",
    "sigmoid_backward",
    "threshold_backward",
)
OPTIMIZERS: Mapping[str, OptimizerFactory] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.001, foreach=True),
    "adagrad": lambda params: torch.optim.Adagrad(params, lr=0.01, foreach=True),
}
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")


class _Wide(nn.Module):
    """Operations of half a megabyte, whose result comes to nothing."""

    wide: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wide", torch.ones(_WIDE))

    def forward(self, x: Tensor) -> Tensor:
        return x + (self.wide * x.mean()).mean()


class _Same(Batches):
    """The same samples again and again."""

    def __init__(self, samples: int) -> None:
        self._batch = Batch(torch.ones(samples, _WIDTH), torch.zeros(samples, dtype=torch.long), 1.0)

    def take(self, num_samples: int | None = None) -> Batch:
        return self._batch

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        pass


@dataclass(frozen=True)
class SmallOperations(Task):
    """A net of small operations of several kinds.

    Args:
        optimizer_kind: of `OPTIMIZERS`.
        blocks: how often its block of operations comes, after one linear map.
    """

    optimizer_kind: str = "sgd"
    blocks: int = _BLOCKS

    name = "small-operations"
    source = "chosen"
    sample_kind = "rows"

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            block = (nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.LayerNorm(_WIDTH), nn.Tanh(), _Wide())
            blocks = (copy.deepcopy(module) for _ in range(self.blocks) for module in block)
            return nn.Sequential(nn.Linear(_WIDTH, _WIDTH), *blocks)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return OPTIMIZERS[self.optimizer_kind](params)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return _Same(batch // num_workers)


def measure_overheads(
    *, num_threads: int = 1, device: torch.device = CPU, clock: Clock = time.perf_counter
) -> Overheads:
    """The overheads of this host, by operation: those of backward and of the update have others than those of forward.

    `inside["step"]` is what a step of the training loop takes beside its phases, in Python.

    Args:
        num_threads: that an operation may use.
        device: where operations run.
        clock: seconds, as in `measure_operations`.
    """
    # Few tensors for those that take all at a time: with many, what surrounds an operation is small beside it.
    tasks = {kind: SmallOperations(optimizer_kind=kind, blocks=_BLOCKS if kind == "sgd" else 1) for kind in OPTIMIZERS}
    nets = {kind: _measure(task, num_threads, device, clock) for kind, task in tasks.items()}
    plain = nets["sgd"]
    each = {phase: plain.overhead(phase) for phase in PHASES}
    update = {name: net.overhead("update") for name, net in nets.items()}
    by_op = {
        call.work.name: update[name]
        for name, net in nets.items()
        for call in net.recorded.step
        if call.phase == "update" and "_foreach" in call.work.name
    }
    empty = SmallOperations(blocks=0)
    with threads(num_threads):
        phases = _time_phases(empty, device, clock)
    beside = max(0.0, _loop_step(empty, device, clock) - sum(phases.values()))
    return _told(each, plain.recorded, by_op, beside)


@dataclass(frozen=True)
class _Net:
    """What was measured of one net: its operations alone, and the seconds of its phases."""

    recorded: Recorded
    table: Table
    whole: dict[Phase, float]

    def overhead(self, phase: Phase) -> float:
        """Seconds for each operation of a phase beside the operation."""
        mine = [call for call in self.recorded.step if call.phase == phase and call.work.key in self.table.entries]
        alone = sum(self.table.entries[call.work.key].seconds for call in mine)
        return max(0.0, (self.whole[phase] - alone) / len(mine))


def _measure(task: SmallOperations, num_threads: int, device: torch.device, clock: Clock) -> _Net:
    recorded = record_step(Training(strategy=parse("single"), task=task, steps=2, batch=_SAMPLES), 1)
    table = measure_operations(
        [recorded], num_threads=num_threads, repeats=50, seconds=0.05, device=device, clock=clock
    )
    with threads(num_threads):
        return _Net(recorded, table, _time_phases(task, device, clock))


def _told(each: Mapping[Phase, float], recorded: Recorded, by_op: Mapping[str, float], beside: float) -> Overheads:
    """Overheads by operation, from overheads by phase: an operation belongs to the phase that it is in most often."""
    counts: dict[str, dict[Phase, int]] = {}
    for call in recorded.step:
        counts.setdefault(call.work.name, dict.fromkeys(PHASES, 0))[call.phase] += 1
    for name in _BACKWARD:
        counts.setdefault(f"aten.{name}.default", {"forward": 0, "backward": 1, "update": 0})
    phases = {op: max(seen, key=lambda phase: seen[phase]) for op, seen in counts.items()}
    total = {"default": each["forward"], **{op: each[phase] for op, phase in phases.items()}, **by_op}
    least = min(total.values())
    before = {op: seconds - least for op, seconds in total.items()}
    return Overheads(between=least, before=before, after={}, inside={"step": beside}, launch=0.0)


def _time_phases(task: SmallOperations, device: torch.device, clock: Clock) -> dict[Phase, float]:
    """Median seconds of each phase of the net's step."""
    model = task.model(0).to(device)
    optimizer = task.optimizer(model.parameters())
    given = task.batches(0, 1, _SAMPLES, 0).take()
    batch = Batch(given.inputs.to(device), given.targets.to(device), 1.0)
    rows = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        marks = [clock()]
        loss = task.loss(model, batch)
        finish(device)
        marks.append(clock())
        loss.backward()
        finish(device)
        marks.append(clock())
        optimizer.step()
        finish(device)
        marks.append(clock())
        rows.append([after - before for before, after in itertools.pairwise(marks)])
    medians = (statistics.median(column) for column in zip(*rows[_STEPS // 4 :], strict=True))
    return dict(zip(PHASES, medians, strict=True))


def _loop_step(task: SmallOperations, device: torch.device, clock: Clock) -> float:
    """Median seconds of a step as the training loop takes it, on the real engine."""
    training = Training(strategy=parse("single"), task=task, steps=_STEPS, batch=_SAMPLES, evaluate=False)
    kind: Kind = "cuda" if device.type == "cuda" else "cpu"
    record = RealEngine(device=kind).run(TimedSteps(training, clock), local_cluster(), workers=1)
    seconds: list[float] = record.results[0]
    return statistics.median(seconds[_STEPS // 4 :])


@dataclass(frozen=True)
class TimedSteps:
    """`main(ctx)`: a training; returns the seconds of each of its steps by some clock."""

    training: Training
    clock: Clock

    def __call__(self, ctx: Context) -> list[float]:
        marks: list[float] = []
        mark = ctx.mark_step

        def noted(step: int, phase: Literal["begin", "end"], **values: Any) -> None:
            marks.append(self.clock())
            mark(step, phase, **values)

        ctx.mark_step = noted  # type: ignore[method-assign]
        self.training(ctx)
        return [end - begin for begin, end in zip(marks[::2], marks[1::2], strict=True)]
