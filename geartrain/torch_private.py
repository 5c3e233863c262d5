"""The only file that touches private names of PyTorch; checked against 2.13. `tests/test_torch_private.py` fails first.

Five things need them:

* `PythonGroup`: a process group in Python that DDP, FSDP2, DTensor and pipelining accept. PyTorch calls it under old
  and new method names; it turns all of them into one kind of value, a `Call`, or a send or receive.
* worlds: PyTorch keeps one table of groups per process. The simulator needs one per rank (ranks are threads), shared
  with the rank's lanes; a run needs groups that the user's default world does not contain (workers + services).
* the autograd engine: whether a backward is running, and a callback at its end.
* `DispatchMode`: who prices, times or traces operations has to see them.
* `flash_attention_shapes`: the fused attention of CUDA devices, where there are only shapes.
"""

from __future__ import annotations

import inspect
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as _stubs
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    HashStore,
    PrefixStore,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)
from torch._C._distributed_c10d import Store as Store
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.autograd.function import BackwardCFunction
from torch.distributed import distributed_c10d
from torch.distributed.distributed_c10d import BackendConfig
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

# The stubs of these two lack names, and say of others what does not hold for a group in Python.
c10d: Any = distributed_c10d
core: Any = _stubs

DEFAULT_TIMEOUT = timedelta(days=365)
"""Of groups made here: a service waits for the whole run to be told that it ends. Lost ranks are noticed elsewhere."""

READ_NUMBER: Any = torch.ops.aten._local_scalar_dense.default
"""What reads a number of a tensor, for which the host waits."""

SLOW_IMPORTS = ("torch._dynamo",)
"""What the first step of an optimizer loads (two seconds on a slow core): forked processes should have it already."""


@dataclass(slots=True)
class Item:
    """One tensor's part of a collective: what this rank gives and where what it gets goes.

    `gives` and `gets` have one entry, or one per group rank where the collective deals different tensors to ranks.
    """

    gives: Sequence[Tensor]
    gets: Sequence[Tensor]


@dataclass(slots=True)
class Call:
    """A collective as one rank asks for it, whatever the name of the method it came through.

    Attributes:
        kind: all_reduce, broadcast, reduce, all_gather, gather, scatter, reduce_scatter, all_to_all or barrier.
        items: one per tensor; several for a coalesced call.
        op: reduction, for the kinds that reduce.
        root: group rank of the root, for the kinds that have one.
        asynchronous: True when the caller keeps the work to wait for later.
    """

    kind: str
    items: list[Item] = field(default_factory=list)
    op: Any = None
    root: int = 0
    asynchronous: bool = False


Forward = Callable[[dist.ProcessGroup], dist.Work]
"""Makes the same call on another process group."""


def _flat_chunks(tensor: Tensor, count: int) -> list[Tensor]:
    return list(tensor.view(-1).chunk(count)) if tensor.numel() else [tensor.view(-1)] * count


def _split(tensor: Tensor, sizes: Sequence[int] | None, count: int) -> list[Tensor]:
    return list(tensor.split(list(sizes))) if sizes else list(tensor.chunk(count))


class PythonGroup(dist.ProcessGroup):
    """A process group whose operations are Python: subclasses give `launch`, `post_send` and `post_recv`."""

    def __init__(self, group_rank: int, group_size: int) -> None:
        initialise: Any = super().__init__
        initialise(group_rank, group_size)  # the form without a store, for groups in Python
        self.group_rank, self.group_size = group_rank, group_size
        self.given_name = ""

    # --- what a subclass says ---------------------------------------------------------------------------------------

    @abstractmethod
    def launch(self, call: Call, forward: Forward) -> dist.Work:
        """Start a collective; must not block."""

    @abstractmethod
    def post_send(self, tensor: Tensor, destination: int, tag: int) -> dist.Work: ...

    @abstractmethod
    def post_recv(self, tensor: Tensor, source: int | None, tag: int) -> dist.Work:
        """Start a receive from a group rank, or from any when `source` is None."""

    # --- what PyTorch asks ------------------------------------------------------------------------------------------

    def getBackendName(self) -> str:
        return "geartrain"

    def rank(self) -> int:
        return self.group_rank

    def size(self) -> int:
        return self.group_size

    @property
    def group_name(self) -> Any:
        return self.given_name or str(c10d._world.pg_names[self])

    @property
    def pg_name(self) -> str:
        return str(self.group_name)

    def _set_sequence_number_for_group(self) -> None:
        return

    def _get_sequence_number_for_group(self) -> int:
        return 0

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        tensors, opts = _listed(tensors), _options(AllreduceOptions, opts, "reduceOp")
        call = Call("all_reduce", [Item((t,), (t,)) for t in tensors], opts.reduceOp, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.allreduce(tensors, opts))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        opts = _options(AllreduceCoalescedOptions, opts)
        call = Call("all_reduce", [Item((t,), (t,)) for t in tensors], opts.reduceOp, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.allreduce_coalesced(tensors, opts))

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        tensors, opts = _listed(tensors), _options(BroadcastOptions, opts, "rootRank")
        call = Call("broadcast", [Item((t,), (t,)) for t in tensors], root=opts.rootRank, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.broadcast(tensors, opts))

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: Any = None) -> dist.Work:
        tensors, opts = _listed(tensors), _options(ReduceOptions, opts, "rootRank")
        if op is not None:
            opts.reduceOp = op
        call = Call(
            "reduce", [Item((t,), (t,)) for t in tensors], opts.reduceOp, opts.rootRank, asynchronous=opts.asyncOp
        )
        return self.launch(call, lambda group: group.reduce(tensors, opts))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _options(AllgatherOptions, opts)
        items = [Item((given,), got) for got, given in zip(outputs, inputs, strict=True)]
        call = Call("all_gather", items, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.allgather(outputs, inputs, opts))

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = None) -> dist.Work:
        opts = _options(AllgatherOptions, opts)
        items = [Item((given,), [got[k] for got in output_lists]) for k, given in enumerate(inputs)]
        call = Call("all_gather", items, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.allgather_coalesced(output_lists, inputs, opts))

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = _options(AllgatherOptions, opts)
        call = Call("all_gather", [self._gather_item(output, input)], asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.all_gather_single(output, input, opts))

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        opts = _options(AllgatherOptions, opts)
        items = [self._gather_item(got, given) for got, given in zip(outputs, inputs, strict=True)]
        call = Call("all_gather", items, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.all_gather_single_coalesced(outputs, inputs, opts))

    def reduce_scatter(self, outputs: Any, input_lists: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        if isinstance(outputs, Tensor):
            outputs, input_lists = [outputs], [input_lists]
        opts = _options(ReduceScatterOptions, opts, "reduceOp")
        items = [Item(given, (got,)) for got, given in zip(outputs, input_lists, strict=True)]
        call = Call("reduce_scatter", items, opts.reduceOp, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.reduce_scatter(outputs, input_lists, opts))

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> dist.Work:
        opts = _options(ReduceScatterOptions, opts)
        call = Call("reduce_scatter", [self._scatter_item(output, input)], opts.reduceOp, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.reduce_scatter_single(output, input, opts))

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        opts = _options(ReduceScatterOptions, opts)
        items = [self._scatter_item(got, given) for got, given in zip(outputs, inputs, strict=True)]
        call = Call("reduce_scatter", items, opts.reduceOp, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.reduce_scatter_single_coalesced(outputs, inputs, opts))

    def gather(self, output_lists: Any, inputs: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        if isinstance(inputs, Tensor):
            output_lists, inputs = ([output_lists] if output_lists else []), [inputs]
        opts = _options(GatherOptions, opts, "rootRank")
        gets = output_lists[0] if output_lists else ()
        call = Call("gather", [Item((inputs[0],), gets)], root=opts.rootRank, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.gather(output_lists, inputs, opts))

    def scatter(self, outputs: Any, input_lists: Any, opts: Any = None, timeout: Any = None) -> dist.Work:
        if isinstance(outputs, Tensor):
            outputs, input_lists = [outputs], ([input_lists] if input_lists else [])
        opts = _options(ScatterOptions, opts, "rootRank")
        gives = input_lists[0] if input_lists else ()
        call = Call("scatter", [Item(gives, (outputs[0],))], root=opts.rootRank, asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.scatter(outputs, input_lists, opts))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        opts = _options(AllToAllOptions, opts)
        call = Call("all_to_all", [Item(inputs, outputs)], asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.alltoall(outputs, inputs, opts))

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> dist.Work:
        opts = _options(AllToAllOptions, opts)
        gives = _split(input, input_sizes, self.group_size)
        gets = _split(output, output_sizes, self.group_size)
        call = Call("all_to_all", [Item(gives, gets)], asynchronous=opts.asyncOp)
        return self.launch(call, lambda group: group.all_to_all_single(output, input, output_sizes, input_sizes, opts))

    def barrier(self, opts: Any = None) -> dist.Work:
        opts = _options(BarrierOptions, opts)
        return self.launch(Call("barrier", asynchronous=opts.asyncOp), lambda group: group.barrier(opts))

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.barrier().wait()

    def send(self, tensors: Sequence[Tensor], destination: int, tag: int = 0) -> dist.Work:
        return self.post_send(tensors[0], destination, tag)

    def recv(self, tensors: Sequence[Tensor], source: int, tag: int = 0) -> dist.Work:
        return self.post_recv(tensors[0], source, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> dist.Work:
        return self.post_recv(tensors[0], None, tag)

    # The names under which older callers, C++ among them, ask for the same.
    _allgather_base: Any = all_gather_single
    _reduce_scatter_base: Any = reduce_scatter_single
    allgather_into_tensor_coalesced: Any = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced: Any = reduce_scatter_single_coalesced
    alltoall_base: Any = all_to_all_single

    def _gather_item(self, output: Tensor, given: Tensor) -> Item:
        return Item((given.view(-1),), _flat_chunks(output, self.group_size))

    def _scatter_item(self, output: Tensor, given: Tensor) -> Item:
        return Item(_flat_chunks(given, self.group_size), (output.view(-1),))


class ForwardingGroup(PythonGroup):
    """A Python group on top of another one, which answers what is asked of the group itself."""

    def __init__(self, inner: dist.ProcessGroup) -> None:
        super().__init__(inner.rank(), inner.size())
        self.inner = inner

    def shutdown(self) -> None:
        self.inner.shutdown()

    def abort(self) -> None:
        self.inner.abort()

    def set_timeout(self, timeout: timedelta) -> None:
        self.inner.set_timeout(timeout)

    @property
    def _device_types(self) -> list[torch.device]:
        return list(self.inner._device_types)

    def _get_backend(self, device: torch.device) -> Any:
        return self.inner._get_backend(device)


def source_of(work: dist.Work) -> int:
    """The group rank that a finished receive came from."""
    return int(work._source_rank())


def _listed(tensors: Any) -> list[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def _options(kind: type[Any], given: Any, bare: str = "") -> Any:
    """Options as given, or made from nothing, from a timeout, or from the bare reduction or root that `bare` names."""
    if given is not None and not isinstance(given, (timedelta, int, ReduceOp, ReduceOp.RedOpType)):
        return given
    options: Any = kind()
    if bare and given is not None:
        setattr(options, bare, given)
    return options


def reduce_op_name(op: Any) -> str:
    """`sum`, `avg`, `product`, `min`, `max`, `band`, `bor`, `bxor` or `premul_sum`."""
    kind = getattr(op, "op", op)
    name = _REDUCE_NAMES.get(kind)
    if name is None:
        name = _REDUCE_NAMES[kind] = str(kind).rsplit(".", 1)[-1].lower()
    return name


_REDUCE_NAMES: dict[Any, str] = {}


# --- worlds -----------------------------------------------------------------------------------------------------------


class _Counted(dict[Any, str]):
    """The names of a rank's groups; counts changes, for the rank's other threads to see."""

    changes = 0

    def __setitem__(self, key: Any, value: str) -> None:
        self.changes += 1
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self.changes += 1
        super().__delitem__(key)

    def pop(self, key: Any, *default: Any) -> Any:
        self.changes += 1
        return super().pop(key, *default)

    def clear(self) -> None:
        self.changes += 1
        super().clear()


class WorldTable:
    """One rank's table of process groups."""

    def __init__(self) -> None:
        self.default_pg: dist.ProcessGroup | None = None
        self.group_count = 0
        self.pg_map: dict[Any, Any] = {}
        self.pg_names = _Counted()
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []


class _WorldPerThread:
    """Stands where PyTorch keeps its table; looks up the one of the calling thread, else the process's own."""

    def __init__(self, fallback: Any) -> None:
        object.__setattr__(self, "_fallback", fallback)
        object.__setattr__(self, "_local", threading.local())

    def _table(self) -> Any:
        return getattr(self._local, "table", self._fallback)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._table(), name, value)

    @property
    def pg_config_info(self) -> list[dict[str, Any]]:
        return []


@contextmanager
def worlds_per_thread() -> Iterator[None]:
    """While open, threads that called `adopt_world` have a table and registry of groups of their own."""
    before = c10d._world
    core._set_thread_isolation_mode(True)
    c10d._world = _WorldPerThread(before)
    try:
        yield
    finally:
        c10d._world = before
        core._set_thread_isolation_mode(False)


def adopt_world(table: WorldTable) -> None:
    """Make `table` the calling thread's, and register its groups by name for this thread. Needs `worlds_per_thread`."""
    local = c10d._world._local
    local.table, local.registered = table, set()
    register_groups(table)


def register_groups(table: WorldTable) -> int:
    """Register the groups of the calling thread's table by name, those that other threads of the rank made too.

    PyTorch has such a register per thread, and functional collectives look there.

    Returns:
        `table.pg_names.changes`; while that stays the same, and this thread adds to it by itself, there is nothing new.
    """
    local = c10d._world._local
    names = set(table.pg_names.values())
    for name in local.registered | names:
        core._unregister_process_group(name)  # a name may stand for another group than before
    for group, name in table.pg_names.items():
        core._register_process_group(name, group)
    local.registered = names
    return table.pg_names.changes


def leave_world() -> None:
    """Forget the calling thread's table and names."""
    local = c10d._world._local
    for name in local.registered | set(local.table.pg_names.values()):
        core._unregister_process_group(name)
    del local.table, local.registered


def enter_group(group: PythonGroup | dist.ProcessGroup, name: str, backend: str, ranks: Sequence[int]) -> None:
    """Enter a group made outside `init_process_group` into the tables, so that `dist.all_reduce(t, group=group)` works.

    Args:
        ranks: the global ranks (as `dist` functions without `group_src`/`group_dst` use them) in group order.
    """
    world = c10d._world
    world.pg_map[group] = (backend, None)
    world.pg_names[group] = name
    world.pg_group_ranks[group] = {rank: position for position, rank in enumerate(ranks)}
    world.pg_backend_config[group] = str(BackendConfig(dist.Backend(backend)))
    world.pg_to_tag[group] = f"user:{name}"
    world.tags_to_pg.setdefault(f"user:{name}", []).append(group)
    if isinstance(group, PythonGroup):
        group.given_name = name
    else:
        named: Any = group
        named._set_group_name(name)
    core._register_process_group(name, group)


def enter_default_group(group: dist.ProcessGroup, name: str, backend: str, ranks: Sequence[int], store: Store) -> None:
    """Make a group the default one, as `init_process_group` would; sub-groups made from it share `store`."""
    enter_group(group, name, backend, ranks)
    world = c10d._world
    world.pg_map[group] = (backend, store)
    world.default_pg = group
    world.group_count = 1


@dataclass(frozen=True)
class GroupRequest:
    """What PyTorch asks for when a group is made: `ranks` are the global ranks in group order."""

    store: Any
    group_rank: int
    group_size: int
    timeout: timedelta
    name: str
    ranks: tuple[int, ...]


def register_backend(name: str, create: Callable[[GroupRequest], dist.ProcessGroup]) -> None:
    """Let `init_process_group(name)` and `new_group` make groups with `create`; a name's first registration stays."""
    if name.upper() not in dist.Backend._plugins:

        def make(options: Any, _: Any) -> dist.ProcessGroup:
            size = options.group_size
            ranks = tuple(options.global_ranks_in_group) or tuple(range(size))
            request = GroupRequest(options.store, options.group_rank, size, options.timeout, options.group_id, ranks)
            group = create(request)
            if isinstance(group, PythonGroup):
                group.given_name = request.name  # `destroy_process_group` asks for it when the tables know it no more
            return group

        dist.Backend.register_backend(name, make, extended_api=True, devices=["cpu", "cuda"])


Wrap = Callable[[dist.ProcessGroup, str, tuple[int, ...]], PythonGroup]
"""(group, its name, its global ranks in group order) -> the group that takes its place."""


def wrap_new_groups(wrap: Wrap) -> None:
    """Let `init_process_group` and `new_group` of this process, whatever the backend, give what `wrap` makes of it."""
    make = c10d._new_process_group_helper

    def make_wrapped(
        size: int, rank: int, ranks: Sequence[int], backend: Any, store: Any, name: str, *rest: Any, **options: Any
    ) -> tuple[Any, Any]:
        group, prefix_store = make(size, rank, ranks, backend, store, name, *rest, **options)
        if not isinstance(group, dist.ProcessGroup) or isinstance(group, PythonGroup):
            return group, prefix_store
        wrapped = wrap(group, name, tuple(ranks) or tuple(range(size)))
        _take_place(group, wrapped)
        return wrapped, prefix_store

    c10d._new_process_group_helper = make_wrapped


@contextmanager
def redirected_groups(backend: str, place: Callable[[], tuple[Store, int, int] | None]) -> Iterator[None]:
    """While open, `init_process_group` and `new_group` make groups of `backend`, whatever backend they ask for.

    Args:
        backend: a registered backend.
        place: (store, rank, world size) of the calling thread, or None for a thread that is left alone. It also
            answers every rendezvous (env://, tcp://, file://).
    """
    make: Callable[..., tuple[Any, Any]] = c10d._new_process_group_helper
    handlers = dict(_rendezvous_handlers)

    def make_redirected(
        size: int, rank: int, ranks: Sequence[int], asked: Any, store: Any, name: str, *rest: Any, **options: Any
    ) -> tuple[Any, Any]:
        if place() is None:
            return make(size, rank, ranks, asked, store, name, *rest, **options)
        options["device_id"] = None
        group, prefix_store = make(size, rank, ranks, dist.Backend(backend), store, name, *rest, **options)
        if isinstance(group, dist.ProcessGroup):
            shown = "gloo" if str(asked) == str(dist.Backend.UNDEFINED) else asked
            c10d._world.pg_map[group] = (shown, prefix_store)
        return group, prefix_store

    def meet(handler: Any) -> Any:
        def redirected(url: str, *args: Any, **options: Any) -> Any:
            here = place()
            if here is None:
                return handler(url, *args, **options)
            return iter([here])

        return redirected

    c10d._new_process_group_helper = make_redirected
    for scheme, handler in handlers.items():
        _rendezvous_handlers[scheme] = meet(handler)
    try:
        yield
    finally:
        c10d._new_process_group_helper = make
        _rendezvous_handlers.update(handlers)


def _take_place(group: dist.ProcessGroup, wrapped: PythonGroup) -> None:
    world = c10d._world
    name = world.pg_names[group]
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag):
        if group in table:
            table[wrapped] = table.pop(group)
    for tagged in world.tags_to_pg.values():
        tagged[:] = [wrapped if known is group else known for known in tagged]
    wrapped.given_name = name
    core._unregister_process_group(name)
    core._register_process_group(name, wrapped)


def prefixed(store: Any, prefix: str) -> Any:
    """A part of a store in which keys cannot meet those of other parts."""
    return PrefixStore(prefix, store)


def default_store() -> Any:
    """The store of the calling thread's default group."""
    return c10d._get_default_store()


def store_of_one() -> Any:
    """A store inside this process."""
    return HashStore()


def gloo_group(store: Any, rank: int, size: int, timeout: timedelta = DEFAULT_TIMEOUT) -> dist.ProcessGroup:
    """A plain gloo process group on a store of its own, not entered into any table."""
    group = dist.ProcessGroup(store, rank, size)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    backend = dist.ProcessGroupGloo(PrefixStore("cpu/", store), rank, size, timeout=timeout)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    return group


def nccl_group(store: Any, rank: int, size: int, timeout: timedelta = DEFAULT_TIMEOUT) -> dist.ProcessGroup:
    """A plain NCCL process group (with gloo for CPU tensors) on a store of its own. Needs CUDA."""
    group = gloo_group(store, rank, size, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = dist.ProcessGroupNCCL(PrefixStore("cuda/", store), rank, size, options)
    backend._set_sequence_number_for_group()
    group._register_backend(torch.device("cuda"), dist.ProcessGroup.BackendType.NCCL, backend)
    return group


# --- dispatch ---------------------------------------------------------------------------------------------------------


class DispatchMode(TorchDispatchMode):
    """A dispatch mode that is called directly: compiled code is not simulated, so nothing guards against a compiler."""

    def __init__(self) -> None:
        make: Any = super().__init__
        make()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def without_dispatch() -> AbstractContextManager[None]:
    """Inside, operations go straight to their kernels: no dispatch mode of this thread sees them."""
    guard: AbstractContextManager[None] = torch._C._DisableTorchDispatch()
    return guard


def allocations(run: Callable[[], object]) -> list[int]:
    """Bytes that tensor operations of this thread take from the CPU's memory, and below zero give back, in order.

    What was there before is not counted when it is given back.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as taken:
        run()
    kineto: Any = taken.profiler
    events = [event for event in kineto.kineto_results.events() if event.name() == "[memory]"]
    return [int(event.nbytes()) for event in sorted(events, key=lambda event: int(event.start_ns()))]


# --- autograd ---------------------------------------------------------------------------------------------------------


def in_backward() -> bool:
    """Whether the calling thread is in a node of a running backward or a hook of one, not in a callback at its end."""
    return torch._C._current_graph_task_id() != -1 and torch._C._current_autograd_node() is not None


def is_composed(name: str) -> bool:
    """Whether an operation like "aten::linear" is made of others, which are what a device runs."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call `callback` when the running backward has done its last node, before callbacks queued later than this."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def backward_number() -> int:
    """A number of the running backward; one that runs inside another has a number of its own."""
    return int(torch._C._current_graph_task_id())


def gradient_hooks(parameter: Tensor) -> Sequence[Callable[[Tensor], None]]:
    """What `register_post_accumulate_grad_hook` has registered, in order."""
    hooks: Any = parameter._post_accumulate_grad_hooks
    return tuple(hooks.values()) if hooks else ()


def in_nested_backward() -> bool:
    """Whether the running backward was started by an autograd function in Python, as re-entrant checkpoints do."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is BackwardCFunction.apply.__code__:
            return True
        frame = frame.f_back
    return False


def flash_attention_shapes(q: Tensor, k: Tensor, v: Tensor, dropout: float, causal: bool) -> Tensor:
    """What the fused attention of CUDA devices returns for tensors on the meta device; autograd knows its backward."""
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout, causal)[0]
    return out
