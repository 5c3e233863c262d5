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
from torch.multiprocessing.reductions import StorageWeakRef

from geartrain.torch_private import DispatchMode, allocations, in_backward
from geartrain.workload.spec import Line, MemoryShape, Peak


def memory_shape(small: Watch, large: Watch, batches: tuple[int, int], update: int) -> MemoryShape:
    """The most that lives in each part of a step.

    Args:
        small, large: the step at two batch sizes.
        batches: these sizes.
        update: bytes of the optimizer's temporaries.
    """

    def peak(few: Sequence[int], many: Sequence[int]) -> Peak:
        if len(few) != len(many):  # a batch of another size takes other operations
            few, many = [max(few)], [max(many)]
        return upper_envelope([_line(*pair, batches) for pair in set(zip(few, many, strict=True))])

    return MemoryShape(
        buffers=small.buffers,
        forward=peak(small.forward, large.forward),
        backward_fresh=peak(small.fresh, large.fresh),
        backward_kept=peak(small.kept, large.kept),
        update=update,
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
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self._there: dict[StorageWeakRef, weakref.ref[torch.UntypedStorage]] = {}

    def moment(self, made: Any) -> None:
        """An operation is done, with this result."""
        self.most = max(self.most, self.live)

    def _watch(self, value: Any, *, new: bool) -> None:
        for tensor in tensors_in(value):
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                key = StorageWeakRef(storage)
                if key not in self._there:
                    self._there[key] = self._counted(storage, key, storage.nbytes() if new else 0)

    def _counted(
        self, storage: torch.UntypedStorage, key: StorageWeakRef, nbytes: int
    ) -> weakref.ref[torch.UntypedStorage]:
        def gone(_: object) -> None:
            self.live -= nbytes
            del self._there[key]

        self.live += nbytes
        return weakref.ref(storage, gone)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._watch((args, kwargs), new=False)
        out = func(*args, **(kwargs or {}))
        self._watch(out, new=True)
        self.moment(out)
        return out


class Watch(Footprint):
    """One step, inside: the bytes that live after each operation.

    Args:
        module: on the meta device.

    Attributes:
        buffers: bytes of the module's buffers and of its tensors that are not trained.
        forward: in forward.
        fresh: in backward, with the gradients made so far.
        kept: in backward, without them: they have been moved to where gradients are kept.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        trained = [p for p in module.parameters() if p.requires_grad]
        others = [p for p in module.parameters() if not p.requires_grad]
        self.buffers = sum(tensor.nbytes for tensor in (*others, *module.buffers()))
        self.forward: list[int] = []
        self.fresh: list[int] = []
        self.kept: list[int] = []
        self._gradients, self._in_backward = 0, False
        self._batch: list[Any] = []  # made before the module runs; lives as long as the step
        self._before = True
        self._hooks = [p.register_post_accumulate_grad_hook(self._made) for p in trained]
        self._hooks.append(module.register_forward_pre_hook(self._begins))

    def backward_begins(self) -> None:
        """What comes is backward."""
        self._in_backward = True

    def close(self) -> None:
        """Remove all hooks and let go of the batch."""
        self._batch.clear()
        for hook in self._hooks:
            hook.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._before = False

    def _made(self, parameter: Any) -> None:
        self._gradients += parameter.grad.nbytes

    def moment(self, made: Any) -> None:
        if self._before:
            self._batch.append(made)
        if not self._in_backward:
            self.forward.append(self.live)
        elif in_backward():  # else autograd adds two gradients, which it does in place where nobody looks
            self.fresh.append(self.live)
            self.kept.append(self.live - self._gradients)


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of arguments, however they are nested."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


# --- lines ------------------------------------------------------------------------------------------------------------


def _line(few: int, many: int, batches: tuple[int, int]) -> Line:
    slope = (many - few) / (batches[1] - batches[0])
    return few - batches[0] * slope, slope


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
