"""Which blocks of a model to compute again in backward, so that a batch fits and least time is lost.

    keep        T = 0                             M = what the block's layers keep for backward
    recompute   T = the block's forward pass      M = its input

The programme of `geartrain.planner.knapsack` over blocks. Beside the sum there is one block at a time that is computed
again and lives in full: the largest one is taken off the budget, and a little for what nobody has counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel, step_times
from geartrain.planner.knapsack import Choice, choose
from geartrain.predict.memory import RankMemory
from geartrain.workload.choices import blocks, input_bytes
from geartrain.workload.spec import Workload

SPARE = 0.02
"""Share of the memory that the programme leaves free: for what methods hold beside, and allocators lose. Chosen."""

RECOMPUTE = "recompute"


def recompute_choices(
    workload: Workload, samples: int, device: Device, model: ComputeModel
) -> list[tuple[Choice, Choice]]:
    """To keep and to recompute, for each block."""
    forward = step_times(workload, device, samples, model).forward
    found = []
    for block in blocks(workload):
        layers = workload.layers[block.start : block.stop]
        held = round(samples * sum(layer.activation for layer in layers))
        again = sum(forward[block.start : block.stop])
        found.append((Choice("keep", 0.0, held), Choice(RECOMPUTE, again, round(samples * input_bytes(layers[0])))))
    return found


def to_recompute(
    workload: Workload, samples: int, device: Device, model: ComputeModel, memory: RankMemory
) -> str | None:
    """The blocks to compute again, as `checkpointing=` has them; None where no choice of them fits.

    Args:
        memory: of a rank that keeps everything.
    """
    choices = recompute_choices(workload, samples, device, model)
    if not choices or memory.limit is None:
        return None
    held = [keep.memory for keep, _ in choices]
    budget = round(memory.limit * (1 - SPARE)) - (memory.total - sum(held)) - max(held)
    chosen = choose(choices, budget)
    if chosen is None:
        return None
    return in_words(_first_of_their_kind(choices, chosen.choices), len(choices))


def _first_of_their_kind(choices: Sequence[tuple[Choice, Choice]], chosen: Sequence[Choice]) -> list[int]:
    """Places of the blocks to recompute; of blocks alike, the first ones, which backward comes to last."""
    left = Counter(pair for pair, choice in zip(choices, chosen, strict=True) if choice.name == RECOMPUTE)
    found = []
    for place, pair in enumerate(choices):
        if left[pair]:
            left[pair] -= 1
            found.append(place)
    return found


def in_words(places: Sequence[int], count: int) -> str:
    """Places of blocks as text: "0-11+20"; all of them are "blocks".

    Args:
        places: rising.
        count: how many blocks there are.
    """
    if len(places) == count:
        return "blocks"
    runs: list[list[int]] = []
    for place in places:
        if runs and runs[-1][-1] == place - 1:
            runs[-1][1:] = [place]
        else:
            runs.append([place])
    return "+".join("-".join(map(str, run)) for run in runs)
