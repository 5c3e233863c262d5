"""What a host needs between operations: a net of operations too small to compute anything, less the operations alone.

    overhead of a phase = (time of the phase - sum of its operations, each alone) / operations of the phase

Phases are forward (Python and modules), backward (the engine of autograd) and update (the optimizer's loop). Between
small operations the net has larger ones, whose bytes push code and tensors out of the inner caches, as a step does.

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

import torch
from torch import Tensor, nn

from geartrain.calibration.operations import CPU, Clock, finish, measure_operations, threads
from geartrain.calibration.recording import Call, Phase, Recorded, record_step
from geartrain.cost.profile import Overheads
from geartrain.cost.table import Table
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.strategies import parse

_BLOCKS, _WIDTH, _SAMPLES, _WIDE = 10, 16, 4, 1 << 17  # chosen
_STEPS = 40
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
    """A net of small operations of several kinds."""

    name = "small-operations"
    source = "chosen"
    sample_kind = "rows"

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            block = (nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.LayerNorm(_WIDTH), nn.Tanh(), _Wide())
            return nn.Sequential(*(_copied(module) for _ in range(_BLOCKS) for module in block))

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.01, momentum=0.9)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return _Same(batch // num_workers)


def _copied(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module)


def measure_overheads(
    *, num_threads: int = 1, device: torch.device = CPU, clock: Clock = time.perf_counter
) -> Overheads:
    """The overheads of this host, by operation: those of backward and of the update have others than those of forward.

    Args:
        num_threads: that an operation may use.
        device: where operations run.
        clock: seconds, as in `measure_operations`.
    """
    recorded = record_step(Training(strategy=parse("single"), task=SmallOperations(), steps=2, batch=_SAMPLES), 1)
    table = measure_operations(
        [recorded], num_threads=num_threads, repeats=50, seconds=0.05, device=device, clock=clock
    )
    with threads(num_threads):
        whole = _time_phases(device, clock)
    each = {phase: _overhead(recorded.step, table, phase, whole[phase]) for phase in PHASES}
    return told(each, [recorded])


def _overhead(calls: Iterable[Call], table: Table, phase: Phase, seconds: float) -> float:
    mine = [call for call in calls if call.phase == phase]
    alone = sum(table.entries[call.work.key].seconds for call in mine)
    return max(0.0, (seconds - alone) / len(mine))


def told(each: Mapping[Phase, float], recorded: Iterable[Recorded]) -> Overheads:
    """Overheads by operation, from overheads by phase: an operation belongs to the phase that it is in most often.

    Args:
        each: seconds.
        recorded: steps whose operations are told apart; others count as forward.
    """
    counts: dict[str, dict[Phase, int]] = {}
    for one in recorded:
        for call in one.step:
            seen = counts.setdefault(call.work.name, dict.fromkeys(PHASES, 0))
            seen[call.phase] += 1
    least = min(each.values())
    before = {op: each[max(seen, key=lambda phase: seen[phase])] - least for op, seen in counts.items()}
    return Overheads(
        between=least, before={"default": each["forward"] - least, **before}, after={}, inside={}, launch=0.0
    )


def _time_phases(device: torch.device, clock: Clock) -> dict[Phase, float]:
    """Median seconds of each phase of the net's step."""
    task = SmallOperations()
    model = task.model(0).to(device)
    optimizer = task.optimizer(model.parameters())
    batches = task.batches(0, 1, _SAMPLES, 0)
    rows = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        batch = batches.take()
        marks = [clock()]
        loss = task.loss(model, Batch(batch.inputs.to(device), batch.targets.to(device), 1.0))
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
