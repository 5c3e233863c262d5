"""A 1F1B pipeline of torch.distributed.pipelining. Knows nothing of geartrain.

Run it by `torchrun --nproc-per-node 4 examples/pipeline_1f1b.py`.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    stage = PipelineStage(nn.Sequential(nn.Linear(64, 64), nn.Tanh()), rank, world_size, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.5)
    data = torch.Generator().manual_seed(1)
    for step in range(10):
        inputs = torch.randn(32, 64, generator=data)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        elif rank == world_size - 1:
            schedule.step(target=inputs.roll(1, dims=1), losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if losses and step % 5 == 4:
            print(f"step {step + 1:2d}  loss {torch.stack(losses).mean().item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
