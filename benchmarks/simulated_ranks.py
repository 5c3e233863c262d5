"""How fast simulated ranks run: network model, charging and logs on, by public `torch.distributed`, results checked.

    python benchmarks/simulated_ranks.py

Prints one line per case with its bar and ends with status 1 when a bar is missed. Each case runs in a process of its
own, so that peak memory is its own; the runs of the last one are compared: same histories.
"""

from __future__ import annotations

import argparse
import gc
import pickle
import resource
import subprocess
import sys
import time
from dataclasses import asdict

import torch
import torch.distributed as dist
from torch import nn

from geartrain.cluster import load_cluster
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.record.log import RunRecord
from geartrain.runtime.context import Context


def all_reduces(ctx: Context, count: int) -> None:
    """`count` all-reduces of 4 kB: the first sums the ranks, the others average what is equal by then."""
    tensor = torch.full((1024,), float(ctx.rank))
    dist.all_reduce(tensor)
    for _ in range(count - 1):
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    size = ctx.num_workers
    expected = torch.full((1024,), size * (size - 1) / 2)
    assert torch.equal(tensor, expected), f"rank {ctx.rank} has {tensor[0]}, expected {expected[0]}"


def ddp(ctx: Context, steps: int) -> float:
    """PyTorch's DistributedDataParallel on a small MLP."""
    torch.manual_seed(0)
    layers = (nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = torch.Generator().manual_seed(ctx.rank)
    for _ in range(steps):
        inputs, targets = torch.randn(8, 64, generator=data), torch.randint(0, 10, (8,), generator=data)
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    total = sum(p.detach().double().sum() for p in model.parameters())
    assert isinstance(total, torch.Tensor)
    return float(total)


CASES = {
    "256 ranks x 80 all-reduces of 4 kB": (256, lambda ctx: all_reduces(ctx, 80), 2.0, None),
    "1,024 ranks x 20 all-reduces of 4 kB": (1024, lambda ctx: all_reduces(ctx, 20), 4.0, 1e9),
    "64 ranks x 20 steps of DDP, small MLP": (64, lambda ctx: ddp(ctx, 20), 5.0, None),
}


def run(name: str) -> tuple[RunRecord, float]:
    ranks, main, _, _ = CASES[name]
    began = time.perf_counter()
    record = SimulatedEngine(Roofline()).run(main, load_cluster("ethernet-10g"), workers=ranks)
    return record, time.perf_counter() - began


def history(record: RunRecord) -> bytes:
    return pickle.dumps(([asdict(log) for log in record.logs], record.results, record.link_bytes))


def case(name: str, repeats: int) -> bool:
    ranks, _, bar, memory_bar = CASES[name]
    seconds, first = [], None
    for _ in range(repeats):
        gc.collect()  # what the run before has left is not this one's
        record, taken = run(name)
        seconds.append(taken)
        if ranks == 64:
            first = first or history(record)
            assert history(record) == first, "two runs gave different histories"
        assert len(set(record.results)) == 1, "ranks disagree"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    best = min(seconds)
    good = best <= bar and (memory_bar is None or peak <= memory_bar)
    shown = ", ".join(f"{s:.2f}" for s in seconds)
    print(
        f"{name}: {shown} s (bar {bar:g} s), peak memory {peak / 1e6:.0f} MB{'' if good else '   MISSED'}", flush=True
    )
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3, help="runs per case; the best one counts (noisy machines)")
    parser.add_argument("--case", choices=CASES, help="this case only, in this process")
    options = parser.parse_args()
    if options.case:
        return 0 if case(options.case, options.repeats) else 1
    codes = [
        subprocess.run([sys.executable, __file__, "--case", name, "--repeats", str(options.repeats)]).returncode
        for name in CASES
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
