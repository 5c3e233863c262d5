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


class _Live(DispatchMode):
    """Counts the bytes of what operations make and somebody still holds.

    Attributes:
        live: bytes now.
        holding: what is made is held here, too, as whoever called would.
        moment: told after each operation.
    """

    def __init__(self, moment: Callable[[], None]) -> None:
        super().__init__()
        self.live = 0
        self.holding: list[Any] | None = None
        self._moment = moment
        self._there: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def leave_out(self, tensors: Iterator[Tensor]) -> None:
        """What these lie in is not counted."""
        for tensor in tensors:
            self._watch(tensor.untyped_storage(), 0)

    def _watch(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        key = storage._cdata
        if key in self._there:
            return

        def gone(_: object) -> None:
            self.live -= nbytes
            self._there.pop(key, None)

        self._there[key] = weakref.ref(storage, gone)
        self.live += nbytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in _tensors(out):
            storage = tensor.untyped_storage()
            self._watch(storage, storage.nbytes())
        if self.holding is not None:
            self.holding.append(out)
        self._moment()
        return out


class _Watched:
    """One step: the bytes that live after each operation.

    Attributes:
        forward: in forward.
        fresh: in backward, with the gradients made so far.
        kept: in backward, without them: they have been moved to where gradients are kept.
    """

    def __init__(self, module: nn.Module, step: Step, samples: int) -> None:
        self.forward: list[int] = []
        self.fresh: list[int] = []
        self.kept: list[int] = []
        self._gradients, self._in_backward = 0, False
        self._live = _Live(self._moment)
        self._live.leave_out(_tensors([*module.parameters(), *module.buffers()]))
        hooks = [p.register_post_accumulate_grad_hook(self._made) for p in module.parameters() if p.requires_grad]
        hooks.append(module.register_forward_pre_hook(self._begins))
        self._live.holding = held = []  # the batch lives as long as the step
        with torch.enable_grad(), self._live:
            loss = step(module, samples)
            self._in_backward = True
            loss.backward()
        held.clear()
        for hook in hooks:
            hook.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._live.holding = None

    def _made(self, parameter: Any) -> None:
        self._gradients += parameter.grad.nbytes

    def _moment(self) -> None:
        live = self._live.live
        if not self._in_backward:
            self.forward.append(live)
        elif in_backward():  # else autograd adds two gradients, which it does in place where nobody looks
            self.fresh.append(live)
            self.kept.append(live - self._gradients)


def _update(module: nn.Module, optimizer: OptimizerFactory) -> int:
    """Temporaries of the second update, when the optimizer's state exists."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    update = optimizer(parameters)
    return [_temporaries(update, parameters) for _ in range(2)][1]


def _temporaries(update: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> int:
    """The most that one update makes beside what is there before it."""
    for p in parameters:
        p.grad = torch.empty_like(p)
    moments = [0]
    live = _Live(lambda: moments.append(live.live))
    live.leave_out(_tensors([parameters, [p.grad for p in parameters], list(update.state.values())]))
    with live:
        update.step()
    return max(moments)


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
