"""Broken on purpose: rank 1 skips an all-reduce when its loss is small."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
for step in range(4):
    loss = torch.tensor(float(rank + step))
    if not (rank == 1 and step == 2):
        dist.all_reduce(loss)
    dist.barrier()
print("never reached")
