"""Sections of packages by their descriptions: sparse bags of words, two layers, Adagrad."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from geartrain.runtime.charging import uncharged
from geartrain.runtime.worker import Batch, Batches, Task
from geartrain.tasks.data import DealtBatches

_FILE = Path(__file__).with_name("packages") / "debian-packages.npz"
_NUM_WORDS, _NUM_SECTIONS = 3627, 58
_LONGEST = 24
_HIDDEN = 128
_TRAIN, _TEST = 0, 2


@cache
def _packages() -> tuple[Tensor, Tensor, Tensor]:
    """Bags int64[packages, 2, 24], section int64[packages], split uint8[packages]."""
    with np.load(_FILE) as data:
        starts, words, counts = (data[key].astype(np.int64) for key in ("indptr", "indices", "counts"))
        section, split = data["section"].astype(np.int64), data["split"]
    owner = np.repeat(np.arange(len(section)), np.diff(starts))
    place = np.arange(len(words)) - starts[owner]
    kept = place < _LONGEST
    bags = np.zeros((len(section), 2, _LONGEST), np.int64)
    bags[:, 0] = _NUM_WORDS  # the row that only padding has
    for row, values in enumerate((words, counts)):
        bags[owner[kept], row, place[kept]] = values[kept]
    return torch.from_numpy(bags), torch.from_numpy(section), torch.from_numpy(split)


@cache
def _part(which: int) -> tuple[Tensor, Tensor]:
    bags, section, split = _packages()
    return bags[split == which], section[split == which]


class WordSum(nn.Module):
    """The first layer, for bags: int64 (samples, 2, places) of words and their counts -> (samples, width).

    y = b + sum over the words of count * W[word]
    """

    def __init__(self, num_words: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(num_words + 1, width, mode="sum", sparse=sparse)
        self.bias = nn.Parameter(torch.zeros(width))
        nn.init.normal_(self.words.weight, std=0.1)

    def forward(self, bags: Tensor) -> Tensor:
        words, counts = bags.unbind(1)
        out: Tensor = self.words(words, per_sample_weights=counts.to(self.bias.dtype)) + self.bias
        return out


@dataclass(frozen=True)
class PackagesText(Task):
    """Find the section of a package by the words of its description.

        scores = W2 relu(b1 + sum over the words of count * W1[word]) + b2

    471,994 parameters (128 hidden); Adagrad, learning rate 0.1, meant for global batches of about 64 (all chosen). A
    step takes 3 to 5 ms on one core.

    A sample is a bag: one row of up to 24 words, one of their counts, filled up with a word of its own that counts
    nothing; six packages have more words, which are left out. The data is described beside it, in
    `packages/README.md`; its split is by hash of the name.

    Args:
        sparse: whether the gradient of the first layer is a sparse tensor that names the rows of the words it saw.
            Training is the same to rounding: Adagrad leaves a row without gradient as it is. For methods that send
            what changed.

    One process, batch 64, seed 0, measured: test accuracy 0.677 after 300 steps, 0.717 after 698 (one epoch); saying
    the largest section always gives 0.106. A perceptron on the same words by other means reaches 0.696.
    """

    name = "packages-text"
    source = "63,681 packages of a Debian release: descriptions and sections, in the package"
    sample_kind = "packages"

    sparse: bool = False

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                OrderedDict(
                    words=WordSum(_NUM_WORDS, _HIDDEN, self.sparse),
                    relu=nn.ReLU(),
                    head=nn.Linear(_HIDDEN, _NUM_SECTIONS),
                )
            )

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adagrad(params, lr=0.1, foreach=True)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch.inputs), batch.targets)

    def metric(self, model: nn.Module) -> dict[str, float]:
        """Accuracy and mean loss on the 12,757 test packages; empty for a model without numbers."""
        device = next(model.parameters()).device
        if device.type == "meta":
            return {}
        bags, sections = _part(_TEST)
        training = model.training
        with uncharged(), torch.no_grad():
            scores = model.eval()(bags.to(device)).cpu()
            loss = F.cross_entropy(scores, sections).item()
            accuracy = int((scores.argmax(1) == sections).sum()) / len(sections)
        model.train(training)
        return {"accuracy": accuracy, "loss": loss}

    def batches(self, rank: int, num_workers: int, batch: int, seed: int) -> Batches:
        bags, sections = _part(_TRAIN)
        return DealtBatches(bags, sections, rank=rank, num_workers=num_workers, batch=batch, seed=seed)

    def cuts(self) -> Sequence[str]:
        return ("words", "relu", "head")
