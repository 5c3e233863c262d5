"""The canary: fails first when private names of PyTorch move. What is built on them is tested elsewhere."""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as core
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import _rendezvous_handlers
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from geartrain import torch_private
from geartrain.cluster.load import load_cluster
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.context import Context
from geartrain.torch_private import (
    Call,
    PythonGroup,
    WorldTable,
    flash_attention_shapes,
    reduce_op_name,
    worlds_per_thread,
)

CLUSTER = load_cluster("ethernet-10g")


def test_version_is_one_that_the_names_were_checked_against():
    assert torch.__version__.split(".")[:2] == ["2", "13"]


def test_world_table_has_the_fields_that_torch_keeps():
    ours, theirs = WorldTable(), c10d._World()
    missing = {name for name in dir(theirs) if not name.startswith("_")} - set(vars(ours)) - {"pg_config_info"}
    assert missing == set()
    private = {name for name in vars(type(theirs)) if name.startswith("_") and not name.startswith("__")}
    assert private == set()


def test_methods_of_a_group_are_those_that_torch_calls():
    asked = {
        "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "allgather_coalesced",
        "_allgather_base", "all_gather_single", "all_gather_single_coalesced",
        "allgather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base",
        "reduce_scatter_single", "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
        "gather", "scatter", "alltoall", "alltoall_base", "all_to_all_single", "barrier",
        "monitored_barrier", "send", "recv", "recv_anysource",
    }  # fmt: skip
    assert asked <= set(vars(dist.ProcessGroup))
    assert asked <= set(vars(PythonGroup))


def test_a_receive_of_our_groups_may_be_pending_for_a_whole_run():
    """gloo ends it by the group's timeout, and a server would end its run: torch's is half an hour."""
    group = torch_private.gloo_group(dist.HashStore(), 0, 1)
    assert group._get_backend(torch.device("cpu")).options._timeout > timedelta(days=90)


def test_allocations_are_told_in_order():
    """The profiler's events of memory are read where torch gives no public way."""
    assert torch_private.allocations(lambda: torch.empty(10)) == [40, -40]


class Noting(PythonGroup):
    """Writes down what it is asked for."""

    def __init__(self) -> None:
        super().__init__(0, 2)
        self.calls: list[Call] = []

    def launch(self, call, forward):
        self.calls.append(call)
        return dist.Work()

    def post_send(self, tensor, destination, tag):
        raise NotImplementedError

    post_recv = post_send


def test_a_group_may_be_called_with_options_or_with_bare_values():
    group, x = Noting(), torch.ones(4)
    group.allreduce([x])
    group.allreduce(x, dist.ReduceOp.MAX)
    group.broadcast(x, 1)
    group.reduce(x, 1, dist.ReduceOp.MIN)
    group.allgather([x, x], x)
    group.reduce_scatter(x, [x, x], dist.ReduceOp.PRODUCT)
    group.gather([], x, 1)
    group.scatter(x, [x, x], 0)
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = dist.ReduceOp.BAND
    group.allreduce_coalesced([x, x], options)
    told = [(c.kind, None if c.op is None else reduce_op_name(c.op), c.root, len(c.items)) for c in group.calls]
    assert told == [
        ("all_reduce", "sum", 0, 1),
        ("all_reduce", "max", 0, 1),
        ("broadcast", None, 1, 1),
        ("reduce", "min", 1, 1),
        ("all_gather", None, 0, 1),
        ("reduce_scatter", "product", 0, 1),
        ("gather", None, 1, 1),
        ("scatter", None, 0, 1),
        ("all_reduce", "band", 0, 2),
    ]


def test_worlds_and_handlers_are_put_back():
    before = (c10d._world, c10d._new_process_group_helper, dict(_rendezvous_handlers))
    with worlds_per_thread():
        assert c10d._world is not before[0]
        assert c10d._world.pg_names == {}
    with torch_private.redirected_groups("gloo", lambda: None):
        assert c10d._new_process_group_helper is not before[1]
    assert before == (c10d._world, c10d._new_process_group_helper, dict(_rendezvous_handlers))
    assert hasattr(core, "_set_thread_isolation_mode")
    assert torch._C._current_graph_task_id() == -1 and torch._C._current_autograd_node() is None


def by_all_means(ctx: Context) -> list[float]:
    """DDP, and functional collectives, which find their group by its name."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 4))
    model(torch.full((2, 4), ctx.rank + 1.0)).sum().backward()
    gradient = model.module.weight.grad
    assert gradient is not None
    total = functional.all_reduce(torch.tensor([ctx.rank + 1.0]), "sum", ctx.workers)
    named = functional.all_gather_single(torch.tensor([float(ctx.rank)]), 0, ctx.everyone)
    return [gradient[0, 0].item(), *functional.wait_tensor(total).tolist(), *named.tolist()]


def test_ddp_and_functional_collectives_in_a_rank_and_in_a_lane():
    def main(ctx: Context) -> object:
        lane_found: list[list[float]] = []
        ctx.spawn(lambda: lane_found.append(by_all_means(ctx)), "lane").join()
        return by_all_means(ctx), lane_found[0]

    expected = [3.0, 3.0, 0.0, 1.0]
    assert SimulatedEngine().run(main, CLUSTER, workers=2).results == [(expected, expected)] * 2
    assert not dist.is_initialized()


def test_a_lane_knows_groups_by_name_that_its_rank_makes_and_leaves_later():
    def main(ctx: Context) -> object:
        found: list[list[float]] = []
        asked, answered = ctx.queue(), ctx.queue()

        def answer() -> None:
            while (group := asked.get()) is not None:
                summed = functional.all_reduce(torch.tensor([ctx.rank + 1.0]), "sum", group)
                found.append(functional.wait_tensor(summed).tolist())
                answered.put(None)

        lane = ctx.spawn(answer, "lane")
        for ranks in ([0, 1], [ctx.rank]):
            group = dist.new_group(ranks, use_local_synchronization=True)
            asked.put(group)
            answered.get()
            dist.destroy_process_group(group)
        asked.put(ctx.workers)
        asked.put(None)
        lane.join()
        return found

    results = SimulatedEngine().run(main, CLUSTER, workers=2).results
    assert results == [[[3.0], [rank + 1.0], [3.0]] for rank in range(2)]
    assert not dist.is_initialized()


def test_fused_attention_has_shapes_and_a_backward():
    """The shapes are those of the public function on real tensors; FLOP are counted in one operation each way."""
    q, k, v = (torch.empty(2, 3, 5, 8, device="meta", requires_grad=True) for _ in range(3))
    seen = flash_attention_shapes(q, k, v, 0.0, True)
    real = torch.nn.functional.scaled_dot_product_attention(*(torch.randn(2, 3, 5, 8) for _ in range(3)))
    assert (seen.shape, seen.dtype) == (real.shape, real.dtype)
    with FlopCounterMode(display=False) as counted:
        flash_attention_shapes(q, k, v, 0.0, True).sum().backward()
    assert (q.grad.shape, k.grad.shape, v.grad.shape) == (q.shape, k.shape, v.shape)
    assert counted.get_total_flops() == (4 + 10) * 2 * 3 * 5 * 5 * 8


def test_where_backward_is_known():
    x = torch.ones(1, requires_grad=True)
    told: list[object] = []

    def hook(gradient: torch.Tensor) -> None:
        told.append(("hook", torch_private.in_backward()))
        torch_private.at_end_of_backward(lambda: told.append(("end", torch_private.in_backward())))

    x.register_hook(hook)
    (x * 2).backward()
    assert told == [("hook", True), ("end", False)]
    assert not torch_private.in_backward()


def test_operations_that_are_made_of_others():
    """A linear map is; what it comes to, and a view, are not."""
    kinds = {
        name: torch_private.is_composed(f"aten::{name}") for name in ("linear", "conv2d", "addmm", "convolution", "t")
    }
    assert kinds == {"linear": True, "conv2d": True, "addmm": False, "convolution": False, "t": False}
