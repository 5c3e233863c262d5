"""Dealing data to workers: the same global batches for any number of workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from geartrain.errors import TaskError
from geartrain.runtime.worker import Batch, Batches


def share(total: int, parts: int, index: int) -> range:
    """The `index`-th of `parts` contiguous shares of `range(total)`; the first `total % parts` have one more."""
    size, extra = divmod(total, parts)
    start = index * size + min(index, extra)
    return range(start, start + size + (index < extra))


class DealtBatches(Batches):
    """One worker's share of data that lies in memory.

        order of epoch e   = permutation drawn from (seed, e)
        global batch k     = the k-th `batch` samples of its epoch's order; an epoch's last, partial batch is dropped
        worker r takes     = the r-th contiguous share of global batch k

    `take(n)` serves methods that choose how much they take: the worker's own stream is its contiguous share of every
    epoch's order, epoch after epoch, so that together the workers see each sample once per epoch. The two ways keep a
    place each; mixing them on one worker shows samples twice.

    Args:
        inputs, targets: samples first.
        rank, num_workers: whose share.
        batch: global batch size, from `num_workers` to the number of samples.
        seed: of the order, zero or more.
    """

    def __init__(self, inputs: Tensor, targets: Tensor, *, rank: int, num_workers: int, batch: int, seed: int) -> None:
        if not num_workers <= batch <= len(inputs):
            raise TaskError(
                f"a global batch of {batch} cannot be dealt: give at least one sample per worker ({num_workers}) "
                f"and at most all samples ({len(inputs)})"
            )
        self._inputs, self._targets = inputs, targets
        self._rank, self._num_workers, self._batch, self._seed = rank, num_workers, batch, seed
        self._next_batch, self._next_sample = 0, 0
        self._orders: dict[int, Tensor] = {}

    def take(self, num_samples: int | None = None) -> Batch:
        """This worker's share of the next global batch; or so many samples of its own stream.

        The weight is samples / global batch size, also for samples of the own stream.
        """
        indices = self._global_share() if num_samples is None else self._own(num_samples)
        return Batch(self._inputs[indices], self._targets[indices], len(indices) / self._batch)

    def _global_share(self) -> Tensor:
        epoch, position = divmod(self._next_batch, len(self._inputs) // self._batch)
        self._next_batch += 1
        mine, start = share(self._batch, self._num_workers, self._rank), position * self._batch
        return self._order(epoch)[start + mine.start : start + mine.stop]

    def _own(self, num_samples: int) -> Tensor:
        if num_samples < 1:
            raise TaskError(f"a worker takes at least one sample, not {num_samples}")
        mine = share(len(self._inputs), self._num_workers, self._rank)
        pieces, needed = [], num_samples
        while needed:
            epoch, position = divmod(self._next_sample, len(mine))
            count = min(needed, len(mine) - position)
            start = mine.start + position
            pieces.append(self._order(epoch)[start : start + count])
            self._next_sample += count
            needed -= count
        return torch.cat(pieces)

    def _order(self, epoch: int) -> Tensor:
        if epoch not in self._orders:
            permutation = np.random.default_rng([self._seed, epoch]).permutation(len(self._inputs))
            # The two streams may stand in different epochs; older orders are not needed again.
            self._orders = {**dict(list(self._orders.items())[-1:]), epoch: torch.from_numpy(permutation)}
        return self._orders[epoch]

    def state_dict(self) -> dict[str, Any]:
        return {"next_batch": self._next_batch, "next_sample": self._next_sample, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken; TaskError if it belongs to another share, batch size or order.

        A place in the global batches is the same for any number of workers; one in the own stream is a worker's own.
        """
        mine = self._identity()
        if not state.get("next_sample"):
            del mine["rank"], mine["num_workers"]
        if different := [
            f"{key} {state.get(key)!r}, here {mine[key]!r}" for key in mine if state.get(key) != mine[key]
        ]:
            raise TaskError(f"the saved place in the data is of another run: {'; '.join(different)}")
        self._next_batch, self._next_sample = state["next_batch"], state["next_sample"]

    def _identity(self) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "num_workers": self._num_workers,
            "batch": self._batch,
            "seed": self._seed,
            "num_samples": len(self._inputs),
        }
