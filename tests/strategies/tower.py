"""A tower of equal layers: a chain whose times can be set by how many of them a part has, on shapes alone or with data.

A layer of the given width takes 2 width^2 operations per sample forward and 4 width^2 backward.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import DealtBatches


@dataclass(frozen=True)
class Tower(Task):
    """Regression with tanh layers, in double precision unless told otherwise.

    Attributes:
        layers: of each part; the last part has a layer with one output more.
        width: of all layers.
        explode: the target of this sample is infinite.
    """

    name = "tower"
    source = "made for tests"

    layers: tuple[int, ...] = (1, 1)
    width: int = 3
    rate: float = 0.05
    momentum: float = 0.0
    dtype: torch.dtype = torch.float64
    samples: int = 64
    explode: int | None = None

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            parts = OrderedDict()
            for index, count in enumerate(self.layers):
                modules = [module for _ in range(count) for module in (nn.Linear(self.width, self.width), nn.Tanh())]
                parts[f"part{index}"] = nn.Sequential(*modules)
            parts[f"part{len(self.layers) - 1}"].append(nn.Linear(self.width, 1))
            return nn.Sequential(parts).to(self.dtype)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.rate, momentum=self.momentum)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        generator = torch.Generator().manual_seed(5)
        inputs = torch.randn(self.samples, self.width, generator=generator, dtype=torch.float64)
        targets = inputs.sin().sum(1, keepdim=True)
        if self.explode is not None:
            targets[self.explode] = torch.inf
        inputs, targets = inputs.to(self.dtype), targets.to(self.dtype)
        return DealtBatches(inputs, targets, rank=rank, num_workers=num_workers, batch=batch, seed=seed)

    def cuts(self) -> Sequence[str]:
        return tuple(f"part{index}" for index in range(len(self.layers)))
