"""Local updates against others' implementations, and how much communication stays exposed.

    python benchmarks/local_updates.py post_local [--steps 40] [--turns 8]    against PyTorch's post-local SGD
    python benchmarks/local_updates.py diloco [--steps 40] [--turns 8]        against torchft's DiLoCo, where installed
    python benchmarks/local_updates.py exposed [--workers 8] [--steps 16]     on an emulated cluster

The first two run on two real processes, taking turns in one run: same model, data, periods. They print the median time
per step of each, the ratio of every pair of turns, and the largest difference of a loss in the first 40 steps, before
differences of the last bit have grown; the bars are a median ratio of 1.05, and losses equal to 1e-5. PyTorch's is
DistributedDataParallel with `post_localSGD_hook` and `PeriodicModelAverager`. torchft (`pip install torchft`, 0.2 was
tried) averages through a manager that looks after failures; a manager that does nothing but average stands in for it,
so that algorithms are compared, not fault tolerance.

The third compares the exposed communication of `dasgd` and `cocod_sgd` with that of `synchronous` on emulated wires,
with the time of computing slept; the bar is a tenth.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from synchronous_vs_ddp import BATCH, WIDTH, Mlp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from geartrain.cluster import Star, Wire, load_cluster
from geartrain.cost.compute import Constant
from geartrain.engines.emulated import EmulatedEngine
from geartrain.engines.real import RealEngine
from geartrain.engines.recording import RecordingGroup
from geartrain.record.split import split
from geartrain.runtime.context import Context
from geartrain.runtime.loop import Training
from geartrain.runtime.worker import Batch, Task
from geartrain.strategies import parse
from geartrain.tasks import get_task
from geartrain.torch_private import enter_group

PERIOD, SWITCH = 4, 8
BAR, LOSS_BAR, EXPOSED_BAR = 1.05, 1e-5, 0.1
LOSS_STEPS = 40


class MlpAdamW(Mlp):
    """With the inner optimizer of DiLoCo."""

    name = "mlp-adamw"

    def optimizer(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-3)


class Drawn:
    """Sixteen batches of this worker's, again and again, drawn beforehand: data costs nothing here."""

    def __init__(self, rank: int, num_workers: int) -> None:
        generator = torch.Generator().manual_seed(rank)
        inputs = torch.randn(16, BATCH, WIDTH, generator=generator)
        targets = torch.randint(0, 10, (16, BATCH), generator=generator)
        self._all = [Batch(x, y, 1.0 / num_workers) for x, y in zip(inputs, targets, strict=True)]
        self._next = 0

    def take(self, num_samples: int | None = None) -> Batch:
        self._next += 1
        return self._all[self._next % len(self._all)]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


# Others' implementations: a function that takes a step and returns its loss


def torch_post_local(ctx: Context, group: dist.ProcessGroup) -> Callable[[], float]:
    """PyTorch's own. Its averager counts from 0, so that it averages after the same steps as ours."""
    task, batches = Mlp(), Drawn(ctx.rank, ctx.num_workers)
    ddp = nn.parallel.DistributedDataParallel(task.model(ctx.seed), process_group=group)
    state = PostLocalSGDState(group, None, start_localSGD_iter=SWITCH, post_local_gradient_allreduce=False)
    ddp.register_comm_hook(state, post_localSGD_hook)
    averager = PeriodicModelAverager(period=PERIOD, warmup_steps=SWITCH + PERIOD - 1, process_group=group)
    optimizer = task.optimizer(ddp.parameters())

    def step() -> float:
        optimizer.zero_grad()
        loss = task.loss(ddp, batches.take())
        loss.backward()
        optimizer.step()
        averager.average_parameters(ddp.parameters())
        return loss.item()

    return step


class Averaged:
    """The part of a work that torchft's DiLoCo uses."""

    def __init__(self, work: Any, tensor: Tensor, count: int) -> None:
        self._work, self._tensor, self._count = work, tensor, count
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        return self._future

    def wait(self) -> bool:
        self._work.wait()
        self._future.set_result([self._tensor.div_(self._count)])  # what was to come then happens here
        return True


class AveragingManager:
    """Stands in for torchft's manager: everybody is well, and a sum becomes a mean."""

    _use_async_quorum = False

    def __init__(self, group: dist.ProcessGroup, count: int) -> None:
        self._group, self._count, self._steps = group, count, 0

    def allreduce(self, tensor: Tensor, should_quantize: bool = False) -> Averaged:
        return Averaged(dist.all_reduce(tensor, group=self._group, async_op=True), tensor, self._count)

    def should_commit(self) -> bool:
        self._steps += 1
        return True

    def current_step(self) -> int:
        return self._steps

    def start_quorum(self) -> None:
        return

    def disallow_state_dict_read(self) -> None:
        return

    def allow_state_dict_read(self) -> None:
        return

    def register_state_dict_fn(self, key: str, load: Any, save: Any) -> None:
        return


def torchft_diloco(ctx: Context, group: dist.ProcessGroup) -> Callable[[], float]:
    """torchft's, in one fragment, its pseudo-gradients in one bucket."""
    from torchft.local_sgd import DiLoCo

    task, batches = MlpAdamW(), Drawn(ctx.rank, ctx.num_workers)
    model = task.model(ctx.seed)
    inner = task.optimizer(model.parameters())
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager: Any = AveragingManager(group, ctx.num_workers)
    settings: dict[str, Any] = {"pin_memory": False, "use_bucketization": True, "bucket_cap_mb": 64}
    DiLoCo(manager, [model], inner, outer, PERIOD, **settings).__enter__()

    def step() -> float:
        inner.zero_grad()
        loss = task.loss(model, batches.take())
        loss.backward()
        inner.step()
        return loss.item()

    return step


class Theirs(Protocol):
    def __call__(self, ctx: Context, group: dist.ProcessGroup) -> Callable[[], float]: ...


@dataclass(frozen=True)
class Turns:
    """What each rank runs; returns seconds per step of each turn, ours and theirs, and how far early losses differ."""

    strategy: str
    task: Task
    theirs: Theirs
    steps: int
    turns: int

    def __call__(self, ctx: Context) -> tuple[list[float], list[float], float]:
        worker = parse(self.strategy).bind(ctx, self.task)
        batches = Drawn(ctx.rank, ctx.num_workers)
        assert isinstance(ctx.workers, RecordingGroup)
        plain = ctx.workers.inner  # others' run on gloo itself, where nothing is recorded
        enter_group(plain, "plain", "gloo", range(ctx.num_workers))
        ways = (lambda: worker.step(batches).loss, self.theirs(ctx, plain))
        seconds: tuple[list[float], list[float]] = ([], [])
        losses: tuple[list[float], list[float]] = ([], [])
        for turn in range(-1, self.turns):  # the first turn of both only warms up, and is past the switch after it
            for kept, seen, way in zip(seconds, losses, ways, strict=True):
                plain.barrier().wait()
                began = time.perf_counter()
                seen += [way() for _ in range(self.steps)]
                if turn >= 0:
                    kept.append((time.perf_counter() - began) / self.steps)
        worker.close()
        return *seconds, max(abs(a - b) for a, b in list(zip(*losses, strict=True))[:LOSS_STEPS])


def compare(name: str, turns: Turns) -> int:
    """Print the two side by side; 0 if the bars are reached."""
    record = RealEngine("cpu").run(turns, load_cluster("local"), workers=2)
    ours, theirs, _ = record.results[0]
    apart = max(result[2] for result in record.results)
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    median = statistics.median(ratios)
    print(f"{turns.strategy} {statistics.median(ours) * 1e3:.2f} ms, {name} {statistics.median(theirs) * 1e3:.2f} ms")
    print("ratios of the turns:", ", ".join(f"{ratio:.3f}" for ratio in ratios))
    print(f"median ratio {median:.3f} (bar {BAR}){'' if median <= BAR else '   MISSED'}")
    print(f"largest difference of a loss {apart:.2g} (bar {LOSS_BAR}){'' if apart <= LOSS_BAR else '   MISSED'}")
    return int(median > BAR or apart > LOSS_BAR)


def exposed(workers: int, steps: int) -> int:
    """Print the exposed communication of each method; 0 if the delayed ones stay below a tenth of synchronous.

    Ten milliseconds are slept for each kernel, which makes about half a second of computing in a step.
    """
    wire = Wire(rate="1 Gbit/s", latency="100 us", mtu="1500 B")
    cluster = load_cluster("ethernet-1g").model_copy(update={"topology": Star(wire=wire)})
    engine, task = EmulatedEngine(compute=Constant(10e-3)), get_task("digits:hidden=1536")
    reference, missed = 0.0, False
    for text in ("synchronous", "dasgd:period=4,delay=2", "cocod_sgd:period=4"):
        training = Training(strategy=parse(text), task=task, steps=steps, batch=8 * workers, evaluate=False)
        record = engine.run(training, cluster, workers=workers)
        # The first round of the delayed ones has nothing to wait for.
        shares = [step.shares for rank in split(record).ranks for step in rank.steps[4:]]
        still = statistics.mean(share.exposed_communication for share in shares)
        reference = reference or still
        high = text != "synchronous" and still > EXPOSED_BAR * reference
        missed |= high
        print(
            f"{text}: step {statistics.mean(share.time for share in shares) * 1e3:.1f} ms, "
            f"exposed {still * 1e3:.1f} ms, wait {statistics.mean(share.wait for share in shares) * 1e3:.1f} ms; "
            f"{still / reference:.3f} of synchronous (bar {EXPOSED_BAR}){'   MISSED' if high else ''}"
        )
    engine.close()
    return int(missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["post_local", "diloco", "exposed"])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    if options.what == "exposed":
        return exposed(options.workers, options.steps or 16)
    steps = options.steps or 40
    if options.what == "post_local":
        strategy = f"local_sgd:period={PERIOD},switch={SWITCH}"
        return compare("PyTorch's post-local SGD", Turns(strategy, Mlp(), torch_post_local, steps, options.turns))
    if importlib.util.find_spec("torchft") is None:
        print("torchft is not installed, so there is nothing to compare with: pip install torchft")
        return 2
    return compare(
        "torchft's DiLoCo", Turns(f"diloco:period={PERIOD}", MlpAdamW(), torchft_diloco, steps, options.turns)
    )


if __name__ == "__main__":
    sys.exit(main())
