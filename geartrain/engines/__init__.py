"""What runs a rank's program: `real` (torch.distributed) and `simulated` (a virtual clock)."""
