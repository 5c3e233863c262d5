"""A chain of layers deep enough for pipelines, and ways to run it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import DealtBatches


@dataclass(frozen=True)
class Deep(Task):
    """A tanh network of `depth` parts fits a curve, in float64, with Adam."""

    name = "deep"
    source = "made for tests"

    depth: int = 6
    width: int = 5
    poison: int | None = None

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            sizes = [3] + [self.width] * (self.depth - 1)
            layers = [nn.Sequential(nn.Linear(a, self.width), nn.Tanh()) for a in sizes[:-1]]
            return nn.Sequential(*layers, nn.Linear(sizes[-1], 2)).double()

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(params, lr=0.01)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"error": self.loss(model, self.batches(0, 1, 60, 0).take()).item()}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(1)).double()
        targets = torch.stack([inputs.prod(1), inputs.sum(1).sin()], 1)
        if self.poison is not None:
            targets[self.poison] = float("inf")
        return DealtBatches(inputs, targets, rank=rank, num_workers=num_workers, batch=batch, seed=seed)

    def cuts(self) -> Sequence[str]:
        return tuple(str(index) for index in range(self.depth))


def poisoned(task: Deep, sample: int) -> Deep:
    """The same with one target that makes the loss infinite."""
    return replace(task, poison=sample)
