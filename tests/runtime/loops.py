"""Training loops as users write them, for any engine: at the top of a module, so that processes can load them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import geartrain
from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.context import Context
from geartrain.strategies import parse

CLUSTER = load_cluster("ethernet-10g")
BUCKETS = "synchronous:bucket_size=64B"


class Net(nn.Module):
    """A tied pair of layers, a frozen one, a buffer, and a layer that only some inputs reach."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.middle = nn.Linear(3, 5)
        self.sometimes = nn.Linear(5, 5)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(5, 2)
        self.register_buffer("scale", torch.ones(3) * torch.rand(()))

    def forward(self, inputs: Tensor, detour: bool = True) -> Tensor:
        hidden = self.frozen(self.tied(self.first(inputs).tanh()) * self.scale)
        hidden = self.middle(hidden).tanh()
        return self.last(self.sometimes(hidden).tanh() if detour else hidden)


def data(rank: int, step: int, samples: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    inputs = torch.randn(samples, 3, generator=generator)
    return inputs, torch.stack([inputs.prod(1), inputs.sum(1)], 1)


def always(rank: int, step: int) -> bool:
    return True


def uneven(rank: int, step: int) -> bool:
    """Worker 0 never reaches the layer in odd steps; nobody does in step 2."""
    return step != 2 and not (rank == 0 and step % 2)


@dataclass(frozen=True)
class Train:
    """`main(ctx)`: some steps of a loop; returns what the checks look at.

    Attributes:
        strategy: in text; "ddp" is PyTorch's own, "none" leaves the loop alone.
        micro: backwards in a step.
        keep: zero gradients in place, instead of letting go of them.
        weighted: local batches of different sizes.
        detour: (rank, step) -> whether the batch reaches the layer that only some do.
    """

    strategy: str = "synchronous"
    steps: int = 4
    micro: int = 1
    clip: float | None = None
    dtype: torch.dtype = torch.float32
    autocast: bool = False
    keep: bool = False
    adam: bool = False
    weighted: bool = False
    skip_unused: bool = False
    detour: Callable[[int, int], bool] = always

    def __call__(self, ctx: Context) -> dict[str, Any]:
        torch.manual_seed(ctx.rank)  # others than worker 0 begin with other weights, which must not matter
        model = Net().to(self.dtype)
        wrapped = self.wrapped(model)
        optimizer = self.optimizer(model)
        names = list(model.state_dict())
        norms: list[float] = []
        with self.attached(model, optimizer, ctx) as stepper:
            scheduler = torch.optim.lr_scheduler.StepLR(stepper, 2, 0.5)
            for step in range(self.steps):
                norms.append(self.step(ctx, wrapped, stepper, step))
                scheduler.step()
            state = stepper.state_dict()
        same = stepper is optimizer
        return {
            "weights": [p.detach().clone() for p in model.parameters()],
            "buffers": [b.clone() for b in model.buffers()],
            "norms": norms,
            "names": names == list(model.state_dict()),
            "same": same,
            "state": sorted(state),
            "hooks": hooks(model, optimizer),
            "rates": [group["lr"] for group in optimizer.param_groups],
        }

    def wrapped(self, model: nn.Module) -> nn.Module:
        if self.strategy != "ddp":
            return model
        return DistributedDataParallel(model, bucket_cap_mb=1e-4, find_unused_parameters=self.skip_unused)

    def optimizer(self, model: Net) -> torch.optim.Optimizer:
        head = [*model.last.parameters()]
        body = [p for p in model.parameters() if p.requires_grad and not any(p is h for h in head)]
        groups = [{"params": body}, {"params": head, "lr": 0.05, "weight_decay": 0.01}]
        return torch.optim.Adam(groups, lr=0.01) if self.adam else torch.optim.SGD(groups, lr=0.1, momentum=0.9)

    def attached(self, model: nn.Module, optimizer: torch.optim.Optimizer, ctx: Context) -> Any:
        if self.strategy in ("ddp", "none"):
            return contextlib.nullcontext(optimizer)
        weight = (lambda: share(ctx.rank, ctx.num_workers)) if self.weighted else None
        return geartrain.attach(
            parse(self.strategy),
            model,
            optimizer,
            ctx,
            accumulate=self.micro,
            batch_weight=weight,
            skip_unused=self.skip_unused,
        )

    def step(self, ctx: Context, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> float:
        optimizer.zero_grad(set_to_none=not self.keep)
        for micro in range(self.micro):
            quiet = isinstance(model, DistributedDataParallel) and micro < self.micro - 1
            with model.no_sync() if quiet else contextlib.nullcontext():
                samples = 3 + ctx.rank if self.weighted else 4
                inputs, targets = data(ctx.rank, self.micro * step + micro, samples)
                with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
                    output = model(inputs.to(self.dtype), self.detour(ctx.rank, step))
                loss = nn.functional.mse_loss(output, targets.to(output.dtype)) / self.micro
                loss.backward()
        norm = clip_grad_norm_(model.parameters(), self.clip) if self.clip else torch.zeros(())
        optimizer.step()
        return norm.item()


def share(rank: int, workers: int) -> float:
    """A worker's part of a global batch in which worker r has 3 + r samples."""
    return (3 + rank) / sum(3 + r for r in range(workers))


def hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """How many hooks there are."""
    on_parameters = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    return on_parameters + len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def small(ctx: Context) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A layer whose gradients can be told beforehand: those of its sum are the sum of the inputs."""
    torch.manual_seed(ctx.rank)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.5)


def inputs_of(ctx: Context) -> Tensor:
    return torch.full((2, 3), ctx.rank + 1.0)


def run(main: Callable[[Context], Any], workers: int = 2) -> list[Any]:
    """What each simulated worker returned."""
    return SimulatedEngine().run(main, CLUSTER, workers=workers).results
