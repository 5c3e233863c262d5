"""What a worker's memory holds when it holds most: the closed form that all strategies share.

    always      parameters + buffers of the modules + optimizer's state + what the strategy keeps
    forward     activations, up to the fullest moment               gradients as a whole, where they are kept
    backward    what is left of them, what is being made            likewise; and those made so far, unless they move
    afterwards  gradients + temporaries of the exchange or the update

The peak is the fullest of the last three.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from geartrain.workload.spec import MemoryShape, Peak, Workload

Gradients = Literal["fresh", "kept", "moved"]
"""How gradients are held.

"fresh": made anew in every step and given back before the next; "kept": in tensors of their own, into which each moves
as soon as it is made; "moved": in tensors of their own, into which all move when backward has ended.
"""


def worker_memory(
    workload: Workload,
    samples: float,
    *,
    optimizer: float = 1.0,
    gradients: Gradients = "kept",
    update: float = 1.0,
    beside: int = 0,
    afterwards: int = 0,
    **more: int,
) -> dict[str, int]:
    """Bytes by kind on a worker at the fullest moment of a step; their sum is the peak.

    Args:
        samples: of the worker.
        optimizer: its part of the optimizer's state.
        gradients: how they are held.
        update: the part of what it updates that it updates at a time.
        beside: temporaries that may be there at any time in backward.
        afterwards: temporaries when backward has ended, before the update.
        more: what the strategy keeps beside, by kind; what is zero is left out.

    Kinds: "activations" is all that forward and backward hold at that moment, with the batch, with what operations
    work on, and with the gradients made so far where they are "fresh" or "moved"; "temporaries" are those of the update
    or of the exchange. A workload that was not watched has the sum of its saved activations instead, an estimate.
    """
    size, state = workload.gradient_bytes, workload.gradient_bytes * workload.optimizer_state * optimizer
    kept = {"parameters": size, "gradients": size, "optimizer": round(state)}
    shape = workload.memory
    if shape is None:
        activations = round(samples * sum(layer.activation for layer in workload.layers))
        return {**kept, "activations": activations, **_some(temporaries=max(beside, afterwards), **more)}
    updating = round(shape.update * optimizer * update) if optimizer else 0
    moment = _fullest(_moments(shape, samples, size, gradients, beside, max(beside, afterwards, updating)))
    return {**kept, **moment, **_some(buffers=shape.buffers, **more)}


def server_memory(workload: Workload, shard: int, *, gradients: int, state: int, **more: int) -> dict[str, int]:
    """Bytes by kind on a rank that keeps a part of the model, or all of it, and updates it.

    Args:
        shard: bytes of its part.
        gradients: bytes of those that it keeps.
        state: bytes of its optimizer's state.
        more: what it keeps beside, by kind.

    It makes the whole model and a flat copy before it takes its part: with a small part, that is its fullest moment.
    """
    size, shape = workload.gradient_bytes, workload.memory
    updating = round(shape.update * shard / size) if shape is not None and state else 0
    serving = {"parameters": shard, "gradients": gradients, "optimizer": state, **_some(temporaries=updating, **more)}
    return _fullest([serving, {"parameters": 2 * size}])


def _moments(
    shape: MemoryShape, samples: float, size: int, gradients: Gradients, beside: int, end: int
) -> list[dict[str, int]]:
    """Forward, backward and the end of a step."""
    whole = 0 if gradients == "fresh" else size
    backward = shape.backward_kept if gradients == "kept" else shape.backward_fresh
    return [
        {"gradients": whole, "activations": round(highest(shape.forward, samples))},
        {"gradients": whole, "activations": round(highest(backward, samples)), **_some(temporaries=beside)},
        {"gradients": size, "activations": 0, **_some(temporaries=end)},
    ]


def _fullest(moments: list[dict[str, int]]) -> dict[str, int]:
    return max(moments, key=total)


def _some(**kinds: int) -> dict[str, int]:
    """The kinds of which there is something."""
    return {kind: nbytes for kind, nbytes in kinds.items() if nbytes}


def total(kinds: Mapping[str, int]) -> int:
    """Bytes of all kinds."""
    return sum(kinds.values())


def highest(peak: Peak, samples: float) -> float:
    """Bytes at the fullest moment."""
    return max((fixed + samples * per_sample for fixed, per_sample in peak), default=0.0)
