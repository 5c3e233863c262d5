"""An unchanged training loop, on several workers, by one line.

Runs under torchrun, on this machine with a summary, under a virtual clock, and alone:

    torchrun --nproc-per-node 2 examples/attach.py
    geartrain run --ranks 2 examples/attach.py --clip 1 --accumulate 2
    geartrain simulate --ranks 2 --cluster ethernet-1g examples/attach.py --autocast
    python examples/attach.py

What two workers print without options stands in attach.out, on every engine the same.
"""

import argparse

import torch
from torch import nn

import geartrain
from geartrain.strategies import parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Two spirals, a small network.")
    parser.add_argument("--strategy", default="synchronous", help="name:key=value,...")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32, help="samples of a worker in a backward")
    parser.add_argument("--accumulate", type=int, default=1, help="backwards in a step")
    parser.add_argument("--clip", type=float, default=5.0, help="largest norm of the gradient")
    parser.add_argument("--autocast", action="store_true", help="compute in bf16 where that is safe")
    return parser.parse_args()


def spirals(count: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, 2, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 4 * radius + torch.pi * labels
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
    return points + 0.02 * torch.randn(count, 2, generator=generator), labels


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    ctx = geartrain.init()

    model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)).to(ctx.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    torch.manual_seed(0)
    for layer in model[::2]:
        layer.reset_parameters()
    data = torch.Generator().manual_seed(1 + ctx.rank)  # each worker has samples of its own

    with geartrain.attach(parse(options.strategy), model, optimizer, ctx, accumulate=options.accumulate) as optimizer:
        for step in range(options.steps):
            optimizer.zero_grad()
            for _ in range(options.accumulate):
                points, labels = (tensor.to(ctx.device) for tensor in spirals(options.batch, data))
                with torch.autocast(ctx.device.type, torch.bfloat16, enabled=options.autocast):
                    loss = nn.functional.cross_entropy(model(points), labels)
                (loss / options.accumulate).backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            scheduler.step()
            if ctx.rank == 0 and step % 20 == 19:
                print(f"step {step + 1}  loss {loss.item():.4f}  gradient {norm.item():.4f}")

    weight = sum(parameter.detach().double().abs().sum().item() for parameter in model.parameters())
    print(f"worker {ctx.rank} of {ctx.num_workers}: sum of all |weights| {weight:.9f}")


if __name__ == "__main__":
    main()
