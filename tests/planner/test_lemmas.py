"""The lemmas against values worked out by hand, their inverses, and simulations of what they speak of."""

import math

import pytest
import torch
import torch.distributed as dist

from geartrain.cluster.load import parse_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.collectives.messages import post_recv, post_send, wait_all
from geartrain.cost.compute import Roofline, Work
from geartrain.engines.simulated import SimulatedEngine
from geartrain.planner import lemmas
from geartrain.runtime import charging

RATE = 1e9
CLUSTER = parse_cluster("""
name = "flat"
source = "made for tests"
[[nodes]]
name = "node"
count = "any"
[nodes.device]
name = "one"
source = "made for tests"
memory = "1 GiB"
memory_rate = "1000000 GB/s"
flops = { fp32 = "1 GFLOP/s" }
[topology]
kind = "star"
wire = { rate = "8 Gbit/s", latency = "0 s" }
""")


@pytest.mark.parametrize(
    ("devices", "wanted", "overhead"),
    [(4, 0.8, 0.2 / 2.2), (8, 0.8, 0.2 / 5.4), (2, 0.9, 0.1 / 0.8), (64, 0.5, 0.5 / 31)],
)
def test_overhead_by_hand_and_back(devices, wanted, overhead):
    assert lemmas.overhead_for(wanted, devices) == pytest.approx(overhead, rel=1e-12)
    assert lemmas.efficiency(devices, overhead) == pytest.approx(wanted, rel=1e-12)
    assert lemmas.devices_for(wanted, overhead, 1000) == devices
    assert lemmas.devices_for(wanted, overhead * 1.01, 1000) < devices
    assert lemmas.devices_for(wanted, overhead, devices - 1) == devices - 1


def test_speedup_by_hand_and_at_the_ends():
    assert lemmas.speedup(4, 0.1) == pytest.approx(3.142857, rel=1e-6)
    assert lemmas.speedup(8, 0.1) == pytest.approx(4.888889, rel=1e-6)
    assert lemmas.speedup(10**9, 0.1) == pytest.approx(11.0, rel=1e-6)
    assert lemmas.efficiency(1, 0.7) == 1.0
    assert lemmas.efficiency(100, 0.0) == 1.0
    assert lemmas.overhead_for(0.2, 5) == math.inf
    assert lemmas.devices_for(0.9, 0.0, 64) == 64
    assert lemmas.devices_for(1.0, 0.3, 64) == 1


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_speedup_is_that_of_workers_with_a_serial_rest(devices):
    """Each computes its share of a second; a rest of 0.1 s is not shared, since worker 0 does it for all."""

    def main(ctx):
        charging.charge(Work("share", flop=1e9 / devices, nbytes=0.0))
        dist.barrier()
        if ctx.rank == 0:
            charging.charge(Work("rest", flop=0.1e9, nbytes=0.0))
        dist.barrier()
        return ctx.clock.now()

    record = SimulatedEngine(Roofline()).run(main, CLUSTER, workers=devices, meta=True)
    assert 1.1 / max(record.results) == pytest.approx(lemmas.speedup(devices, 0.1), rel=1e-9)


@pytest.mark.parametrize(
    ("size", "workers", "rate", "servers"), [(244e6, 4, 1.25e9, 2), (553e6, 8, 1.25e9, 8), (553e6, 8, 12.5e9, 1)]
)
def test_servers_by_hand(size, workers, rate, servers):
    """AlexNet: 2 * 244 MB * 4 / 1.25 GB/s = 1.56; VGG-16: 7.08."""
    assert lemmas.servers_for(size, workers, rate, 1.0) == servers


def test_servers_at_the_edges():
    assert lemmas.servers_for(RATE, 1, RATE, 1.0) == 2
    assert lemmas.servers_for(RATE, 1, RATE, 1.0, duplex=True) == 1
    assert lemmas.servers_for(0, 8, RATE, 1.0) == 1
    assert lemmas.servers_for(RATE, 8, RATE, 0.0) is None
    assert lemmas.servers_for(RATE, 4, RATE, 1.0, largest_share=0.125) == 8
    assert lemmas.servers_for(RATE, 4, RATE, 1.0, largest_share=0.126) is None
    assert lemmas.round_time(RATE, 4, 8, RATE, 0.5, largest_share=0.5) == 4.0
    assert lemmas.round_time(RATE, 4, 100, RATE, 0.5, worker_rate=RATE) == 2.0


def exchange(ctx, servers, numel, rounds):
    """A worker's or a server's side of rounds: shards are pushed, then pulled."""
    workers, group = ctx.num_workers, ctx.everyone
    for _ in range(rounds):
        if ctx.role == "worker":
            shards = list(torch.zeros(numel, device="meta").chunk(servers))
            wait_all([work for s, shard in enumerate(shards) for work in post_send(shard, workers + s, group, 1)])
            wait_all([work for s, shard in enumerate(shards) for work in post_recv(shard, workers + s, group, 2)])
        else:
            shard = torch.zeros(numel // servers, device="meta")
            wait_all([work for w in range(workers) for work in post_recv(shard, w, group, 1)])
            wait_all([work for w in range(workers) for work in post_send(shard, w, group, 2)])


def simulated_round(servers, seconds, workers=4, numel=12_000_000, rounds=4):
    """Mean time of rounds in which workers compute while the exchange of the round before is under way."""

    def main(ctx):
        lane = ctx.spawn(lambda: exchange(ctx, servers, numel, rounds), "exchange")
        if ctx.role == "worker":
            for _ in range(rounds):
                charging.charge(Work("round", flop=seconds * 1e9, nbytes=0.0))
        lane.join()
        return ctx.clock.now()

    services = [ServicePlace("server")] * servers
    record = SimulatedEngine(Roofline()).run(main, CLUSTER, workers=workers, services=services, meta=True)
    return max(record.results) / rounds


@pytest.mark.parametrize("seconds", [0.1, 0.128, 0.2, 0.5])
def test_a_round_is_computing_alone_exactly_from_the_lemmas_servers_on(seconds):
    """48 MB of parameters, 4 workers, 1 GB/s: 0.384 s of exchange with one server."""
    size, workers = 48e6, 4
    bound = lemmas.servers_for(size, workers, RATE, seconds)
    assert bound == math.ceil(0.384 / seconds - 1e-9)
    assert simulated_round(bound, seconds) == pytest.approx(seconds, rel=2e-3)
    if bound > 1:
        fewer = simulated_round(bound - 1, seconds)
        assert fewer == pytest.approx(0.384 / (bound - 1), rel=2e-3)
        assert fewer > seconds * 1.05
        assert fewer == pytest.approx(lemmas.round_time(size, workers, bound - 1, RATE, seconds), rel=2e-3)
