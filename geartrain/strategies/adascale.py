"""AdaScale: the learning rate of one small batch, times a gain that is measured while training on many.

    S base batches a step, W workers times c passes; g_j the gradient of base batch j, gbar their mean

    sig2 = sum_j |g_j|^2 / (S - 1) - S/(S - 1) |gbar|^2        variance of one base batch's gradient, at least 1e-6
    mu2  = |gbar|^2 - sig2/S                                   square of the true gradient's length, at least 0
    r    = (avg sig2 + avg mu2) / (avg sig2/S + avg mu2)       the gain, 1 <= r <= S; 1 in the first step
    w   <- w - r lr(floor(tau)) gbar,     tau <- tau + r

    avg: the plain mean of all steps while t < 1/(1 - theta), then avg <- theta avg + (1 - theta) new;
         theta = max(1 - S/1000, 0)

Paper: Tyler B. Johnson, Pulkit Agrawal, Haijie Gu, Carlos Guestrin, 2020, arXiv 2007.05105, read in an earlier version.
Limits: S = 1 is `single`.
Differs from the paper: a scale S that is not the number n of base batches is that of a public implementation,
sig2 = (S/n) sum_j |g_j|^2 / (n - 1) - S/(n - 1) |gbar|^2. Where shares of the batch differ by a sample, each base batch
still counts as one. One gain for the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from geartrain.cluster.placement import Placement
from geartrain.cost.compute import ROOFLINE, ComputeModel, Work
from geartrain.cost.placed import native_collective
from geartrain.cost.terms import Cost
from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Attachment, GradientAttachment, Loop
from geartrain.runtime.backward import on_device, witness_of
from geartrain.runtime.buckets import GradientBuckets, bucket_layouts, trainable
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Limit, Needs, Paper, Strategy
from geartrain.runtime.worker import Batch, Batches, StepResult, Task, Worker
from geartrain.strategies import closed_forms
from geartrain.strategies.papers import ADASCALE
from geartrain.strategies.single import Single
from geartrain.strategies.synchronous import Exchange, GradientSum, Synchronous
from geartrain.strategies.text import Size, check_fields, render
from geartrain.workload.spec import Workload


@dataclass(frozen=True, kw_only=True)
class AdaScale(Strategy):
    """Synchronous SGD whose learning rate grows with the batch by as much as the noise of the gradients allows.

        r = (sig2 + mu2) / (sig2/S + mu2),   w <- w - r lr(floor(tau)) gbar,   tau <- tau + r

    Args:
        accumulate: passes c of each worker in a step, each on its own part of the worker's share; in a loop of the
            user's, `attach(accumulate=...)` says it.
        accumulation: of a user's loop: "mean" where it divides the loss by the number of passes, "sum" where it does
            not; then the exchanged gradient is divided.
        scale: S, if it shall not be the number of base batches W c; above 0.
        exchange, bucket_size, overlap: as for `synchronous`; with overlap buckets travel during the last pass.

    Costs, per worker and step, what `synchronous` costs, and one all-reduce of a number of at least 4 bytes. The
    squares of all gradients are added up twice.

        steps to the end = T / mean r   for T steps with S = 1

    Use it to train with the learning rate of a small batch on more workers, without another search, or while their
    number changes. The gain can be 1 for long where gradients hardly differ: then many workers are wasted. A schedule
    counts tau, not steps: `attached(optimizer).progress`, and "progress" in each step's record. Weight decay is
    multiplied by the gain too, as it comes after it in SGD. Its authors have not tried it with Adam.

    Example:
        >>> str(AdaScale(accumulate=4))
        'adascale:accumulate=4'

    Source: Johnson et al., 2020, arXiv 2007.05105 (section 3 of the earlier version); `scale` as fairscale has it.
    """

    name: ClassVar[str] = "adascale"
    paper: ClassVar[Paper] = ADASCALE
    needs: ClassVar[Needs] = Needs(lanes=True, attachable=True, regroups=True)

    accumulate: int = 1
    accumulation: Literal["mean", "sum"] = "mean"
    scale: float | None = None
    exchange: Exchange = "native"
    bucket_size: Size | None = 25 * 2**20
    overlap: bool = True

    def __post_init__(self) -> None:
        check_fields(self, accumulate=1, bucket_size=1)
        if self.scale is not None and self.scale <= 0:
            raise StrategyError(f"scale={self.scale}: the number of base batches that a step stands for is above 0")

    def __str__(self) -> str:
        return render(self)

    @property
    def synchronous(self) -> Synchronous:
        """What exchanges the gradients."""
        return Synchronous(exchange=self.exchange, bucket_size=self.bucket_size, overlap=self.overlap)

    def bind(self, ctx: Context, task: Task) -> Worker:
        return _AdaScaleWorker(self, ctx, task)

    def attach(self, ctx: Context, loop: Loop) -> Attachment:
        return _AdaScaleAttachment(self, ctx, loop)

    def limits(self) -> Sequence[Limit]:
        return (
            Limit(AdaScale(), "equals", Single(), num_workers=1),
            Limit(AdaScale(exchange="ring"), "equals", AdaScale()),
            Limit(AdaScale(bucket_size=None, overlap=False), "equals", AdaScale()),
        )

    def regroup(self, states: Sequence[dict[str, Any]], rank: int, num_workers: int) -> dict[str, Any]:
        return states[0]

    def cost(self, workload: Workload, place: Placement, batch: int, model: ComputeModel = ROOFLINE) -> Cost:
        plain = self.synchronous.cost(workload, place, batch, model)
        if place.num_workers * self.accumulate == 1:
            return plain
        size = max(workload.element_size, 4)
        seconds, traffic = native_collective(place, "all_reduce", size, size)
        return Cost(
            compute=plain.compute + self._squares_time(workload, place, model),
            exposed_communication=plain.exposed_communication + seconds,
            hidden_communication=plain.hidden_communication,
            sent=tuple(before + more for before, more in zip(plain.sent, traffic, strict=True)),
            memory=self._memory(workload, place, batch),
            notes=plain.notes,
        )

    def _memory(self, workload: Workload, place: Placement, batch: int) -> dict[str, int]:
        """In all passes but the last gradients are made beside the buckets; squares are made of a bucket at a time."""
        samples = -(-closed_forms.share(batch, place.num_workers, 0) // self.accumulate)
        size = workload.gradient_bytes
        squares = min(size, self.bucket_size or size)
        return closed_forms.worker_memory(
            workload,
            samples,
            gradients="kept" if self.overlap or self.accumulate > 1 else "moved",
            afterwards=squares,
            added=size if self.accumulate > 1 else 0,
        )

    def _squares_time(self, workload: Workload, place: Placement, model: ComputeModel) -> float:
        """Seconds in which the slowest worker adds up squares: in each pass, and of the mean."""
        sums = self.accumulate + 1
        numel, tensors = sums * workload.num_parameters, sums * len(workload.parameters)
        work = Work("squares", 2 * numel, numel * workload.element_size, workload.dtype, tensors)
        return closed_forms.slowest_time(work, place, model)


def gain_of(noise: float, scale: float) -> float:
    """The gain where sigma^2/mu^2 is known: (noise + 1) / (noise/S + 1); at most S, and at most 1 + noise."""
    return (noise + 1) / (noise / scale + 1)


@dataclass
class Gain:
    """The running averages, the gain that follows from them, and how far training is.

    Attributes:
        variance, square: averages of sig2 and mu2.
        steps: of which they are averages.
        value: the gain r of the step that is being taken.
        progress: tau, in steps of one base batch, before that step.
    """

    variance: float = 0.0
    square: float = 0.0
    steps: int = 0
    value: float = 1.0
    progress: float = 0.0

    def __post_init__(self) -> None:
        self._rates: list[Any] = []

    def feed(self, squares: float, mean_square: float, batches: int, scale: float) -> None:
        """Take what a step has measured; nothing where it is not finite, as a gradient scaler leaves out such a step.

        Args:
            squares: sum over its base batches of the squared length of the gradient.
            mean_square: squared length of their mean.
            batches: how many they are, at least 2.
            scale: S.
        """
        if not math.isfinite(squares + mean_square):
            return
        variance = scale / batches * squares / (batches - 1) - scale / (batches - 1) * mean_square
        self.steps += 1
        keep = self._keep(scale)
        self.variance = keep * self.variance + (1 - keep) * max(variance, 1e-6)
        self.square = keep * self.square + (1 - keep) * max(mean_square - variance / scale, 0.0)
        if self.steps > 1:
            self.value = (self.variance + self.square) / (self.variance / scale + self.square)

    def _keep(self, scale: float) -> float:
        """The share of the average that stays."""
        theta = max(1 - scale / 1000, 0.0)
        return min(theta, 1 - 1 / self.steps)

    def raise_rates(self, optimizer: Optimizer) -> None:
        """Before a step: multiply the learning rates by the gain."""
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * self.value

    def restore_rates(self, optimizer: Optimizer) -> None:
        """After the step."""
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate
        self.progress += self.value


class _Squares:
    """The squared length of each gradient that autograd makes, before anything is added to it or exchanged."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._hooks = [parameter.register_hook(self._add) for parameter in parameters]
        first = parameters[0]
        self._sum = torch.zeros((), dtype=torch.promote_types(first.dtype, torch.float32), device=first.device)

    def _add(self, gradient: Tensor) -> None:
        self._sum += gradient.detach().to(self._sum.dtype).square().sum()

    def take(self, factor: float) -> Tensor:
        """What has come since the last time, times a factor."""
        taken = self._sum * factor
        self._sum.zero_()
        return taken

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


class _Meter:
    """Measures the gain on one worker: squares before the exchange, added up over the workers, and of the mean."""

    def __init__(self, strategy: AdaScale, ctx: Context, parameters: Sequence[nn.Parameter], passes: int) -> None:
        self._ctx, self._batches = ctx, ctx.num_workers * passes
        self._scale = strategy.scale or float(self._batches)
        self.gain = Gain()
        if self._batches == 1 and strategy.scale is not None:
            raise StrategyError(
                f"{strategy} cannot measure the variance of one base batch a step; take several workers or passes"
            )
        self._squares = _Squares(parameters) if self._batches > 1 else None
        self._total: Tensor | None = None
        self._work: dist.Work | None = None

    def backward_ended(self, factor: float) -> None:
        """A pass is over, whose gradients have to be multiplied by the root of `factor`."""
        if self._squares:
            squares = self._squares.take(factor)
            self._total = squares if self._total is None else self._total + squares

    def start(self) -> None:
        """The last pass is over: tell the other workers."""
        if self._total is not None and self._ctx.num_workers > 1:
            self._work = dist.all_reduce(self._total, group=self._ctx.workers, async_op=True)

    def finish(self, means: Sequence[Tensor]) -> None:
        """The gradients are exchanged: set the gain of this step."""
        if self._total is None:
            return
        square = torch.stack([mean.to(self._total.dtype).square().sum() for mean in means]).sum()
        if self._work is not None:
            self._work.wait()
        if not self._ctx.meta:
            self.gain.feed(self._total.item(), square.item(), self._batches, self._scale)
        self._total = self._work = None

    def close(self) -> None:
        if self._squares:
            self._squares.close()


class _AdaScaleWorker(Worker):
    def __init__(self, strategy: AdaScale, ctx: Context, task: Task) -> None:
        self._strategy, self._ctx, self._task = strategy, ctx, task
        self.model = task.model(ctx.seed).to(ctx.device)
        parameters = trainable(self.model)
        self._witness = witness_of(self.model)
        self._optimizer = task.optimizer(parameters)
        self._meter = _Meter(strategy, ctx, parameters, strategy.accumulate)
        self._sum = GradientSum(strategy.synchronous, ctx)
        layouts = bucket_layouts(parameters, strategy.bucket_size)
        self._buckets = GradientBuckets(layouts, lambda bucket: self._sum.start(bucket.flat), overlap=False)
        self._last_pass = False
        made = parameters if strategy.overlap else ()
        self._hooks = [parameter.register_post_accumulate_grad_hook(self._made) for parameter in made]

    def _made(self, parameter: Tensor) -> None:
        assert isinstance(parameter, nn.Parameter)
        if self._last_pass:
            self._buckets.adopt(parameter)
            self._buckets.arrived(parameter)

    def step(self, batches: Batches) -> StepResult:
        batch = on_device(batches.take(), self._ctx.device)
        loss = self._gradient(batch)
        self._meter.start()
        self._sum.wait()
        self._meter.finish(self._buckets.flats)
        gain = self._meter.gain
        gain.raise_rates(self._optimizer)
        self._optimizer.step()
        gain.restore_rates(self._optimizer)
        values = {"gain": gain.value, "progress": gain.progress}
        return StepResult(None if self._ctx.meta else loss.item(), batch.num_samples, values=values)

    def _gradient(self, batch: Batch) -> Tensor:
        """Leave this worker's share of the gradient in the buckets, in several passes; the mean loss."""
        self._buckets.begin()
        parts, total, poison = list(_parts(batch, self._strategy.accumulate)), None, None
        for part in parts:
            self._last_pass = part is parts[-1]
            loss = self._task.loss(self.model, part)
            mine, share = loss.detach(), part.weight / batch.weight
            total = mine * share if total is None else total + mine * share
            poison = mine - mine if poison is None else poison + (mine - mine)
            if self._last_pass:
                self._buckets.taint(self._witness, poison)
            loss.backward(gradient=torch.full_like(loss, part.weight))
            self._meter.backward_ended(1 / part.weight**2)
        self._last_pass = False
        self._buckets.flush()
        assert total is not None, "there is at least one pass"
        return total

    def state_dict(self) -> dict[str, Any]:
        gain = asdict(self._meter.gain)
        return {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict(), "gain": gain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._meter.gain = Gain(**state["gain"])

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._meter.close()
        self._buckets.close()
        self._sum.close()


def _parts(batch: Batch, passes: int) -> Iterator[Batch]:
    """The batch in so many parts, as equal as can be."""
    if batch.num_samples < passes:
        raise StrategyError(
            f"{batch.num_samples} sample(s) of a worker make no {passes} base batches; give a larger batch"
        )
    inputs, targets = batch.inputs.tensor_split(passes), batch.targets.tensor_split(passes)
    for one, other in zip(inputs, targets, strict=True):
        yield Batch(one, other, batch.weight * len(one) / batch.num_samples)


class _AdaScaleAttachment(GradientAttachment):
    """Attributes: gain, of the last step; progress, tau."""

    def __init__(self, strategy: AdaScale, ctx: Context, loop: Loop) -> None:
        if strategy.accumulate not in (1, loop.accumulate):
            raise StrategyError(
                f"{strategy} takes {strategy.accumulate} passes a step, and the loop {loop.accumulate}; "
                "leave `accumulate` to attach(accumulate=...)"
            )
        parameters = trainable(loop.model)
        layouts = bucket_layouts(parameters, strategy.bucket_size)
        super().__init__(loop, layouts, GradientSum(strategy.synchronous, ctx), ctx.workers, overlap=strategy.overlap)
        self._meter = _Meter(strategy, ctx, parameters, loop.accumulate)
        self._optimizer, self._passes = loop.optimizer, loop.accumulate
        self._divided = strategy.accumulation == "mean"

    @property
    def gain(self) -> float:
        return self._meter.gain.value

    @property
    def progress(self) -> float:
        return self._meter.gain.progress

    def gradients_ready(self) -> None:
        self._meter.backward_ended(self._passes**2 if self._divided else 1)
        self._meter.start()
        super().gradients_ready()
        if not self._divided:
            for flat in self._buckets.flats:
                flat.div_(self._passes)
        self._meter.finish(self._buckets.flats)

    def before_step(self) -> None:
        self._meter.gain.raise_rates(self._optimizer)

    def after_step(self) -> None:
        self._meter.gain.restore_rates(self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        return asdict(self._meter.gain)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._meter.gain = Gain(**state)

    def close(self) -> None:
        self._meter.close()
        super().close()
