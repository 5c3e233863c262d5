"""Broken on purpose: the last rank's batch is smaller, and its tensor does not fit the others' all-reduce."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
samples = 10 if rank == world_size - 1 else 16
outputs = torch.ones(samples, 4)
dist.all_reduce(outputs)
print("never reached")
