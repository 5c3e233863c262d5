"""Flat gradient buckets: gradients live in the tensors that travel.

The parameters of a `Layout` lie one after another in one flat tensor, which is cut into buckets. As soon as autograd
has made a gradient it is moved into its place there, and `p.grad` is a view of that place from then on: the flat
tensors are the one extra copy of the gradients, and nothing is packed or unpacked later. (Zeroing the flat tensors and
letting autograd add into them would touch every gradient twice as often.) A bucket is handed over when the gradients of
all parameters that reach into it are there, counted by post-accumulate hooks; what never got a gradient (an unused
parameter) is zero and goes at the end of backward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from geartrain.errors import RunError
from geartrain.runtime.motion import copy


@dataclass(frozen=True)
class Layout:
    """Parameters one after another in a flat tensor, and where it is cut into buckets.

    Attributes:
        parameters: of one dtype and device, in order.
        cuts: offsets in elements, ascending from 0 to the number of elements, or beyond it: padding, which stays zero;
            two equal ones make an empty bucket.
    """

    parameters: tuple[nn.Parameter, ...]
    cuts: tuple[int, ...]

    @property
    def numel(self) -> int:
        return self.cuts[-1]

    def slices(self) -> list[slice]:
        """The elements of each bucket."""
        return [slice(begin, end) for begin, end in zip(self.cuts, self.cuts[1:], strict=False)]


@dataclass(eq=False)
class Bucket:
    """A slice of a flat gradient tensor that travels as one.

    Attributes:
        index: its place among all buckets.
        flat: the gradients, 1-D, before any codec.
        needs: how many parameters reach into it.
        missing: how many of them have no gradient yet in this backward; below zero once it has been handed over.
    """

    index: int
    flat: Tensor
    needs: int
    missing: int = 0


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """What is trained, in registration order; a tied parameter once."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def even_cuts(numel: int, count: int) -> tuple[int, ...]:
    """Offsets that cut `numel` elements into `count` parts; the first `numel % count` parts have one element more."""
    size, more = divmod(numel, count)
    return tuple(part * size + min(part, more) for part in range(count + 1))


def deal(sizes: Sequence[int], kinds: Sequence[Hashable], limit: int | None) -> list[list[int]]:
    """Deal tensors to buckets in reverse order: backward makes the gradients of the last ones first.

    A bucket holds one kind (data type and device) and is closed as soon as it holds `limit` bytes or more, as in DDP: a
    rule that never exceeds the limit would leave a small bucket behind every large tensor. None is no limit. Unlike
    DDP's, the first bucket is no smaller than the others.

    Args:
        sizes: bytes of each tensor.
        kinds: what must not be mixed in one bucket.
        limit: bytes.

    Returns:
        The indices in each bucket; buckets stand in the order in which they were opened.
    """
    buckets: list[list[int]] = []
    current: dict[Hashable, tuple[list[int], int]] = {}
    for index in reversed(range(len(sizes))):
        bucket, filled = current.get(kinds[index], ([], 0))
        if not bucket:
            buckets.append(bucket)
        bucket.append(index)
        filled += sizes[index]
        current[kinds[index]] = ([], 0) if limit is not None and filled >= limit else (bucket, filled)
    return buckets


def bucket_layouts(parameters: Sequence[nn.Parameter], limit: int | None) -> list[Layout]:
    """One layout per bucket of at most `limit` bytes, see `deal`."""
    dealt = deal([p.nbytes for p in parameters], [(p.dtype, p.device) for p in parameters], limit)
    groups = [tuple(parameters[index] for index in indices) for indices in dealt]
    return [Layout(group, (0, sum(p.numel() for p in group))) for group in groups]


def flat_parameters(layout: Layout) -> Tensor:
    """Move the values of the parameters into one flat tensor, of which they are views from now on."""
    with torch.no_grad():
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in layout.parameters])
        for parameter, view in zip(layout.parameters, _views(flat, layout), strict=True):
            parameter.data = view
    return flat


@dataclass(frozen=True, eq=False)
class _Place:
    """Where the gradient of a parameter lives: a view into a flat tensor, and the buckets that it reaches into."""

    view: Tensor
    reached: Sequence[Bucket]


class GradientBuckets:
    """The gradients of one rank, in buckets.

    A step is `begin()`, backward, `flush()`; `on_ready` gets every bucket exactly once per step. In a loop that is not
    ours, whoever has hooks of its own says `open()`, and `adopt(p)` and `arrived(p)` for every gradient.

    Args:
        layouts: which parameters lie together; the buckets are numbered through all of them.
        on_ready: takes a bucket whose gradients are complete; called inside backward, so it must not wait.
        overlap: hand over during backward; otherwise all at `flush()`.
        in_order: hand over in the order of index only, which is then the same on all ranks even where they leave
            different parameters unused. Collectives need that.
    """

    def __init__(
        self, layouts: Sequence[Layout], on_ready: Callable[[Bucket], None], *, overlap: bool, in_order: bool = True
    ) -> None:
        self._on_ready, self._in_order, self._next = on_ready, in_order, 0
        self._hooks: list[RemovableHandle] = []
        self.flats: list[Tensor] = []
        self.buckets: list[Bucket] = []
        self._places: dict[nn.Parameter, _Place] = {}
        self._taint: tuple[nn.Parameter, Tensor] | None = None
        for layout in layouts:
            self._lay_out(layout, overlap)

    def _lay_out(self, layout: Layout, overlap: bool) -> None:
        first = layout.parameters[0]
        flat = torch.zeros(layout.numel, dtype=first.dtype, device=first.device)
        buckets = [Bucket(len(self.buckets) + k, flat[part], 0) for k, part in enumerate(layout.slices())]
        offset = 0
        for parameter, view in zip(layout.parameters, _views(flat, layout), strict=True):
            end = offset + parameter.numel()
            reached = [
                bucket
                for bucket, part in zip(buckets, layout.slices(), strict=True)
                if part.start < end and offset < part.stop
            ]
            for bucket in reached:
                bucket.needs += 1
            self._places[parameter] = _Place(view, reached)
            if overlap:
                self._hooks.append(parameter.register_post_accumulate_grad_hook(self._made))
            offset = end
        self.flats.append(flat)
        self.buckets += buckets

    def begin(self) -> None:
        """Before forward: no gradients, all buckets open."""
        for parameter in self._places:
            parameter.grad = None
        self.open()

    def taint(self, parameter: nn.Parameter, value: Tensor) -> None:
        """Add a scalar to the first element of this parameter's gradient in the backward that follows."""
        self._taint = (parameter, value)

    def open(self) -> None:
        """All buckets open, with the gradients that are in them."""
        for bucket in self.buckets:
            bucket.missing = bucket.needs
        self._next = 0

    def adopt(self, parameter: nn.Parameter) -> None:
        """Let the gradient live in its bucket again, where a loop has put another tensor or None into its place."""
        view, gradient = self._places[parameter].view, parameter.grad
        if gradient is view:
            return
        if gradient is None:
            view.zero_()
        elif gradient.layout is not torch.strided:
            raise RunError("a sparse gradient does not fit into a bucket; make the embedding with sparse=False")
        else:
            copy(view, gradient)
        if self._taint is not None and self._taint[0] is parameter:
            view.view(-1)[0] += self._taint[1]
        parameter.grad = view

    def adopt_all(self) -> None:
        """`adopt` for every parameter."""
        for parameter in self._places:
            self.adopt(parameter)

    def _made(self, parameter: Any) -> None:
        self.adopt(parameter)
        self.arrived(parameter)

    def arrived(self, parameter: nn.Parameter) -> None:
        """The gradient of a parameter is complete. Said once for each in a step."""
        for bucket in self._places[parameter].reached:
            bucket.missing -= 1
            if bucket.missing == 0 and not self._in_order:
                self._hand_over(bucket)
        while self._in_order and self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
            self._hand_over(self.buckets[self._next])

    def _hand_over(self, bucket: Bucket) -> None:
        bucket.missing = -1
        self._next += 1
        self._on_ready(bucket)

    def flush(self) -> None:
        """After backward: move what is left into its place and hand it over."""
        self.adopt_all()
        self._taint = None
        for bucket in self.buckets:
            if bucket.missing >= 0:
                self._hand_over(bucket)

    def close(self) -> None:
        """Remove all hooks and let go of the gradients."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        for parameter in self._places:
            parameter.grad = None


def _views(flat: Tensor, layout: Layout) -> list[Tensor]:
    """Each parameter's part of the flat tensor, in the parameter's shape."""
    numels = [parameter.numel() for parameter in layout.parameters]
    parts = flat[: sum(numels)].split(numels)
    return [p if q.dim() == 1 else p.view(q.shape) for p, q in zip(parts, layout.parameters, strict=True)]
