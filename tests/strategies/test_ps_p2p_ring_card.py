"""What must hold of parameter server, peer-to-peer and ring (arXiv 1909.02061; all closed forms derived), simulated.

W workers, M bytes, links of B bytes per second each way with latency alpha. Compute is free unless a test says
otherwise, so that a step's time is its communication.
"""

import pytest
import torch
from torch import nn

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.loop import Training
from geartrain.runtime.tracing import task_workload
from geartrain.runtime.worker import Batch, Task
from geartrain.strategies import parse
from geartrain.strategies.synchronous import Synchronous

B, ALPHA = 1.25e9, 50e-6
CLUSTER = load_cluster("ethernet-10g")

PS = "parameter_server"
SHARDED = "peer_to_peer:kind=sharded"
BROADCAST = "peer_to_peer:kind=broadcast"
RING = "synchronous:overlap=false,bucket_size=none,exchange=ring"
RESNET50 = 25_557_032


class Flat(Task):
    """One parameter of so many elements and next to no compute."""

    name, source = "flat", "made for tests"

    def __init__(self, numel):
        self.numel = numel

    def model(self, seed):
        model = nn.Module()
        model.weight = nn.Parameter(torch.zeros(self.numel, device="meta"))
        return model

    def optimizer(self, params):
        return torch.optim.SGD(params, lr=0.5)

    def loss(self, model, batch):
        return model.weight.sum() * batch.inputs.sum()

    def metric(self, model):
        return {}

    def batches(self, rank, num_workers, batch, seed):
        return Same(Batch(torch.zeros(batch // num_workers), torch.zeros(batch // num_workers), 1 / num_workers))


class Layers(Flat):
    """Eight layers of 256 x 256: on 10 Gbit/s and 16,384 samples, computing and communicating take about as long.

    All kernels of a layer are bound by arithmetic, so the layer's time is the sum of theirs, as the closed form has it.
    """

    name = "layers"

    def __init__(self):
        self.numel = 8 * 256 * 256

    def model(self, seed):
        with torch.device("meta"):
            return nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))

    def loss(self, model, batch):
        return model(batch.inputs).sum()

    def batches(self, rank, num_workers, batch, seed):
        inputs = torch.empty(batch // num_workers, 256, device="meta")
        return Same(Batch(inputs, inputs, 1 / num_workers))


class Same:
    def __init__(self, batch):
        self.batch = batch

    def take(self, num_samples=None):
        return self.batch

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


def simulate(text, workers, task, *, batch=None, compute=None, steps=2):
    strategy = parse(text)
    training = Training(strategy=strategy, task=task, steps=steps, batch=batch or workers)
    services = strategy.roles(workers).services
    return SimulatedEngine(compute).run(training, CLUSTER, workers=workers, services=services, meta=True)


def step_time(record, step=-1):
    """The slowest worker's time in a step."""
    marks = [log.steps[step] for log in record.logs if log.role == "worker"]
    return max(mark.end - mark.begin for mark in marks)


def communication(text, workers, numel):
    return step_time(simulate(text, workers, Flat(numel)))


def cost(text, workers, task, batch):
    strategy = parse(text)
    place = Placement(CLUSTER, workers, strategy.roles(workers).services)
    return strategy.cost(task_workload(task), place, batch)


def messages(record, rank):
    """The sizes of what a rank sent in its first step, and how many receives it posted."""
    log = record.logs[rank]
    mark = log.steps[0]
    ops = [op for op in log.ops if mark.begin <= op.posted < mark.end]
    return [op.nbytes for op in ops if op.kind == "send"], sum(op.kind == "recv" for op in ops)


CLOSED_FORMS = {
    PS: lambda w, m: 2 * (ALPHA + w * m / B),
    "parameter_server:servers=2": lambda w, m: 2 * (ALPHA + max(w * m / (2 * B), m / B)),
    "parameter_server:servers=4": lambda w, m: 2 * (ALPHA + max(w * m / (4 * B), m / B)),
    SHARDED: lambda w, m: 2 * (w - 1) * ALPHA + 2 * (w - 1) / w * m / B,
    SHARDED + ",sends=all_at_once": lambda w, m: 2 * ALPHA + 2 * (w - 1) / w * m / B,
    BROADCAST: lambda w, m: (w - 1) * (ALPHA + m / B),
    BROADCAST + ",sends=all_at_once": lambda w, m: ALPHA + (w - 1) * m / B,
    RING: lambda w, m: 2 * (w - 1) * ALPHA + 2 * (w - 1) / w * m / B,
}


@pytest.mark.parametrize("text", CLOSED_FORMS)
@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("numel", [1_000, 1_000_003])
def test_times_are_the_closed_forms(text, workers, numel):
    # Not exactly: no number of workers divides the larger size, so a chunk has up to one element more.
    expected = CLOSED_FORMS[text](workers, 4 * numel)
    assert communication(text, workers, numel) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("workers", "milliseconds"),
    [(2, (327.2, 81.9, 81.8, 81.9)), (4, (654.4, 123.0, 245.5, 123.0)), (8, (1308.6, 143.8, 572.8, 143.8))],
)
def test_times_of_resnet50_on_10_gbit(workers, milliseconds):
    """The derived reference table, which rounds to a tenth of a millisecond and M to 102.2 MB."""
    times = [1e3 * communication(text, workers, RESNET50) for text in (PS, SHARDED, BROADCAST, RING)]
    assert times == pytest.approx(milliseconds, rel=5e-4, abs=0.06)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_bytes_and_messages_of_the_table(workers):
    size = 4 * 64 * workers
    part = size // workers
    table = {
        PS: ([size], 1),
        "parameter_server:servers=2": ([size // 2] * 2, 2),
        SHARDED: ([part] * (2 * (workers - 1)), 2 * (workers - 1)),
        BROADCAST: ([size] * (workers - 1), workers - 1),
        RING: ([part] * (2 * (workers - 1)), 2 * (workers - 1)),
    }
    for text, expected in table.items():
        record = simulate(text, workers, Flat(size // 4))
        assert messages(record, 0) == expected, text
    server = messages(simulate(PS, workers, Flat(size // 4)), workers)[0]
    assert server == [size] * workers


def test_a_ring_sends_chunks_of_ceil_or_floor_and_2_w_less_1_m_in_all():
    workers, numel = 4, 1_003
    record = simulate(RING, workers, Flat(numel))
    sizes = [messages(record, rank)[0] for rank in range(workers)]
    assert {size for rank in sizes for size in rank} == {4 * 250, 4 * 251}
    assert all(len(rank) == 2 * (workers - 1) for rank in sizes)
    assert sum(map(sum, sizes)) == 2 * (workers - 1) * 4 * numel


def test_one_server_grows_linearly_and_a_ring_hardly_at_all():
    numel = 10_000_000
    servers = [communication(PS, workers, numel) for workers in (2, 4, 8, 16)]
    assert [time / servers[0] for time in servers] == pytest.approx([1, 2, 4, 8], rel=1e-2)
    rings = [communication(RING, workers, numel) for workers in (2, 4, 8, 16)]
    assert max(rings) < 2 * min(rings)
    assert rings[-1] == pytest.approx(2 * 4 * numel / B, rel=0.08)  # M (W - 1)/W is 6 % below M at W = 16


@pytest.mark.parametrize("workers", [3, 4, 8])
def test_order_when_bandwidth_decides(workers):
    numel = 24 * 400_000  # all numbers of workers divide it
    ring, sharded, broadcast, server = (communication(text, workers, numel) for text in (RING, SHARDED, BROADCAST, PS))
    assert ring <= sharded * (1 + 1e-9) < broadcast < server
    assert server / broadcast == pytest.approx(2 * workers / (workers - 1), rel=1e-2)


@pytest.mark.parametrize("workers", [4, 8])
def test_latency_decides_for_little_and_the_crossover_is_where_it_should_be(workers):
    assert communication(PS, workers, 16) == pytest.approx(2 * ALPHA, rel=1e-2)
    assert communication(RING, workers, 16) == pytest.approx(2 * (workers - 1) * ALPHA, rel=1e-2)
    crossover = B * ALPHA * (workers - 2) / (workers - 1 + 1 / workers) / 4
    for factor, ring_wins in ((0.98, False), (1.02, True)):
        numel = round(crossover * factor)
        assert (communication(RING, workers, numel) < communication(PS, workers, numel)) == ring_wins


def test_a_colocated_server_per_worker_is_sharded_peer_to_peer():
    workers, numel = 4, 400_000
    servers = simulate(f"parameter_server:servers={workers},placement=colocated", workers, Flat(numel))
    peers = simulate(SHARDED + ",sends=all_at_once", workers, Flat(numel))
    assert step_time(servers) == pytest.approx(step_time(peers), rel=1e-9)
    # At the end of the run each worker tells each server elsewhere with one element.
    ends = 4 * (workers - 1)
    carried = {name: nbytes - ends for name, nbytes in servers.link_bytes.items()}
    assert carried == pytest.approx(peers.link_bytes)


def test_a_giant_tensor_makes_its_server_the_hot_spot():
    even = communication("parameter_server:servers=2", 4, 100_000)
    whole = communication("parameter_server:servers=2,shard=tensors", 4, 100_000)  # one tensor: one server has it all
    assert whole == pytest.approx(communication(PS, 4, 100_000))
    assert even < 0.6 * whole


@pytest.mark.parametrize("exchange", ["ring", "native"])
@pytest.mark.parametrize("workers", [2, 4])
def test_overlap_hides_communication_behind_backward(exchange, workers):
    task, batch = Layers(), 16_384 * workers

    def cycle(settings):
        text = f"synchronous:exchange={exchange},{settings}"
        return step_time(simulate(text, workers, task, batch=batch, compute=Roofline()))

    alone = step_time(simulate("single", 1, task, batch=16_384, compute=Roofline()))
    apart = cycle("overlap=false,bucket_size=270kB")
    beside = cycle("overlap=true,bucket_size=270kB")
    travel = apart - alone
    # Adding gradients into the buckets is compute that one process alone does not have.
    assert max(alone, travel) * 0.99 <= beside <= apart
    assert beside < 0.9 * apart
    assert cycle("overlap=true,bucket_size=none") == pytest.approx(cycle("overlap=false,bucket_size=none"), rel=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        *CLOSED_FORMS,
        "synchronous:bucket_size=270kB",
        "synchronous:bucket_size=270kB,exchange=ring",
        "synchronous:overlap=false,bucket_size=600kB",
        "parameter_server:servers=2,placement=colocated",
        "parameter_server:servers=3,shard=tensors",
    ],
)
def test_simulated_steps_take_what_the_cost_says(text):
    task, workers, batch = Layers(), 4, 4 * 16_384
    simulated = step_time(simulate(text, workers, task, batch=batch, compute=Roofline()))
    assert simulated == pytest.approx(cost(text, workers, task, batch).step_time, rel=1e-2)


@pytest.mark.parametrize("text", ["single", "synchronous", SHARDED, BROADCAST])
def test_one_worker_sends_nothing(text):
    record = simulate(text, 1, Layers(), batch=4_096, compute=Roofline())
    expected = cost(text, 1, Layers(), 4_096)
    assert record.logs[0].ops == []
    assert expected.exposed_communication == 0 and expected.sent[0].nbytes == 0
    assert step_time(record) == pytest.approx(expected.compute, rel=1e-2)


def test_the_cost_says_which_reading_is_used():
    notes = cost(SHARDED, 4, Flat(100), 4).notes + cost(BROADCAST, 4, Flat(100), 4).notes
    assert notes == (
        "sends one_at_a_time: 2 (W - 1) sequential latency terms",
        "sends one_at_a_time: W - 1 sequential latency terms",
    )


def test_the_closed_form_bounds_of_overlap():
    task, workers, batch = Layers(), 4, 4 * 16_384
    workload = task_workload(task)
    place = Placement(CLUSTER, workers)
    whole = Synchronous(overlap=False, bucket_size=270_000, exchange="ring").cost(workload, place, batch)
    hidden = Synchronous(overlap=True, bucket_size=270_000, exchange="ring").cost(workload, place, batch)
    assert max(whole.compute, whole.exposed_communication) <= hidden.step_time <= whole.step_time
    total = hidden.exposed_communication + hidden.hidden_communication
    assert total == pytest.approx(whole.exposed_communication)
