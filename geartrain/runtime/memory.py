"""What lives in memory during a step, beyond parameters and the optimizer's state.

A step runs on the meta device; every operation's results are counted until their storage goes. It runs at two batch
sizes, and each moment becomes a line in the samples, so that the fullest moment is known for any batch.

What a kernel takes for itself and gives back before it ends is not seen: it is no tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from geartrain.runtime.meta import OptimizerFactory, Step, on_meta
from geartrain.torch_private import DispatchMode, allocations, in_backward
from geartrain.workload.spec import Line, MemoryShape, Peak

_BATCHES = (2, 4)  # as where work is traced


def memory_shape(module: nn.Module, step: Step, optimizer: OptimizerFactory | None) -> MemoryShape:
    """The most that lives in each part of a step.

    Args:
        module, step, optimizer: as for `geartrain.runtime.tracing.trace_step`.
    """
    small, large = (_Watched(on_meta(module), step, samples) for samples in _BATCHES)
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    return MemoryShape(
        buffers=sum(t.nbytes for t in (*module.parameters(), *module.buffers()) if id(t) not in trained),
        forward=_peak(small.forward, large.forward),
        backward_fresh=_peak(small.fresh, large.fresh),
        backward_kept=_peak(small.kept, large.kept),
        update=_update(on_meta(module), optimizer) if optimizer else 0,
    )


def measured_peak(run: Callable[[], object]) -> int:
    """The most bytes of tensors on the CPU that live at a time while something runs.

    Counted from its beginning, on the calling thread alone, with what kernels take through the allocator of tensors.
    """
    return max(accumulate(allocations(run)), default=0)


class Footprint(DispatchMode):
    """Counts the bytes of what operations make, as long as somebody holds it; what was there before is left out.

    Attributes:
        live: bytes now.
        most: that lived at a time.
        holding: a list in which everything is held that is made, if it is not None.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self.holding: list[Any] | None = None
        self._there: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def moment(self) -> None:
        """An operation is done."""
        self.most = max(self.most, self.live)

    def _watch(self, value: Any, *, new: bool) -> None:
        for tensor in _tensors(value):
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in self._there:
                    self._there[key] = self._counted(storage, key, storage.nbytes() if new else 0)

    def _counted(self, storage: torch.UntypedStorage, key: int, nbytes: int) -> weakref.ref[torch.UntypedStorage]:
        def gone(_: object) -> None:
            self.live -= nbytes
            del self._there[key]

        self.live += nbytes
        return weakref.ref(storage, gone)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._watch((args, kwargs), new=False)
        out = func(*args, **(kwargs or {}))
        self._watch(out, new=True)
        if self.holding is not None:
            self.holding.append(out)
        self.moment()
        return out


class _Watched(Footprint):
    """One step: the bytes that live after each operation.

    Attributes:
        forward: in forward.
        fresh: in backward, with the gradients made so far.
        kept: in backward, without them: they have been moved to where gradients are kept.
    """

    def __init__(self, module: nn.Module, step: Step, samples: int) -> None:
        super().__init__()
        self.forward: list[int] = []
        self.fresh: list[int] = []
        self.kept: list[int] = []
        self._gradients, self._in_backward = 0, False
        hooks = [p.register_post_accumulate_grad_hook(self._made) for p in module.parameters() if p.requires_grad]
        hooks.append(module.register_forward_pre_hook(self._begins))
        held: list[Any] = []
        self.holding = held  # the batch lives as long as the step
        with torch.enable_grad(), self:
            loss = step(module, samples)
            self._in_backward = True
            loss.backward()
        held.clear()
        for hook in hooks:
            hook.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self.holding = None

    def _made(self, parameter: Any) -> None:
        self._gradients += parameter.grad.nbytes

    def moment(self) -> None:
        if not self._in_backward:
            self.forward.append(self.live)
        elif in_backward():  # else autograd adds two gradients, which it does in place where nobody looks
            self.fresh.append(self.live)
            self.kept.append(self.live - self._gradients)


def _update(module: nn.Module, optimizer: OptimizerFactory) -> int:
    """Temporaries of the second update, when the optimizer's state exists."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    update = optimizer(parameters)
    return [_temporaries(update, parameters) for _ in range(2)][1]


def _temporaries(update: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> int:
    """The most that one update makes beside what is there before it, and gives back."""
    for p in parameters:
        p.grad = torch.empty_like(p)
    footprint = Footprint()
    with footprint:
        update.step()
    return footprint.most


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


# --- lines ------------------------------------------------------------------------------------------------------------


def _peak(small: Sequence[int], large: Sequence[int]) -> Peak:
    """The moments that are the fullest of all at some batch of one or more, as lines."""
    if len(small) != len(large):  # a batch of another size takes other operations
        small, large = [max(small)], [max(large)]
    return upper_envelope([_line(*pair) for pair in set(zip(small, large, strict=True))])


def _line(small: int, large: int) -> Line:
    slope = (large - small) / (_BATCHES[1] - _BATCHES[0])
    return small - _BATCHES[0] * slope, slope


def upper_envelope(lines: Sequence[Line]) -> Peak:
    """Those of some lines that are the highest at some number of samples from 1 on, the least steep first."""
    found: list[Line] = []
    samples = 1.0
    while lines:
        found.append(max(lines, key=lambda line: (line[0] + samples * line[1], line[1])))
        fixed, slope = found[-1]
        lines = [line for line in lines if line[1] > slope]
        # Where the next one overtakes it first.
        samples = min(((fixed - line[0]) / (line[1] - slope) for line in lines), default=samples)
    return tuple(found)
