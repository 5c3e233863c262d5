"""Every call of torch.distributed that gloo has, as cases: the same program runs on real gloo and on simulated ranks.

A case is a function of (rank, world size) that gives back what the rank holds afterwards. With two ranks the numbers
are random, since two numbers have one sum; with more they are whole numbers, whose sums are the same in every order.
"""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as with_gradient
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

Case = Callable[[int, int], Any]
CASES: dict[str, Case] = {}

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)


def case(function: Case) -> Case:
    """Enter a case under its own name."""
    CASES[function.__name__] = function
    return function


def given(rank: int, size: int, *shape: int, dtype: torch.dtype = torch.float32, stream: int = 0) -> torch.Tensor:
    """What a rank brings."""
    source = torch.Generator().manual_seed(100 * stream + rank)
    if dtype.is_complex:
        parts = [given(rank, size, *shape, stream=2 * stream + part + 50) for part in (0, 1)]
        return torch.complex(*parts).to(dtype)
    if dtype.is_floating_point and size == 2:
        return torch.randn(*shape, generator=source, dtype=torch.float64).to(dtype)
    return torch.randint(1, 5, shape, generator=source).to(dtype)


def short(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")


# --- reductions ---------------------------------------------------------------------------------------------------

OPERATIONS = {
    "sum": (dist.ReduceOp.SUM, (*FLOATS, *INTEGERS)),
    "avg": (dist.ReduceOp.AVG, FLOATS),
    "product": (dist.ReduceOp.PRODUCT, (torch.float32, torch.float64, torch.int32, torch.int64)),
    "min": (dist.ReduceOp.MIN, (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8)),
    "max": (dist.ReduceOp.MAX, (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.uint8)),
    "band": (dist.ReduceOp.BAND, (torch.int32, torch.uint8, torch.int64)),
    "bor": (dist.ReduceOp.BOR, (torch.int32, torch.uint8)),
    "bxor": (dist.ReduceOp.BXOR, (torch.int32, torch.uint8)),
}


def reduction(op: Any, dtype: torch.dtype) -> Case:
    """All three calls that reduce, with one operation and type."""

    def run(rank: int, size: int) -> Any:
        everywhere = given(rank, size, 7, 3, dtype=dtype)
        dist.all_reduce(everywhere, op)
        at_root = given(rank, size, 7, 3, dtype=dtype, stream=1)
        dist.reduce(at_root, dst=1, op=op)
        return everywhere, at_root if rank == 1 else None

    return run


for _name, (_op, _dtypes) in OPERATIONS.items():
    for _dtype in _dtypes:
        CASES[f"reduce-{_name}-{short(_dtype)}"] = reduction(_op, _dtype)


@case
def all_reduce_complex(rank: int, size: int) -> Any:
    tensor = given(rank, size, 5, dtype=torch.complex64)
    dist.all_reduce(tensor)
    return tensor


@case
def all_reduce_async(rank: int, size: int) -> Any:
    tensors = [given(rank, size, 4 + k, stream=k) for k in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return tensors, [work.is_completed() for work in works]


@case
def all_reduce_future(rank: int, size: int) -> Any:
    tensor = given(rank, size, 6)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda f: f.value()[0] * 2)
    return doubled.wait(), tensor


@case
def all_reduce_polled(rank: int, size: int) -> Any:
    tensor = given(rank, size, 6)
    work = dist.all_reduce(tensor, async_op=True)
    while not work.is_completed():
        pass
    return tensor


@case
def all_reduce_not_contiguous(rank: int, size: int) -> Any:
    whole = given(rank, size, 6, 4)
    dist.all_reduce(whole.t())
    return whole


@case
def all_reduce_scalar_and_empty(rank: int, size: int) -> Any:
    scalar, empty = torch.tensor(float(rank + 1)), torch.zeros(0)
    dist.all_reduce(scalar)
    dist.all_reduce(empty)
    return scalar, empty


@case
def all_reduce_coalesced(rank: int, size: int) -> Any:
    tensors = [given(rank, size, 3, stream=k) for k in range(3)]
    dist.all_reduce_coalesced(tensors)
    return tensors


@case
def reduce_scatter(rank: int, size: int) -> Any:
    out = torch.zeros(3)
    dist.reduce_scatter(out, [given(rank, size, 3, stream=k) for k in range(size)])
    largest = torch.zeros(3)
    dist.reduce_scatter(largest, [given(rank, size, 3, stream=k) for k in range(size)], op=dist.ReduceOp.MAX)
    return out, largest


@case
def reduce_scatter_tensor(rank: int, size: int) -> Any:
    joined, mean = torch.zeros(2, 3), torch.zeros(2, 3)  # gloo has no stacked form: the process aborts
    dist.reduce_scatter_tensor(joined, given(rank, size, 2 * size, 3))
    dist.reduce_scatter_single(mean, given(rank, size, 2 * size, 3, stream=2), op=dist.ReduceOp.AVG)
    return joined, mean


# --- broadcast, gather, scatter, all-to-all -----------------------------------------------------------------------


@case
def broadcast(rank: int, size: int) -> Any:
    tensors = [given(rank, size, 5, dtype=dtype) for dtype in (*FLOATS, *INTEGERS)]
    flags = torch.tensor([rank == 1, True])
    for tensor in [*tensors, flags]:
        dist.broadcast(tensor, src=1)
    works = [dist.broadcast(tensor, group_src=0, async_op=True) for tensor in tensors[:2]]
    for work in works:
        work.wait()
    return tensors, flags


@case
def all_gather(rank: int, size: int) -> Any:
    got = [torch.zeros(2, 3) for _ in range(size)]
    dist.all_gather(got, given(rank, size, 2, 3))
    later = [torch.zeros(4, dtype=torch.int64) for _ in range(size)]
    work = dist.all_gather(later, given(rank, size, 4, dtype=torch.int64), async_op=True)
    work.wait()
    return got, later


@case
def all_gather_into_tensor(rank: int, size: int) -> Any:
    joined, single = torch.zeros(2 * size, 3), torch.zeros(size)  # gloo refuses the stacked form
    dist.all_gather_into_tensor(joined, given(rank, size, 2, 3))
    dist.all_gather_single(single, torch.tensor([float(rank)]))
    return joined, single


@case
def all_gather_coalesced(rank: int, size: int) -> Any:
    got = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(got, [given(rank, size, 2), given(rank, size, 3, stream=1)])
    return got


@case
def gather(rank: int, size: int) -> Any:
    got = [torch.zeros(3) for _ in range(size)] if rank == 1 else None
    dist.gather(given(rank, size, 3), got, dst=1)
    return got


@case
def scatter(rank: int, size: int) -> Any:
    out = torch.zeros(3)
    dist.scatter(out, [given(rank, size, 3, stream=k) for k in range(size)] if rank == 1 else None, src=1)
    return out


@case
def all_to_all(rank: int, size: int) -> Any:
    gives = [given(rank, size, 2, 2, stream=k) for k in range(size)]  # gloo wants equal shapes here
    gets = [torch.zeros(2, 2) for _ in range(size)]
    dist.all_to_all(gets, gives)
    return gets


@case
def all_to_all_single(rank: int, size: int) -> Any:
    even = torch.zeros(2 * size, 3)
    dist.all_to_all_single(even, given(rank, size, 2 * size, 3))
    gives, gets = [rank + k for k in range(size)], [k + rank for k in range(size)]
    uneven = torch.zeros(sum(gets), 2)
    dist.all_to_all_single(uneven, given(rank, size, sum(gives), 2, stream=1), gets, gives)
    one_way = torch.zeros(3 if rank == 0 else 0)
    dist.all_to_all_single(
        one_way,
        torch.ones(3) if rank == 1 else torch.zeros(0),
        [3 * (rank == 0 and k == 1) for k in range(size)],
        [3 * (rank == 1 and k == 0) for k in range(size)],
    )
    return even, uneven, one_way


@case
def barriers(rank: int, size: int) -> Any:
    dist.barrier()
    work = dist.barrier(async_op=True)
    work.wait()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=30), wait_all_ranks=True)
    return "passed"


@case
def coalescing_is_like_single_calls(rank: int, size: int) -> Any:
    """The public form of a batch: one call after another, waited for together."""
    parts = [given(rank, size, 2, stream=k) for k in range(3)]
    wholes = [torch.zeros(2 * size) for _ in parts]
    pairs = zip(wholes, parts, strict=True)
    works = [dist.all_gather_into_tensor(whole, part, async_op=True) for whole, part in pairs]
    for work in works:
        work.wait()
    return wholes


# --- objects ------------------------------------------------------------------------------------------------------


@case
def objects(rank: int, size: int) -> Any:
    mine = {"rank": rank, "words": ["a" * (rank + 1)], "tensor": given(rank, size, 2)}
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, mine)
    at_root: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object(mine, at_root, dst=0)
    shared = [mine, "x" * rank] if rank == 1 else [None, None]
    dist.broadcast_object_list(shared, src=1)
    dealt: list[Any] = [None]
    dist.scatter_object_list(dealt, [f"for {k}" for k in range(size)] if rank == 0 else None, src=0)
    return everyone, at_root, shared, dealt


@case
def sent_objects(rank: int, size: int) -> Any:
    if rank == 0:
        dist.send_object_list([{"step": 3}, (1, 2)], dst=1)
        return None
    if rank == 1:
        got: list[Any] = [None, None]
        first = dist.recv_object_list(got, src=0)
        return got, first
    return None


# --- from one to one ----------------------------------------------------------------------------------------------


@case
def send_and_recv(rank: int, size: int) -> Any:
    """A token goes around the ring, one blocking call after another."""
    token = given(rank, size, 4)
    got = torch.zeros(4)
    if rank == 0:
        dist.send(token, dst=1)
        source = dist.recv(got, src=size - 1)
    else:
        source = dist.recv(got, src=rank - 1)
        dist.send(token, dst=(rank + 1) % size)
    return got, source


@case
def tags_and_order(rank: int, size: int) -> Any:
    """Messages of one tag arrive in order; a tag is waited for whatever came before."""
    if rank == 0:
        works = [dist.isend(given(0, size, 2, stream=k), dst=1, tag=tag) for k, tag in enumerate((5, 5, 9))]
        for work in works:
            work.wait()
        return None
    if rank == 1:
        got = [torch.zeros(2) for _ in range(3)]
        works = [dist.irecv(got[k], src=0, tag=tag) for k, tag in enumerate((9, 5, 5))]
        for work in works:
            work.wait()
        return got
    return None


@case
def receive_from_any(rank: int, size: int) -> Any:
    """Rank 0 takes one message of each other rank, in whatever order they come."""
    if rank:
        dist.send(given(rank, size, 3), dst=0, tag=2)
        return None
    got: dict[int, torch.Tensor] = {}
    for _ in range(size - 1):
        buffer = torch.zeros(3)
        source = dist.recv(buffer, tag=2)
        got[source] = buffer
    return sorted(got.items())


@case
def exchange(rank: int, size: int) -> Any:
    """Both neighbours at once: posted sends and receives, and the same as one batch."""
    left, right = (rank - 1) % size, (rank + 1) % size
    got = [torch.zeros(3) for _ in range(2)]
    works = [
        dist.irecv(got[0], src=left, tag=0),
        dist.irecv(got[1], src=right, tag=1),
        dist.isend(given(rank, size, 3), dst=right, tag=0),
        dist.isend(given(rank, size, 3, stream=1), dst=left, tag=1),
    ]
    for work in works:
        assert work is not None
        work.wait()
    batched = torch.zeros(2, dtype=torch.int64)
    batch = [
        dist.P2POp(dist.isend, given(rank, size, 2, dtype=torch.int64), right),
        dist.P2POp(dist.irecv, batched, left),
    ]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return got, batched


# --- groups -------------------------------------------------------------------------------------------------------


@case
def sub_groups(rank: int, size: int) -> Any:
    first, last = dist.new_group([0, 1]), dist.new_group([size - 2, size - 1], backend="gloo")
    results = []
    for group in (first, last):
        tensor = given(rank, size, 3)
        dist.all_reduce(tensor, group=group)  # ranks outside are left alone
        results.append(tensor)
    members = dist.get_process_group_ranks(last) if rank >= size - 2 else None
    if rank >= size - 2:
        dist.broadcast(results[1], group_src=1, group=last)
        place = (dist.get_rank(last), dist.get_group_rank(last, rank), dist.get_global_rank(last, 0))
        if dist.get_rank(last) == 0:
            dist.send(results[1] + 1, group_dst=1, group=last)
        else:
            dist.recv(results[1], group_src=0, group=last)
        dist.barrier(last)
    else:
        place = None
    dist.destroy_process_group(last) if rank >= size - 2 else None
    return results, members, place, dist.get_rank(first)


@case
def sub_groups_by_number(rank: int, size: int) -> Any:
    mine, everyone = dist.new_subgroups(1 if size % 2 else 2)
    tensor = given(rank, size, 2)
    dist.all_reduce(tensor, group=mine)
    lists = [[0, 1]] if size < 4 else [[0, 2], [1, 3]]
    chosen, _ = dist.new_subgroups_by_enumeration(lists)
    if any(rank in ranks for ranks in lists):
        dist.all_reduce(tensor, group=chosen)
    return tensor, len(everyone), dist.get_world_size(mine)


@case
def questions(rank: int, size: int) -> Any:
    return (
        dist.get_rank(),
        dist.get_world_size(),
        dist.get_backend(),
        dist.is_initialized(),
        dist.is_gloo_available(),
        dist.get_process_group_ranks(dist.group.WORLD),
        dist.get_node_local_rank(fallback_rank=0) >= 0,
    )


@case
def split_group_is_refused(rank: int, size: int) -> Any:
    try:
        dist.split_group(split_ranks=[[0, 1]])
    except RuntimeError as error:
        return str(error)
    return "no error"


# --- what is built on top -----------------------------------------------------------------------------------------


@case
def mesh(rank: int, size: int) -> Any:
    """A two-dimensional mesh: reductions along each axis, and a sub-mesh by name."""
    shape = (2, size // 2) if size % 2 == 0 else (1, size)
    grid = init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard"))
    results = []
    for axis in ("replica", "shard"):
        tensor = given(rank, size, 3)
        dist.all_reduce(tensor, group=grid.get_group(axis))
        results.append(tensor)
    return results, grid.get_coordinate(), grid["shard"].size(), grid.get_local_rank("replica")


@case
def dtensor(rank: int, size: int) -> Any:
    flat = init_device_mesh("cpu", (size,))
    whole = given(7, size, 6, 4)
    shard = distribute_tensor(whole, flat, [Shard(0)])
    turned = shard.redistribute(placements=[Shard(1)])
    partial = DTensor.from_local(given(rank, size, 2, 2), flat, [Partial()])
    total = partial.redistribute(placements=[Replicate()])
    product = distribute_tensor(whole, flat, [Shard(1)]) @ distribute_tensor(whole.t().contiguous(), flat, [Shard(0)])
    return (
        shard.full_tensor(),
        turned.to_local(),
        total.to_local(),
        product.full_tensor() if size == 2 else None,
    )


@case
def collectives_with_gradient(rank: int, size: int) -> Any:
    leaf = given(rank, size, 3).requires_grad_()
    total = with_gradient.all_reduce(leaf * 2)
    gathered = torch.stack(list(with_gradient.all_gather(leaf)))
    (total.sum() + (gathered * (rank + 1)).sum()).backward()
    return total.detach(), gathered.detach(), leaf.grad


@case
def work_raises_nothing_twice(rank: int, size: int) -> Any:
    tensor = given(rank, size, 2)
    work = dist.all_reduce(tensor, async_op=True)
    with contextlib.suppress(NotImplementedError):
        work.wait()
        work.wait()
    return tensor, work.is_success()
