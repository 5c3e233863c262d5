"""A torchrun program that runs cases and leaves their results: `two_worlds.py OUT [NAME ...]`.

Real gloo and the simulator run this same file; whoever compares reads `OUT/<rank>.pt`.
"""

import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from tests.sim.calls import CASES
from tests.sim.programs import PROGRAMS

RUN = {**CASES, **PROGRAMS}


def main(out: Path, names: list[str]) -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    results = {}
    for name in names or RUN:
        torch.manual_seed(0)
        try:
            results[name] = RUN[name](rank, size)
        except Exception:
            results[name] = traceback.format_exc()
    torch.save(results, out / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
