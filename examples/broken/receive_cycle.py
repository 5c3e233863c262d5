"""Broken on purpose: every rank waits for its left neighbour before it sends to its right one."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
token = torch.zeros(1)
dist.recv(token, src=(rank - 1) % world_size)
dist.send(token + 1, dst=(rank + 1) % world_size)
print("never reached")
