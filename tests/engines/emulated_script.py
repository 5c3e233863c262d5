"""As a user writes it for torchrun."""

import os
import socket
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(os.environ["RANK"])])
dist.all_reduce(total)
print(sys.argv[1], socket.gethostname(), os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], total.item())
dist.destroy_process_group()
