"""`attach`: a strategy inside an unchanged training loop, by PyTorch's public hooks on parameters and optimizer.

The wait for global gradients stands at the end of backward, not in the optimizer's pre-step hook: gradient clipping,
which a loop does between the two, must see global gradients. The pre-step hook only finishes what never began because
no hook fired. Accumulation is told, not guessed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from geartrain.errors import RunError, StrategyError
from geartrain.runtime.attachment import Attachment, Loop
from geartrain.runtime.buckets import trainable
from geartrain.runtime.context import Context
from geartrain.runtime.facade import Facade
from geartrain.runtime.same_start import check_same, share_first
from geartrain.runtime.strategy import Strategy
from geartrain.torch_private import at_end_of_backward, backward_number, in_nested_backward

_lock = threading.Lock()
_attached: dict[int, Attachment] = {}
"""By the id of each attached parameter, optimizer and context, which the block that is open keeps alive."""


@contextmanager
def attach(
    strategy: Strategy,
    model: nn.Module,
    optimizer: Optimizer,
    ctx: Context,
    *,
    accumulate: int = 1,
    batch_weight: Callable[[], float] | None = None,
    skip_unused: bool = False,
) -> Iterator[Optimizer]:
    """Let the workers train `model` together inside this block; the loop in it stays as it is.

        g <- sum_i weight_i * g_i      at the end of backward, before clipping and the step; weight_i = 1 / W

    Weights and buffers of all workers become those of worker 0 at the start. Each worker takes batches of its own, and
    its loss is a mean over them, as with DistributedDataParallel. With several backwards to a step the loop divides the
    loss by their number, as it would alone.

    Args:
        strategy: one that is attachable.
        model: with all parameters that the optimizer trains; the names in its state_dict stay.
        optimizer: the loop's own; its groups, state and names stay.
        ctx: from `geartrain.init()`.
        accumulate: how many backwards make a step; only the last of them exchanges.
        batch_weight: this worker's share of the global batch, asked in the last backward of each step. The shares of a
            step add up to 1. Wanted where local batches differ in size: 1 / W weighs them alike.
        skip_unused: a parameter that no worker used in a step keeps None as its gradient, so that the optimizer leaves
            it alone, at the price of an all-reduce of a byte per parameter tensor; otherwise its gradient is zero.

    Yields:
        The optimizer to step with: the loop's own, or one that shows it, for strategies that own the step.

    Costs what the strategy costs in each step, and once at the start a broadcast of the model and a gather of 8 bytes.
    Each `optimizer.step()` ends a step of the record, so such a loop does not mark steps itself.

    Not for: sparse gradients, a model that is wrapped for parallel training already, an optimizer that steps inside
    backward. Batch-norm statistics stay local.

    Example:
        with attach(parse("synchronous"), model, optimizer, ctx) as optimizer:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss_of(model(inputs), targets).backward()
                optimizer.step()

    Raises StrategyError where they do not fit.
    """
    share = batch_weight or (lambda: 1 / ctx.num_workers)
    loop = Loop(model, optimizer, accumulate, share, skip_unused)
    _check(strategy, loop, ctx)
    check_same(strategy, loop, ctx)
    share_first(model, ctx)
    attachment = strategy.attach(ctx, loop)
    points = _Points(attachment, loop, ctx)
    try:
        points.open()
        yield points.stepper
        attachment.finish()
    finally:
        points.close()
        attachment.close()


def attached(optimizer: Optimizer) -> Attachment:
    """The running strategy behind an attached optimizer; its `state_dict()` belongs into a checkpoint."""
    inner = optimizer.wrapped if isinstance(optimizer, Facade) else optimizer
    if id(inner) not in _attached:
        raise StrategyError("this optimizer is not attached; ask inside the `with attach(...)` block")
    return _attached[id(inner)]


def _check(strategy: Strategy, loop: Loop, ctx: Context) -> None:
    model, optimizer = loop.model, loop.optimizer
    if ctx.role != "worker":
        raise StrategyError(f"rank {ctx.rank} is a {ctx.role}, not a worker: only workers train a loop of their own")
    if not strategy.needs.attachable:
        raise StrategyError(_refusal(strategy, ctx.num_workers))
    if loop.accumulate < 1:
        raise StrategyError(f"accumulate={loop.accumulate}: a step takes at least 1 backward")
    if isinstance(model, DistributedDataParallel | DataParallel):
        raise StrategyError(
            f"the model is wrapped in {type(model).__name__}, which exchanges gradients too; attach model.module"
        )
    parameters = trainable(model)
    if not parameters:
        raise StrategyError("the model has no parameter that requires a gradient; nothing would be trained")
    ours = set(map(id, model.parameters()))
    strangers = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in ours]
    if strangers:
        raise StrategyError(
            f"the optimizer trains {len(strangers)} parameter(s) that are not the model's, so workers would train them "
            "apart.\n  attach one module that holds all parts, or give each part an optimizer and attach it by itself"
        )
    if any(id(thing) in _attached for thing in [optimizer, *parameters]):
        raise StrategyError("a strategy is attached to this model or optimizer already; leave its block first")


def _refusal(strategy: Strategy, num_workers: int) -> str:
    """Why a strategy cannot be attached, and which can."""
    services = strategy.roles(num_workers).services
    if services:
        reason = f"it needs {len(services)} {services[0].name}(s) beside the workers, and a script's ranks are workers"
    else:
        reason = "it makes model and optimizer itself, from a task, and takes whole steps"
    return (
        f"{strategy.name} cannot be attached to a loop: {reason}.\n"
        f"  attachable: {', '.join(_attachable(Strategy))}; {strategy.name} runs with `geartrain compare`"
    )


def _attachable(kind: Any) -> list[str]:
    """Names of the strategies known to this process that can be attached."""
    below = [name for child in kind.__subclasses__() for name in _attachable(child)]
    return sorted({*below, *([kind.name] if kind.needs.attachable else [])})


class _Points:
    """Finds the points of a loop by hooks, and tells the attachment.

    Args:
        attachment: is told.
        loop: where they are.
        ctx: of the rank; steps are marked in its record.

    Attributes:
        stepper: the optimizer for the loop.
    """

    def __init__(self, attachment: Attachment, loop: Loop, ctx: Context) -> None:
        self._attachment, self._loop, self._ctx = attachment, loop, ctx
        self._parameters = trainable(loop.model)
        self._known = set(map(id, self._parameters))
        # With several attached loops on one rank the first marks the steps.
        self._marks = id(ctx) not in _attached
        self._keys = [id(loop.optimizer), *self._known, *([id(ctx)] if self._marks else [])]
        self._handles: list[Any] = []
        self._missing: set[int] = set()  # parameters without a gradient so far in the running backward
        self._numbers: set[int] = set()  # of the running backward and those nested in it
        self._outer: int | None = None  # the one of them that is not nested
        self._running = False
        self._backwards = 0  # since the last exchange, the running one included
        self._exchanged = False  # since the last step
        self._began = False  # whether there ever was a backward
        self._step = 0
        self.stepper: Optimizer = loop.optimizer
        if attachment.owns_step:
            self.stepper = Facade(loop.optimizer, self._own_step)

    def open(self) -> None:
        """Register everything."""
        with _lock:
            _attached.update(dict.fromkeys(self._keys, self._attachment))
        optimizer = self._loop.optimizer
        self._handles = [p.register_post_accumulate_grad_hook(self._arrived) for p in self._parameters]
        if not self._attachment.owns_step:
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))
        self._mark("begin")

    def _mark(self, phase: Literal["begin", "end"]) -> None:
        if self._marks:
            self._ctx.mark_step(self._step, phase)

    def close(self) -> None:
        """Remove everything."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        with _lock:
            for key in self._keys:
                _attached.pop(key, None)

    # --- backward ---------------------------------------------------------------------------------------------------

    def _arrived(self, parameter: Any) -> None:
        if not self._running:
            self._running = self._began = True
            self._backwards += 1
            self._missing = set(self._known)
            self._numbers.clear()
            self._outer = None
        number = backward_number()
        if number not in self._numbers:
            self._see(number)
        last = self._backwards >= self._loop.accumulate
        if last and id(parameter) not in self._missing:
            raise RunError(
                "a parameter got a gradient twice in one backward: it is used inside of a re-entrant checkpoint and "
                "elsewhere too.\n  use checkpoint(..., use_reentrant=False)",
                rank=self._ctx.rank,
                step=self._step,
            )
        self._missing.discard(id(parameter))
        self._attachment.arrived(parameter, last=last)

    def _see(self, number: int) -> None:
        """A backward, or one nested in it, has reached its first parameter."""
        if not in_nested_backward():
            if self._outer is not None and self._ctx.num_workers > 1:
                raise RunError(
                    "a backward broke off with an error, and this is another one: what of its gradients the other "
                    "workers have is not known.\n  leave the block after such an error, and attach again",
                    rank=self._ctx.rank,
                    step=self._step,
                )
            self._outer = number
        self._numbers.add(number)
        at_end_of_backward(self._backward_ended)

    def _backward_ended(self) -> None:
        # A re-entrant checkpoint runs a backward inside another one; at its end others may still come.
        if not self._running or (self._missing and in_nested_backward()):
            return
        self._running = False
        if self._backwards >= self._loop.accumulate:
            self._exchange()

    def _exchange(self) -> None:
        self._running, self._backwards, self._exchanged = False, 0, True
        self._attachment.gradients_ready()

    # --- step -------------------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        # With a closure the backward comes inside the step.
        self._enter_step(has_closure=len(args) > 1 or kwargs.get("closure") is not None)

    def _enter_step(self, *, has_closure: bool) -> None:
        self._check_known()
        # A loop may step once before its first backward, to please a scheduler: that is no step of training.
        if self._began and not has_closure and (self._backwards or not self._exchanged):
            self._exchange()
        if self._began or has_closure:
            self._attachment.before_step()

    def _check_known(self) -> None:
        new = [n for n, p in self._loop.model.named_parameters() if p.requires_grad and id(p) not in self._known]
        if new:
            raise RunError(
                f"{', '.join(new[:3])} began to be trained inside the block, so workers would train it apart.\n"
                "  leave the block and attach again",
                rank=self._ctx.rank,
                step=self._step,
            )

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._leave_step()

    def _leave_step(self) -> None:
        self._exchanged = False
        if self._began:
            self._attachment.after_step()
        self._mark("end")
        self._step += 1
        self._mark("begin")

    def _own_step(self, closure: Callable[[], Any] | None) -> Any:
        """One step of a strategy that owns it."""
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
            self._enter_step(has_closure=False)
        else:
            loss = None
            self._enter_step(has_closure=False)
        self._attachment.step(self._loop.optimizer.step)
        self._leave_step()
        return loss
