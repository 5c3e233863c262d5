"""All workers start from the same model: in a user's loop checked by its shape and made so by its numbers.

Where a task makes the model on every worker, its numbers are checked.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from geartrain.errors import StrategyError
from geartrain.runtime.attachment import Loop
from geartrain.runtime.buckets import deal
from geartrain.runtime.charging import uncharged
from geartrain.runtime.context import Context
from geartrain.runtime.strategy import Strategy

_TOGETHER = 25 * 2**20  # bytes that travel as one; chosen


def check_same(strategy: Strategy, loop: Loop, ctx: Context) -> None:
    """Refuse workers that would not make the same calls: another strategy, accumulation or kind of model."""
    lines = [str(strategy), f"{loop.accumulate} {loop.skip_unused}"]
    lines += [f"{name} {tuple(p.shape)} {p.dtype} {p.requires_grad}" for name, p in loop.model.named_parameters()]
    lines += [f"{name} {tuple(b.shape)} {b.dtype}" for name, b in loop.model.named_buffers()]
    if ctx.num_workers == 1 or ctx.meta:
        return
    digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=8).digest()
    mine = torch.tensor([int.from_bytes(digest, "little", signed=True)], device=_tensors(loop.model)[0].device)
    found = [torch.empty_like(mine) for _ in range(ctx.num_workers)]
    dist.all_gather(found, mine, group=ctx.workers)
    others = [worker for worker, digest_there in enumerate(found) if not torch.equal(digest_there, found[0])]
    if others:
        raise StrategyError(
            f"worker(s) {', '.join(map(str, others))} attach something else than worker 0: another strategy, "
            "accumulate or skip_unused, or a model with other names, shapes, types or frozen parts.\n"
            f"  here, on worker {ctx.rank}: {strategy}, accumulate={loop.accumulate}, {len(lines) - 2} tensors, "
            f"{sum(tensor.numel() for tensor in _tensors(loop.model)):,} elements"
        )


def check_equal(model: nn.Module, ctx: Context) -> None:
    """Refuse workers whose models differ in any bit of a parameter or buffer. Sends nothing and costs no virtual time.

    All workers call it at the same point.
    """
    if ctx.num_workers == 1 or ctx.meta:
        return
    digest = hashlib.blake2b(digest_size=8)
    with uncharged():
        for tensor in _tensors(model):
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    ledger = ctx.upkeep.ledger("weights at the start")
    ledger.post([ctx.rank, digest.hexdigest()])
    found: dict[int, list[str]] = {worker: [] for worker in range(ctx.num_workers)}
    entries = ledger.read()
    while True:
        for worker, theirs in entries:
            found[worker].append(theirs)
        # A program may make several models: this is the one that as many were checked before here as there.
        nth = len(found[ctx.rank]) - 1
        if all(len(digests) > nth for digests in found.values()):
            break
        entries = ledger.wait()
    others = [worker for worker, digests in found.items() if digests[nth] != found[0][nth]]
    if others:
        raise StrategyError(
            f"worker(s) {', '.join(map(str, others))} start from other weights than worker 0, so that their average "
            "means nothing.\n"
            "  make the task's model(seed) depend on nothing but the seed: draw its weights inside "
            "torch.random.fork_rng() after torch.manual_seed(seed)"
        )


@torch.no_grad()
def share_first(model: nn.Module, ctx: Context) -> None:
    """Parameters and buffers become those of worker 0."""
    if ctx.num_workers == 1:
        return
    tensors = _tensors(model)
    for indices in deal([t.nbytes for t in tensors], [t.device for t in tensors], _TOGETHER):
        parts = [tensors[index] for index in indices]
        # As bytes, so that types may be mixed, and types travel that a backend does not know.
        flat = torch.cat([part.contiguous().view(-1).view(torch.uint8) for part in parts])
        dist.broadcast(flat, group=ctx.workers, group_src=0)
        if ctx.rank:
            for part, values in zip(parts, flat.split([part.nbytes for part in parts]), strict=True):
                # Cloned where a tensor does not begin at a multiple of its element.
                part.copy_(values.clone().view(part.dtype).view(part.shape))


def _tensors(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [tensor.detach() for tensor in _each(model)]


def _each(model: nn.Module) -> Iterator[Tensor]:
    yield from model.parameters()
    yield from model.buffers()
