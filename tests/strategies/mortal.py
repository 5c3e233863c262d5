"""A task on which one worker's process dies in mid-run; processes find it by name."""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from geartrain.runtime.worker import Batch, Batches, Task
from tests.conformance.tasks import Curve


@dataclass(frozen=True)
class Mortal(Task):
    """Like `Curve`, but a rank kills itself when it takes the batch of one step."""

    name = "mortal"
    source = "made for tests"

    rank: int = 1
    step: int = 5
    number: int = signal.SIGKILL

    def model(self, seed: int) -> nn.Module:
        return Curve().model(seed)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return Curve().optimizer(params)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return Curve().loss(model, batch)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {"first": next(model.parameters()).flatten()[0].item()}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        batches = Curve().batches(rank, num_workers, batch, seed)
        return _Dying(batches, self.step, self.number) if rank == self.rank else batches


class _Dying:
    def __init__(self, batches: Batches, step: int, number: int) -> None:
        self._batches, self._left, self._number = batches, step, number

    def take(self, num_samples: int | None = None) -> Batch:
        if self._left == 0:
            os.kill(os.getpid(), self._number)
            signal.pause()
        self._left -= 1
        return self._batches.take(num_samples)

    def state_dict(self) -> dict[str, int]:
        return {"left": self._left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._left = state["left"]
