"""Digits dealt alike to all workers, or sorted by their label: each worker then knows some of the ten digits only."""

from dataclasses import dataclass

import torch

from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batches
from geartrain.strategies import parse
from geartrain.tasks.data import DealtBatches
from geartrain.tasks.digits import Digits

CLUSTER = load_cluster("ethernet-10g")


@dataclass(frozen=True, kw_only=True)
class SortedDigits(Digits):
    """Worker r draws from the r-th part of the samples in the order of their labels."""

    name = "sorted-digits"

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        whole = super().batches(0, 1, batch, seed)
        assert isinstance(whole, DealtBatches)
        inputs, targets = whole._inputs, whole._targets
        order = torch.argsort(targets, stable=True).chunk(num_workers)[rank]
        dealt = DealtBatches(
            inputs[order], targets[order], rank=0, num_workers=1, batch=batch // num_workers, seed=seed
        )
        return Shared(dealt, num_workers)


class Shared:
    """Batches of a worker alone, weighted as its share."""

    def __init__(self, inner, num_workers):
        self.inner, self.num_workers = inner, num_workers

    def take(self, num_samples=None):
        batch = self.inner.take(num_samples)
        return type(batch)(batch.inputs, batch.targets, 1 / self.num_workers)

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state):
        self.inner.load_state_dict(state)


def train(text, task, *, workers=4, steps=120, batch=64):
    """What worker 0 returned, and the mean loss of all workers in each step."""
    training = Training(strategy=parse(text), task=task, steps=steps, batch=batch)
    results = SimulatedEngine().run(training, CLUSTER, workers=workers).results
    losses = [sum(step) / workers for step in zip(*(result["losses"] for result in results), strict=True)]
    return results[0]["metric"], losses
