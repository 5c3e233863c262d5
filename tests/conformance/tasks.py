"""Small tasks whose numbers can be reasoned about. They pickle, so that they reach the processes of a real engine."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import DealtBatches
from geartrain.tasks.digits import Digits

SHAPES = ((3, 5), (7,), (2, 2, 2), (1,))
"""31 elements: no number of workers from two to thirty divides them."""


class Coefficients(nn.Module):
    """Parameters of odd sizes; with `awkward` also a frozen, an unused and a tied one."""

    def __init__(self, awkward: bool) -> None:
        super().__init__()
        self.tensors = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in SHAPES)
        self.awkward = awkward
        if awkward:
            self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
            self.unused = nn.Parameter(torch.ones(4))
            self.tied = self.tensors[1]

    def forward(self, scale: Tensor) -> Tensor:
        used = [*self.tensors, self.tied, self.frozen] if self.awkward else list(self.tensors)
        return sum((factor * tensor.sum() for factor, tensor in enumerate(used, start=1)), torch.zeros(())) * scale


@dataclass(frozen=True)
class Golden(Task):
    """Integer gradients: that of a parameter is its factor times the sum of the batch's numbers, over the batch size.

    With a batch of 8, multiples of 8 as data, dyadic rates and few steps, every number of a run is a small dyadic one:
    sums are exact in any order.
    """

    name = "golden"
    source = "made for tests"

    awkward: bool = False

    def model(self, seed: int) -> nn.Module:
        return Coefficients(self.awkward)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.25, momentum=0.5)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        # Divided by the count, not meant: weight / count = 1 / batch is exact for shares of three samples too.
        return model(batch.inputs.sum()) / len(batch.inputs)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        numbers = 8.0 * torch.arange(-7, 9).float()
        return DealtBatches(numbers, numbers, rank=rank, num_workers=num_workers, batch=batch, seed=seed)


class Term(nn.Module):
    """Adds `factor` times the sum of a tensor, times a sample's number, to what the terms before it came to.

    Takes and returns (samples, 2): the number and the sum so far.
    """

    def __init__(self, factor: int, tensor: nn.Parameter) -> None:
        super().__init__()
        self.factor, self.tensor = factor, tensor

    def forward(self, state: Tensor) -> Tensor:
        scale, total = state.unbind(1)
        return torch.stack([scale, total + self.factor * self.tensor.sum() * scale], 1)


@dataclass(frozen=True)
class Chain(Task):
    """`Golden` as a chain of one part for each tensor: the same gradients and weights."""

    name = "chain"
    source = "made for tests"

    awkward: bool = False

    def model(self, seed: int) -> nn.Module:
        terms = [Term(factor, nn.Parameter(torch.zeros(shape))) for factor, shape in enumerate(SHAPES, start=1)]
        if self.awkward:
            frozen = nn.Parameter(torch.ones(5), requires_grad=False)
            terms += [Term(len(SHAPES) + 1, terms[1].tensor), Term(len(SHAPES) + 2, frozen)]
            terms[0].unused = nn.Parameter(torch.ones(4))
        return nn.Sequential(*terms)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return Golden().optimizer(params)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.inputs)[:, 1].sum() / len(batch.inputs)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        numbers = 8.0 * torch.arange(-7, 9).float()
        inputs = torch.stack([numbers, torch.zeros(len(numbers))], 1)
        return DealtBatches(inputs, numbers, rank=rank, num_workers=num_workers, batch=batch, seed=seed)

    def cuts(self) -> Sequence[str]:
        return tuple(str(index) for index in range(len(SHAPES) + 2 * self.awkward))


@dataclass(frozen=True)
class Curve(Task):
    """A small tanh network fits a curve; Adam, so that the optimizer has state of several kinds.

    With `linear` it is SGD with momentum, whose updates are linear in the gradients.
    """

    name = "curve"
    source = "made for tests"

    dtype: torch.dtype = torch.float32
    rate: float = 0.01
    linear: bool = False

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2)).to(self.dtype)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if self.linear:
            return torch.optim.SGD(params, lr=self.rate, momentum=0.9)
        return torch.optim.Adam(params, lr=self.rate)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        inputs = torch.randn(60, 3, generator=torch.Generator().manual_seed(1)).to(self.dtype)
        targets = torch.stack([inputs.prod(1), inputs.sum(1).sin()], 1)
        return DealtBatches(inputs, targets, rank=rank, num_workers=num_workers, batch=batch, seed=seed)

    def cuts(self) -> Sequence[str]:
        return ("0", "1", "2")


@dataclass(frozen=True)
class Exploding(Task):
    """Like `Curve`, but the loss of one worker becomes infinite in one step while its gradients stay finite."""

    name = "exploding"
    source = "made for tests"

    rank: int = 1
    step: int = 2

    def model(self, seed: int) -> nn.Module:
        return Curve().model(seed)

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return Curve().optimizer(params)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return Curve().loss(model, batch) + batch.targets.amax()

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        return _ExplodingBatches(batch // num_workers, num_workers, self.step if rank == self.rank else -1)


class _ExplodingBatches:
    def __init__(self, samples: int, num_workers: int, step: int) -> None:
        self._samples, self._num_workers, self._left = samples, num_workers, step

    def take(self, num_samples: int | None = None) -> Batch:
        targets = torch.zeros(self._samples, 2)
        if self._left == 0:
            targets = torch.full_like(targets, float("inf"))
        self._left -= 1
        return Batch(torch.ones(self._samples, 3), targets, 1 / self._num_workers)

    def state_dict(self) -> dict[str, int]:
        return {"left": self._left}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._left = state["left"]


@dataclass(frozen=True)
class DigitsAtRate(Digits):
    """The digits with another learning rate, for methods whose steps are of another size."""

    rate: float = 0.05
    momentum: float = 0.9

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.rate, momentum=self.momentum)
