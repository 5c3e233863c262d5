"""What single methods refuse, and synchronous against PyTorch's own DDP."""

import pytest
import torch
from torch import nn

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import StrategyError
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from tests.conformance.harness import Steps, run
from tests.conformance.tasks import Curve, Golden

CLUSTER = load_cluster("ethernet-10g")


class WithOptimizer(Golden):
    """The golden task with another optimizer."""

    def __init__(self, kind):
        super().__init__()
        object.__setattr__(self, "kind", kind)

    def optimizer(self, params):
        return self.kind(params)


class TwoTypes(Golden):
    """The golden task with a second data type."""

    def model(self, seed):
        model = super().model(seed)
        model.extra = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        return model


def ddp_loop(task, steps):
    """A `main(ctx)` in which DDP does the work of `synchronous`."""

    def main(ctx):
        model = nn.parallel.DistributedDataParallel(task.model(0), process_group=ctx.workers)
        optimizer = task.optimizer(model.parameters())
        batches = task.batches(ctx.rank, ctx.num_workers, 8, seed=3)
        for _ in range(steps):
            optimizer.zero_grad()
            task.loss(model, batches.take()).backward()
            optimizer.step()
        return [p.detach().clone() for p in model.module.parameters()]

    return main


def test_synchronous_is_ddp_to_the_bit_at_two_workers():
    task, engine = Curve(), SimulatedEngine()
    theirs = engine.run(ddp_loop(task, 5), CLUSTER, workers=2).results[0]
    ours = run(engine, Steps(parse("synchronous"), task, 5, 8), 2).results[0]["weights"]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_single_refuses_several_workers():
    with pytest.raises(StrategyError, match="not in 2"):
        parse("single").roles(2)
    with pytest.raises(StrategyError, match="not in 2"):
        parse("single").cost(task_workload(Golden()), Placement(CLUSTER, 2), 8)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("parameter_server", torch.optim.Adafactor),
        ("peer_to_peer", torch.optim.Adafactor),
        ("parameter_server", torch.optim.LBFGS),
        ("parameter_server:shard=tensors", torch.optim.LBFGS),
    ],
)
def test_shards_refuse_optimizers_that_look_beyond_an_element(text, kind):
    with pytest.raises(StrategyError, match=f"{kind.__name__} does not update element by element"):
        run(SimulatedEngine(), Steps(parse(text), WithOptimizer(kind), 1, 8), 2)


def test_whole_tensors_take_such_an_optimizer():
    strategy, task = parse("parameter_server:servers=2,shard=tensors"), WithOptimizer(torch.optim.Adafactor)
    served = run(SimulatedEngine(), Steps(strategy, task, 2, 8), 2).results[0]["weights"]
    plain = run(SimulatedEngine(), Steps(parse("synchronous"), task, 2, 8), 2).results[0]["weights"]
    assert all(torch.equal(a, b) for a, b in zip(served, plain, strict=True))


@pytest.mark.parametrize("text", ["parameter_server", "peer_to_peer", "peer_to_peer:kind=broadcast"])
def test_shards_refuse_two_data_types(text):
    with pytest.raises(StrategyError, match=r"float32 on cpu, torch.float64 on cpu"):
        run(SimulatedEngine(), Steps(parse(text), TwoTypes(), 1, 8), 2)


def test_a_placement_without_the_servers_is_refused():
    with pytest.raises(StrategyError, match=r"needs 2 service\(s\)"):
        parse("parameter_server:servers=2").cost(task_workload(Golden()), Placement(CLUSTER, 2), 8)


def test_the_slowest_worker_decides_the_closed_form():
    slow = CLUSTER.model_validate({**CLUSTER.model_dump(), "overrides": {"nodes": [{"node": 1, "speed": 0.5}]}})
    workload = task_workload(Curve())
    usual, slower = (
        parse("synchronous").cost(workload, Placement(cluster, 2), 8).compute for cluster in (CLUSTER, slow)
    )
    assert slower == pytest.approx(2 * usual)
