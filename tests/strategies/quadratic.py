"""A quadratic whose gradients can be written down, with data of its own for each worker, and its history."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.context import Context
from geartrain.runtime.worker import Batch, Task
from geartrain.strategies import parse

CLUSTER = load_cluster("ethernet-10g")


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))


@dataclass(frozen=True)
class Quadratic(Task):
    """Worker i's loss in step t is half of |x - b_i(t)|^2, so its gradient is x - b_i(t).

    Attributes:
        weights: of the workers, adding up to 1.
        spread: how far the b_i lie apart.
        same: all workers see worker 0's data.
    """

    name = "quadratic"
    source = "made for tests"

    weights: tuple[float, ...] = (0.5, 0.5)
    rate: float = 0.125
    momentum: float = 0.0
    decay: float = 0.0
    spread: float = 1.0
    same: bool = False

    def model(self, seed: int) -> nn.Module:
        return Point()

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=self.rate, momentum=self.momentum, weight_decay=self.decay)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return 0.5 * (model.x - batch.inputs).square().sum(1).mean()

    def metric(self, model: nn.Module) -> dict[str, float]:
        return {}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> "Own":
        return Own(self, rank)


def target(task: Quadratic, rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * (0 if task.same else rank) + step)
    return task.spread * torch.randn(3, generator=generator, dtype=torch.float64)


class Own:
    def __init__(self, task: Quadratic, rank: int) -> None:
        self.task, self.rank, self.step = task, rank, 0

    def take(self, num_samples: int | None = None) -> Batch:
        inputs = target(self.task, self.rank, self.step).unsqueeze(0)
        self.step += 1
        return Batch(inputs, inputs, self.task.weights[self.rank])

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


@dataclass(frozen=True)
class History:
    """What every worker's model was.

    Attributes:
        task: that was trained.
        x: [worker][t]: after t steps, with what is merged there.
        end: [worker] after `finish`.
    """

    task: Quadratic
    x: list[list[Tensor]]
    end: list[Tensor]

    def gradient(self, worker: int, step: int) -> Tensor:
        return self.x[worker][step] - target(self.task, worker, step)

    def mean(self, step: int) -> Tensor:
        """Weighted by the workers' shares."""
        return sum((p * x[step] for p, x in zip(self.task.weights, self.x, strict=True)), torch.zeros(3))

    def mean_gradient(self, step: int) -> Tensor:
        weighted = [p * self.gradient(i, step) for i, p in enumerate(self.task.weights)]
        return sum(weighted, torch.zeros(3))


def history(text: str, task: Quadratic, steps: int) -> History:
    """Train on the simulated engine."""

    def main(ctx: Context) -> tuple[list[Tensor], Tensor]:
        worker = parse(text).bind(ctx, task)
        batches = task.batches(ctx.rank, ctx.num_workers, ctx.num_workers, 0)
        seen = [worker.model.x.detach().clone()]
        for _ in range(steps):
            worker.step(batches)
            seen.append(worker.model.x.detach().clone())
        worker.finish()
        worker.close()
        return seen, worker.model.x.detach().clone()

    results = SimulatedEngine().run(main, CLUSTER, workers=len(task.weights)).results
    return History(task, [seen for seen, _ in results], [end for _, end in results])


def plain(task: Quadratic, steps: int, rank: int = 0) -> list[Tensor]:
    """One worker's loop without any strategy."""
    model = Point()
    optimizer = task.optimizer(model.parameters())
    batches, seen = task.batches(rank, 1, 1, 0), [model.x.detach().clone()]
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model, batches.take()).backward()
        optimizer.step()
        seen.append(model.x.detach().clone())
    return seen
