"""Programs as users write them, on every parallelism of PyTorch that runs on gloo. Each returns losses and weights."""

import tempfile
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recompute

Program = Callable[[int, int], Any]
PROGRAMS: dict[str, Program] = {}
STEPS = 3


def program(function: Program) -> Program:
    """Enter a program under its own name."""
    PROGRAMS[function.__name__] = function
    return function


class Net(nn.Module):
    """Some layers, with a batch norm in the middle and a branch that may stay unused."""

    def __init__(self, norm: bool = False, branch: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.branch = nn.Linear(16, 16) if branch else None

    def forward(self, inputs: torch.Tensor, use_branch: bool = False, again: bool = False) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.first(inputs)))
        hidden = recompute(self.second, hidden, use_reentrant=False) if again else self.second(hidden)
        if use_branch and self.branch is not None:
            hidden = self.branch(hidden)
        result: torch.Tensor = self.last(torch.relu(hidden))
        return result


def batches(rank: int, count: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(rank + 1)
    return [(torch.randn(8, 8, generator=source), torch.randint(0, 4, (8,), generator=source)) for _ in range(count)]


def train(model: nn.Module, rank: int, optimizer: torch.optim.Optimizer | None = None, **forward: Any) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for inputs, targets in batches(rank):
        loss = nn.functional.cross_entropy(model(inputs, **forward), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, weights(model)


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in model.state_dict().items()
    }


# --- data parallel ------------------------------------------------------------------------------------------------

DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "small_buckets": {"bucket_cap_mb": 0.001},
    "bucket_view": {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.001},
    "static_graph": {"static_graph": True},
    "find_unused": {"find_unused_parameters": True},
}


def ddp(options: dict[str, Any]) -> Program:
    def run(rank: int, size: int) -> Any:
        branch = bool(options.get("find_unused_parameters"))
        return train(DistributedDataParallel(Net(branch=branch), **options), rank)

    return run


for _name, _options in DDP_OPTIONS.items():
    PROGRAMS[f"ddp_{_name}"] = ddp(_options)


@program
def ddp_batch_norm(rank: int, size: int) -> Any:
    """Buffers are broadcast from rank 0 before each forward."""
    return train(DistributedDataParallel(Net(norm=True)), rank)


@program
def ddp_branch_on_one_rank(rank: int, size: int) -> Any:
    """Ranks use different parameters in a step."""
    return train(DistributedDataParallel(Net(branch=True), find_unused_parameters=True), rank, use_branch=rank == 0)


@program
def ddp_recomputed(rank: int, size: int) -> Any:
    return train(DistributedDataParallel(Net(), bucket_cap_mb=0.001), rank, again=True)


@program
def ddp_no_sync(rank: int, size: int) -> Any:
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step, (inputs, targets) in enumerate(batches(rank, 4)):
        if step % 2 == 0:
            with model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), targets) / 2
                loss.backward()
        else:
            loss = nn.functional.cross_entropy(model(inputs), targets) / 2
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, weights(model)


def hooked(register: Callable[[DistributedDataParallel], None], bucket_cap_mb: float = 0.001) -> Program:
    def run(rank: int, size: int) -> Any:
        model = DistributedDataParallel(Net(), bucket_cap_mb=bucket_cap_mb)
        register(model)
        return train(model, rank)

    return run


def power_sgd(model: DistributedDataParallel) -> None:
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


PROGRAMS["ddp_hook_all_reduce"] = hooked(lambda m: m.register_comm_hook(None, default_hooks.allreduce_hook))
PROGRAMS["ddp_hook_fp16"] = hooked(lambda m: m.register_comm_hook(None, default_hooks.fp16_compress_hook))
PROGRAMS["ddp_hook_power_sgd"] = hooked(power_sgd, bucket_cap_mb=25)  # several buckets deadlock on gloo itself


@program
def ddp_join(rank: int, size: int) -> Any:
    """Uneven data: rank 0 has a batch fewer, and shadows the others' collectives until they are done."""
    model = DistributedDataParallel(Net(), bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with model.join():
        for inputs, targets in batches(rank, 2 if rank == 0 else 3):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, weights(model)


@program
def zero_redundancy(rank: int, size: int) -> Any:
    from torch.distributed.optim import ZeroRedundancyOptimizer  # warns of its own parts when it is loaded

    model = DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
    return train(model, rank, optimizer)


# --- sharded, tensor parallel -------------------------------------------------------------------------------------


def sharded(**options: Any) -> nn.Module:
    model = Net()
    for part in (model.first, model.second):
        fully_shard(part, **options)
    return fully_shard(model, **options)


@program
def fsdp2(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    model = sharded(mesh=mesh)
    return train(model, rank, torch.optim.AdamW(model.parameters(), lr=0.01))


@program
def fsdp2_mixed_precision(rank: int, size: int) -> Any:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(sharded(mp_policy=policy, mesh=init_device_mesh("cpu", (size,)), reshard_after_forward=False), rank)


@program
def fsdp2_hybrid(rank: int, size: int) -> Any:
    """Replicated along one axis of the mesh, sharded along the other."""
    return train(sharded(mesh=init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replica", "shard"))), rank)


@program
def fsdp1(rank: int, size: int) -> Any:
    model = FullyShardedDataParallel(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    losses = train_only_losses(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        return losses, {name: value.detach().clone() for name, value in model.named_parameters()}


def train_only_losses(model: nn.Module, rank: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches(rank):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


PLAN = {"first": ColwiseParallel(), "second": RowwiseParallel()}


@program
def tensor_parallel(rank: int, size: int) -> Any:
    model = parallelize_module(Net(), init_device_mesh("cpu", (size,)), PLAN)
    return train(model, 0, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))


@program
def tensor_and_data_parallel(rank: int, size: int) -> Any:
    """Two dimensions: fully sharded over one, tensor parallel over the other."""
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(Net(), mesh["tensor"], PLAN)
    fully_shard(model, mesh=mesh["data"])
    return train(model, mesh.get_local_rank("data"), torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))


# --- pipelines ----------------------------------------------------------------------------------------------------


def pipeline(schedule_class: Any, stages_per_rank: int = 1) -> Program:
    def run(rank: int, size: int) -> Any:
        total = size * stages_per_rank
        stages = []
        for index in range(rank, total, size):
            torch.manual_seed(index)
            stages.append(PipelineStage(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), index, total, torch.device("cpu")))
        given = stages if stages_per_rank > 1 else stages[0]
        schedule = schedule_class(given, n_microbatches=4, loss_fn=nn.functional.mse_loss)
        parameters = [p for stage in stages for p in stage.submod.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.5)
        result = []
        for inputs, _ in batches(0):
            losses: list[torch.Tensor] = []
            arguments = (inputs,) if rank == 0 else ()
            if rank == size - 1:
                schedule.step(*arguments, target=inputs.roll(1, dims=1), losses=losses)
            else:
                schedule.step(*arguments)
            optimizer.step()
            optimizer.zero_grad()
            result.append([loss.item() for loss in losses])
        return result, [p.detach().clone() for p in parameters]

    return run


PROGRAMS["pipeline_gpipe"] = pipeline(ScheduleGPipe)
PROGRAMS["pipeline_1f1b"] = pipeline(Schedule1F1B)
PROGRAMS["pipeline_interleaved"] = pipeline(ScheduleInterleaved1F1B, stages_per_rank=2)


# --- checkpoints --------------------------------------------------------------------------------------------------


@program
def checkpointed(rank: int, size: int) -> Any:
    """Save a sharded model, load it into another one, go on."""
    folders: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folders, src=0)
    mesh = init_device_mesh("cpu", (size,))
    first, second = sharded(mesh=mesh), sharded(mesh=mesh)
    train_only_losses(first, rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save({"model": get_model_state_dict(first)}, checkpoint_id=folders[0])
        state = {"model": get_model_state_dict(second)}
        checkpoint.load(state, checkpoint_id=folders[0])
        set_model_state_dict(second, state["model"])
    return train_only_losses(second, rank), weights(second)


@program
def sharded_tensors(rank: int, size: int) -> Any:
    mesh = init_device_mesh("cpu", (size,))
    left = distribute_tensor(torch.arange(24.0).view(6, 4), mesh, [Shard(1)]).requires_grad_()
    (left.sum() * 2).backward()
    assert isinstance(left.grad, DTensor)
    return left.grad.full_tensor()
