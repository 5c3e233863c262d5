"""DistributedDataParallel on random data. Knows nothing of geartrain: `torchrun --nproc-per-node 4 examples/ddp.py`."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    data = torch.Generator().manual_seed(rank)
    began = time.perf_counter()
    for step in range(20):
        inputs = torch.randn(32, 64, generator=data)
        targets = torch.randint(0, 10, (32,), generator=data)
        loss = nn.functional.cross_entropy(ddp(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            print(f"step {step + 1:2d}  loss {loss.item():.6f}")
    if rank == 0:
        print(f"{20 / (time.perf_counter() - began):.0f} steps/s")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
