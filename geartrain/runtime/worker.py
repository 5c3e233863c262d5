"""The contracts between a task, a strategy and the loop that drives them: `Task`, `Batches`, `Worker`, `Service`.

A `Task` owns the factories (model, optimizer, loss, metric, data); a `Worker` owns the model and optimizer that it made
from them and takes one training step at a time; a `Service` is a rank that serves workers and does not train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Batch:
    """Samples for one forward pass.

    Attributes:
        inputs: first dimension is samples.
        targets: first dimension is samples.
        weight: these samples' share of the global batch, in (0, 1]; the weights of one global batch add up to 1, so
            sum over ranks of `weight * mean loss` is the mean loss of the global batch.
    """

    inputs: Tensor
    targets: Tensor
    weight: float

    @property
    def num_samples(self) -> int:
        return len(self.inputs)


class Batches(Protocol):
    """One rank's share of the data: a fixed order of global batches, dealt to the workers, for any number of workers.

    The samples of global batch k are the same whatever the number of workers; worker r gets the r-th contiguous share
    (the first `batch % num_workers` workers get one sample more).
    """

    def take(self, num_samples: int | None = None) -> Batch:
        """The next samples: this rank's share of the next global batch, or as many as asked for from its own stream."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Task(ABC):
    """What is trained. All factories are deterministic: the same seed gives the same model on every rank and engine.

    Attributes:
        name: as on the command line.
        source: where the data comes from.
        sample_kind: what samples are, in the plural.
        falling: names of metrics of which less is better.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    sample_kind: ClassVar[str] = "samples"
    falling: ClassVar[frozenset[str]] = frozenset({"bits_per_byte", "error", "loss", "perplexity"})

    @abstractmethod
    def model(self, seed: int) -> nn.Module:
        """A new model with the initial weights that belong to `seed`; leaves global random state as it was."""

    @abstractmethod
    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer: ...

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean loss over the samples of the batch, a scalar."""

    @abstractmethod
    def metric(self, model: nn.Module) -> dict[str, float]:
        """Quality on held-out data by name, the main one first, e.g. {"accuracy": 0.97}; empty when there is none."""

    @abstractmethod
    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        """This worker's share; `batch` is the global batch size, at least `num_workers`."""

    def cuts(self) -> Sequence[str] | None:
        """Names of submodules that, in order, make up the model, for pipelines and gears.

        None when it has no such order.
        """
        return None


@dataclass(frozen=True)
class StepResult:
    """What one step did on one worker.

    Attributes:
        loss: mean loss over the samples this worker used; None on a worker that saw none (or under meta tensors).
        samples: number of samples this worker used.
        updates: model updates applied.
        staleness: age, in updates, of the weights that the gradient was computed at; None where a method has none.
        values: what else the record of the step shall hold, by name, e.g. {"consensus_distance": 0.3}.
    """

    loss: float | None
    samples: int
    updates: int = 1
    staleness: float | None = None
    values: Mapping[str, float] = field(default_factory=dict)


class Worker(ABC):
    """The running strategy on one rank that trains. All state is made in the constructor.

    Attributes:
        model: the model being trained.
    """

    model: nn.Module

    @abstractmethod
    def step(self, batches: Batches) -> StepResult: ...

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything needed to go on as if nothing had happened.

        Model, optimizer, residuals, counters, what is in flight.
        """

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def pause(self) -> None:
        """The loop stands still after this step, to save or while a worker evaluates: nobody may wait for this one.

        Called on all workers after the same step.
        """
        return

    def settle(self) -> None:
        """Bring `model` up to date for a look at it between steps, without a change to what is learned.

        For methods that apply updates late. Called on all workers at the same point, before an evaluation on the way
        and before saving.
        """
        return

    def finish(self) -> None:
        """Drain what is in flight, so that the model is the strategy's answer. Called once, after the last step."""
        return

    def close(self) -> None:
        """Leave no trace: hooks removed, services told to end, lanes ended. Called once, also after an error."""
        return


class Service(ABC):
    """The running strategy on a rank that serves."""

    @abstractmethod
    def run(self) -> None:
        """Serve until the workers say that they have finished."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return
