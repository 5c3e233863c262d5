"""Groups of modules whose all-reduces come in two halves, one behind backward, one behind the next forward.

    arrived(p)     the group's reduce-scatter starts with the last of its gradients; the last group goes first
    end_step       all reduce-scatters have ended; the all-gather of the first group starts
    need(g)        until g is updated: wait for an all-gather, start the next one, update the group

What `geartrain.strategies.dear` is made of. Neither half knows the other's group: on each worker all reduce-scatters of
a step end before its first all-gather starts, so one lane and one group of ranks carry both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from geartrain.collectives.choice import measure
from geartrain.collectives.lane import CollectiveLane
from geartrain.collectives.messages import whole
from geartrain.collectives.registry import NATIVE, collective
from geartrain.collectives.ring import all_gather_in_place, reduce_scatter_in_place
from geartrain.errors import RunError, StrategyError
from geartrain.runtime.buckets import Bucket, GradientBuckets, Layout, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.first_use import FirstUse, group_neighbours, owned_parameters
from geartrain.runtime.tuner import Tuner

Way = Literal["native", "ring"]
Exchange = Literal["native", "ring", "measured"]

_CLEARLY = 0.95
"""Ours is taken where it needs less than this share of the backend's time; chosen: closer is noise."""


def faster(seconds: Mapping[Way, float]) -> Way:
    """The way that clearly takes less time, the backend's if neither does."""
    if len(seconds) == 1:
        return next(iter(seconds))
    return "ring" if seconds["ring"] < _CLEARLY * seconds["native"] else "native"


def _ways(exchange: Exchange, ctx: Context) -> Callable[[int], Way]:
    """The way for so many bytes, the same on all workers."""
    if exchange != "measured":
        return lambda nbytes: exchange
    choice = measure(ctx, ("reduce_scatter", "all_gather"))

    def fastest(nbytes: int) -> Way:
        first, second = choice.nearest("reduce_scatter", nbytes), choice.nearest("all_gather", nbytes)
        return faster({"native": first[NATIVE] + second[NATIVE], "ring": first["ring"] + second["ring"]})

    return fastest


def _ring_scatter(flat: Tensor, group: dist.ProcessGroup) -> None:
    reduce_scatter_in_place(flat, whole(group), 1)


def _ring_gather(flat: Tensor, group: dist.ProcessGroup) -> None:
    all_gather_in_place(flat, whole(group), 1)


@dataclass(frozen=True, eq=False)
class _Group:
    """Parameters that travel and are updated together; `shard` is None where a ring works in place."""

    gradients: Sequence[tuple[nn.Parameter, Tensor]]
    flat: Tensor
    shard: Tensor | None

    def scatter(self, lane: CollectiveLane) -> None:
        if self.shard is None:
            lane.start(self.flat, function=_ring_scatter)
        else:
            lane.start(self.shard, self.flat, function=collective("reduce_scatter", NATIVE))

    def gather(self, lane: CollectiveLane) -> None:
        if self.shard is None:
            lane.start(self.flat, function=_ring_gather)
        else:
            lane.start(self.flat, self.shard, function=collective("all_gather", NATIVE))


class Pipeline:
    """The groups of one worker, and which of them wait for their update.

    A step is forward, in which hooks see what is needed, backward, in which `arrived` is called, `flush`, `end_step`.

    Args:
        ctx, model, optimizer: of the worker.
        threshold: bytes below which a group takes the next module; None for one group.
        neighbours: modules in a group, in place of the threshold.
        exchange: the backend's halves, ours, or the faster by measurement.
        tuner: of the threshold, if it shall be tuned.

    Attributes:
        parameters: what is trained.
        weight: multiplies this worker's gradients.
        unused: parameters to be left alone by the next update.
    """

    def __init__(
        self,
        ctx: Context,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        threshold: int | None,
        neighbours: int | None,
        exchange: Exchange,
        tuner: Tuner | None,
    ) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise StrategyError("LBFGS looks at all gradients at once; dear updates group by group.\n  use synchronous")
        self._ctx, self._model, self._optimizer = ctx, model, optimizer
        self._threshold, self._neighbours, self.tuner = threshold, neighbours, tuner
        self.parameters = trainable(model)
        self._way = _ways(exchange, ctx)
        group = ctx.group(range(ctx.num_workers))
        assert group is not None, "every worker is in it"
        self._lane = CollectiveLane(ctx, group, _ring_scatter, "halves")
        self._first_use = FirstUse(model, self._need)
        self._owned = owned_parameters(model)
        self._used: set[nn.Parameter] = set()
        self._settings: list[dict[str, Any]] = []
        self._since: float | None = None
        self.weight, self.unused = 1.0, frozenset[nn.Parameter]()
        self.buckets, self._groups = self._lay_out()
        self._pending = len(self._groups)

    # --- layout -----------------------------------------------------------------------------------------------------

    def _lay_out(self) -> tuple[GradientBuckets, list[_Group]]:
        """Put the parameters into groups, and their gradients into a bucket for each, the last group first."""
        threshold = round(self.tuner.value) if self.tuner else self._threshold
        sizes = [sum(p.nbytes for p in owned) for owned in self._owned]
        kinds = [(owned[0].dtype, owned[0].device) for owned in self._owned]
        limit = threshold if self._neighbours is None else None
        members = group_neighbours(sizes, kinds, threshold=limit, count=self._neighbours)
        # Within a group in the order of backward, as in the buckets of `synchronous`.
        parameters = [tuple(p for k in group for p in self._owned[k])[::-1] for group in members]
        ways = [self._way(sum(p.nbytes for p in group)) for group in parameters]
        layouts = [self._layout(group, way) for group, way in zip(parameters, ways, strict=True)]
        buckets = GradientBuckets(layouts[::-1], self._scatter, overlap=False)
        flats = buckets.flats[::-1]
        before = [p.grad for p in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        buckets.adopt_all()
        groups = [self._group(*one) for one in zip(parameters, flats, ways, strict=True)]
        for parameter, gradient in zip(self.parameters, before, strict=True):
            parameter.grad = gradient
        self._first_use.assign({p: k for k, group in enumerate(parameters) for p in group})
        self._group_of = {p: k for k, group in enumerate(parameters) for p in group}
        return buckets, groups

    def _layout(self, parameters: tuple[nn.Parameter, ...], way: Way) -> Layout:
        numel = sum(p.numel() for p in parameters)
        padding = -numel % self._ctx.num_workers if way == "native" else 0
        return Layout(parameters, (0, numel + padding))

    def _group(self, parameters: tuple[nn.Parameter, ...], flat: Tensor, way: Way) -> _Group:
        gradients = [(p, p.grad) for p in parameters if p.grad is not None]  # adopted just before: all of them
        shard = flat.new_empty(flat.numel() // self._ctx.num_workers) if way == "native" else None
        return _Group(gradients, flat, shard)

    # --- backward ---------------------------------------------------------------------------------------------------

    def arrived(self, parameter: nn.Parameter, *, last: bool = True) -> None:
        """A gradient is complete, in the last backward of a step or an earlier one that only adds to it."""
        if not self._first_use.announced(parameter):
            raise RunError(self._stale(parameter), rank=self._ctx.rank)
        self._used.add(parameter)
        self.buckets.adopt(parameter)
        if last:
            self.buckets.arrived(parameter)

    def _stale(self, parameter: nn.Parameter) -> str:
        name = next(name for name, own in self._model.named_parameters() if own is parameter)
        return (
            f"{name} was used in forward while its update was pending: the module that owns it did not run, and in the "
            "first step it was not used at all.\n"
            "  let the module that owns a parameter run where the parameter is used, or use synchronous"
        )

    def taint(self, parameter: nn.Parameter, value: Tensor) -> None:
        """See `GradientBuckets`."""
        self.buckets.taint(parameter, value)

    def flush(self) -> None:
        """Backward is over: start what has not been started, with zeros for what got no gradient."""
        self.settle_unused()
        self.buckets.flush()
        self._first_use.end_step(self._used)

    def _scatter(self, bucket: Bucket) -> None:
        if self.weight != 1:
            bucket.flat.mul_(self.weight)
        self._groups[-1 - bucket.index].scatter(self._lane)

    # --- step and the next forward ----------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until all reduce-scatters have ended."""
        self._lane.wait()

    def end_step(self) -> None:
        """The first all-gather starts. Nothing is updated yet."""
        self.wait()
        # A scheduler may change them before the update, which belongs to this step.
        groups = self._optimizer.param_groups
        self._settings = [{key: _kept(value) for key, value in g.items() if key != "params"} for g in groups]
        self._pending = 0
        self._groups[0].gather(self._lane)
        self._need(self._first_use.at_once)
        if self.tuner:
            self._tune(self.tuner)

    def _need(self, last: int) -> None:
        """Update the groups up to this one, if they are not."""
        while self._pending <= last:
            self._lane.wait()
            group, self._pending = self._pending, self._pending + 1
            if self._pending < len(self._groups):
                self._groups[self._pending].gather(self._lane)
            self._update(self._groups[group])

    def _update(self, group: _Group) -> None:
        """A step of the optimizer, which leaves alone what has no gradient."""
        held = [(p, p.grad) for p in self.parameters if p.grad is not None]
        for parameter, _ in held:
            parameter.grad = None
        for parameter, gradient in group.gradients:
            parameter.grad = None if parameter in self.unused else gradient
        groups = self._optimizer.param_groups
        now = [dict(current) for current in groups]
        for current, settings in zip(groups, self._settings, strict=True):
            current.update(settings)
        self._optimizer.step()
        for current, before in zip(groups, now, strict=True):
            current.update(before)
        for parameter, _ in group.gradients:
            parameter.grad = None
        for parameter, gradient in held:
            parameter.grad = gradient

    def waits(self, parameter: nn.Parameter) -> bool:
        """Whether an update of this parameter is pending."""
        return self._group_of[parameter] >= self._pending

    def settle_unused(self) -> None:
        """Forward is over: update the groups that it did not need."""
        self._need(len(self._groups) - 1)

    def settle(self) -> None:
        """Apply the update that is pending, between steps."""
        self._since = None  # the next step is not like others: it has nothing to wait for
        self._need(len(self._groups) - 1)

    def forget(self) -> None:
        """Drop the update that is pending, for other weights are loaded."""
        self._lane.wait()
        self._since, self._pending = None, len(self._groups)

    # --- tuning -----------------------------------------------------------------------------------------------------

    def _tune(self, tuner: Tuner) -> None:
        ctx, since = self._ctx, self._since
        self._since = ctx.clock.now()
        if since is None or not tuner.observe(self._since - since):
            return
        self.settle()
        value = torch.zeros(1, dtype=torch.float64, device="cpu" if ctx.meta else ctx.device)
        if ctx.rank == 0:
            value.fill_(tuner.proposal())
        dist.broadcast(value, group=ctx.workers, group_src=0)
        self.use_threshold(value.item())

    def use_threshold(self, value: float) -> None:
        """Regroup; parameters and the optimizer's state stay."""
        assert self.tuner is not None, "only asked for where there is one"
        self.tuner.use(value)
        self.buckets.close()
        self.buckets, self._groups = self._lay_out()
        self._pending = len(self._groups)

    def close(self) -> None:
        """Remove all hooks, let go of the gradients, end the lane."""
        self._first_use.close()
        self.buckets.close()
        self._lane.close()


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
