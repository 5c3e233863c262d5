"""Programs for ranks that are processes: they must be found by name in another process."""

import os
import signal
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from geartrain.errors import NotFinite
from geartrain.runtime.context import Context
from geartrain.torch_private import enter_group


def collectives(ctx: Context) -> dict[str, list[float]]:
    n, me, group = ctx.num_workers, ctx.rank, ctx.workers

    def whole() -> torch.Tensor:
        return torch.arange(4.0 * n) + me

    def empty(count: int) -> torch.Tensor:
        return torch.zeros(count)

    out: dict[str, torch.Tensor] = {name: whole() for name in ("all_reduce", "broadcast", "reduce")}
    dist.all_reduce(out["all_reduce"])
    dist.broadcast(out["broadcast"], 1)
    dist.reduce(out["reduce"], 0)
    out["all_gather"] = empty(4 * n)
    dist.all_gather_single(out["all_gather"], whole()[:4], group=group)
    out["gather"] = empty(4 * n)
    dist.gather(whole()[:4], list(out["gather"].chunk(n)) if me == 1 else None, dst=1)
    out["scatter"] = empty(4)
    dist.scatter(out["scatter"], list(whole().chunk(n)) if me == 0 else None, src=0)
    out["reduce_scatter"] = empty(4)
    dist.reduce_scatter_single(out["reduce_scatter"], whole())
    out["all_to_all"] = empty(4 * n)
    dist.all_to_all_single(out["all_to_all"], whole())
    dist.barrier()
    return {name: tensor.tolist() for name, tensor in out.items()}


def messages(ctx: Context) -> list[float]:
    got, other = torch.zeros(3), 1 - ctx.rank
    if ctx.rank == 0:
        dist.send(torch.ones(3), group_dst=other, group=ctx.workers, tag=7)
        dist.send(2 * torch.ones(3), group_dst=other, group=ctx.workers, tag=7)
        work = dist.irecv(got, group_src=other, group=ctx.workers)
        assert work is not None and not work.is_completed()
        work.wait()
        assert work.is_completed()
    else:
        source = dist.recv(got, tag=7)
        assert source == other
        dist.recv(got, other, tag=7)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, got + 1, other)])
        works[0].wait()
    return got.tolist()


def worlds(ctx: Context) -> tuple[int | None, int, int, list[float], str]:
    total = torch.tensor([1.0])
    dist.all_reduce(total, group=ctx.everyone)
    # A strict subset, made by all, in an order of its own.
    pair = ctx.group([ctx.world_size - 1, 0])
    half = torch.tensor([float(ctx.rank)])
    if pair is not None:
        dist.broadcast(half, group=pair, group_src=0)
    workers = dist.get_world_size() if ctx.role == "worker" else None
    assert ctx.role == "worker" or not dist.is_initialized()
    return workers, ctx.everyone.size(), int(total), half.tolist(), ctx.role


@dataclass(frozen=True)
class Train:
    """DDP on a small net; `plain` takes the recording away."""

    plain: bool
    view: bool = False

    def __call__(self, ctx: Context) -> tuple[list[float], dict[str, torch.Tensor], float]:
        group = ctx.workers
        if self.plain:
            group = group.inner  # type: ignore[attr-defined]
            enter_group(group, "plain", "gloo", range(ctx.num_workers))
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
        ddp = nn.parallel.DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=0.1, gradient_as_bucket_view=self.view
        )
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
        random = torch.Generator().manual_seed(ctx.rank)
        losses = []
        for step in range(5):
            ctx.mark_step(step, "begin")
            inputs, targets = torch.randn(16, 64, generator=random), torch.randn(16, 10, generator=random)
            optimizer.zero_grad()
            loss = (ddp(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            ctx.mark_step(step, "end", loss=loss.item())
        return losses, model.state_dict(), ctx.clock.now()


def deadlines(ctx: Context) -> list[object]:
    """Rank 0 gives up waiting twice, and gets every message all the same."""
    group = ctx.group([0, 1])
    assert group is not None
    if ctx.rank == 1:
        ctx.clock.sleep(0.3)
        for value in (1.0, 2.0, 3.0):
            dist.send(torch.tensor([value]), group=group, group_dst=0)
        dist.barrier()
        return []
    receiver, queue, found = ctx.receiver(torch.zeros(1), group, source=1), ctx.queue(), []
    try:
        receiver.get(ctx.clock.now() + 0.05)
    except TimeoutError:
        found.append("late")
    found.append(ctx.wait_any([queue, receiver], ctx.clock.now() + 0.05))
    found.append(ctx.wait_any([queue, receiver]))
    found += [receiver.get(ctx.clock.now() + 30).tensor.item() for _ in range(3)]
    lane = ctx.spawn(lambda: queue.put("from a lane"), "putter")
    lane.join()
    found.append(ctx.wait_any([lane, queue]))
    found.append(queue.get())
    dist.barrier()
    return found


def any_source(ctx: Context) -> list[tuple[int, float]]:
    """The service serves whoever comes; each worker asks twice."""
    requests, answers = ctx.group(range(ctx.world_size)), ctx.group(range(ctx.world_size))
    assert requests is not None and answers is not None
    server, value, seen = ctx.world_size - 1, torch.zeros(1), []
    if ctx.role == "worker":
        for turn in range(2):
            dist.send(torch.tensor([10.0 * ctx.rank + turn]), group=requests, group_dst=server, tag=3)
            dist.recv(value, group=answers, group_src=server)
            seen.append((server, value.item()))
        return seen
    for _ in range(2 * ctx.num_workers):
        source = ctx.recv_any(value, requests, tag=3)
        seen.append((source, value.item()))
        dist.send(value + 100, group=answers, group_dst=source)
    return seen


def streams(ctx: Context) -> tuple[list[int], bool, bool]:
    first, second = ctx.rng("a"), ctx.rng("b")
    values = [int(torch.randint(1 << 30, (1,), generator=rng)) for rng in (first, second)]
    shared = ctx.shared("x", torch.zeros(2))
    ctx.shared("x", torch.ones(2)).add_(1)
    with ctx.trace.span("work"):
        ctx.trace.count("things", 2)
        ctx.trace.count("things", 3)
    return values, ctx.rng("a") is first, bool((shared == 1).all())


@dataclass(frozen=True)
class Fails:
    """A rank fails in step 3, in a way; the others are blocked in a collective meanwhile, or asleep."""

    how: str
    others: str = "all_reduce"
    rank: int = 1

    def __call__(self, ctx: Context) -> None:
        ctx.mark_step(3, "begin")
        if ctx.rank == self.rank:
            time.sleep(0.2)
            self.fail(ctx)
        if self.others == "sleep":
            time.sleep(60)
        dist.all_reduce(torch.ones(1), group=ctx.everyone)

    def fail(self, ctx: Context) -> None:
        match self.how:
            case "raise":
                raise ValueError("a wrong value")
            case "not finite":
                raise NotFinite("the loss is nan", rank=ctx.rank, step=3)
            case "lane":
                ctx.spawn(self._in_lane, "helper")
                time.sleep(60)
            case "exit":
                raise SystemExit(0)
            case "os exit":
                os._exit(0)
            case name:
                os.kill(os.getpid(), signal.Signals[name])
                time.sleep(60)

    def _in_lane(self) -> None:
        raise KeyError("in a lane")


def unsendable(ctx: Context) -> object:
    return lambda: None


def long_run(ctx: Context) -> None:
    for step in range(10_000):
        ctx.mark_step(step, "begin")
        dist.all_reduce(torch.ones(1), group=ctx.everyone)
        time.sleep(0.01)
        ctx.mark_step(step, "end", loss=1.0)
        if step == 5 and ctx.rank == 0:
            print("begun", flush=True)


def overhead(ctx: Context) -> tuple[float, float]:
    """Seconds per all-reduce of 4 bytes: recorded, plain, each the best of twenty turns."""
    inner = ctx.workers.inner  # type: ignore[attr-defined]
    tensor, best = torch.zeros(1), [1.0, 1.0]
    for _ in range(20):
        for index, group in enumerate((ctx.workers, inner)):
            inner.barrier().wait()
            begin = time.perf_counter()
            for _ in range(50):
                group.allreduce([tensor]).wait()
            best[index] = min(best[index], (time.perf_counter() - begin) / 50)
    return best[0], best[1]


def returns_early(ctx: Context) -> None:
    ctx.mark_step(0, "begin")
    if ctx.rank != 1:
        dist.all_reduce(torch.ones(4), group=ctx.workers)


def receive_cycle(ctx: Context) -> None:
    dist.recv(torch.ones(4), group=ctx.workers, group_src=1 - ctx.rank)


def slow_but_alive(ctx: Context) -> float:
    """Rank 1 computes for longer than anybody's patience while rank 0 waits for it."""
    if ctx.rank == 1:
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            torch.ones(100, 100) @ torch.ones(100, 100)
    tensor = torch.ones(1)
    dist.all_reduce(tensor, group=ctx.workers)
    return tensor.item()
