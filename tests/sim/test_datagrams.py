"""Datagrams under the virtual clock: nobody waits to send, batches arrive in order, times written down by hand."""

import numpy as np

from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import ServicePlace
from geartrain.engines.simulated import SimulatedEngine

LATENCY, RATE = 50e-6, 10e9 / 8
CLUSTER = load_cluster("ethernet-10g")


def simulated(main, workers=2, services=()):
    return SimulatedEngine().run(main, CLUSTER, workers=workers, services=services)


def packets(count, size, value):
    return np.full((count, size), value, np.uint8)


def test_a_sender_goes_on_at_once_and_batches_come_in_order():
    def main(ctx):
        endpoint = ctx.datagrams(1000)
        if ctx.rank == 0:
            endpoint.send([1], packets(10, 1000, 1))
            endpoint.send([1], packets(10, 1000, 2))
            return ctx.clock.now()
        came = []
        while len(came) < 2:
            came += [(ctx.clock.now(), batch) for batch in endpoint.receive()]
        return [(int(batch[0, 0]), batch.shape) for _, batch in came], [ctx.clock.now()]

    sent, (came, (end,)) = simulated(main).results
    assert sent == 0
    assert came == [(1, (10, 1000)), (2, (10, 1000))]
    assert abs(end - (20_000 / RATE + LATENCY)) < 1e-12


def test_one_deadline_is_one_moment_and_nothing_is_lost_by_it():
    def main(ctx):
        endpoint = ctx.datagrams(1000)
        if ctx.rank == 0:
            ctx.clock.sleep(1.0)
            endpoint.send([1], packets(1, 8, 7))
            return None
        early = endpoint.receive(0.25), ctx.clock.now()
        late = endpoint.receive(5.0)
        return early, [batch.tolist() for batch in late], ctx.clock.now()

    _, (early, late, end) = simulated(main).results
    assert early == ([], 0.25)
    assert late == [[[7] * 8]] and 1.0 < end < 1.001


def test_a_switch_sends_to_all_at_once_and_packets_of_one_length_come_together():
    def main(ctx):
        endpoint = ctx.datagrams(1000)
        if ctx.role == "switch":
            endpoint.send(range(ctx.num_workers), packets(100, 1000, 3))
            endpoint.send(range(ctx.num_workers), packets(2, 8, 4))
            return None
        ctx.clock.sleep(1.0)  # both batches wait in the inbox
        return [batch.shape for batch in endpoint.receive()], ctx.clock.now()

    record = simulated(main, 3, [ServicePlace("switch", "switch")])
    assert record.results[:3] == [([(100, 1000), (2, 8)], 1.0)] * 3
    first, second = record.logs[3].ops
    assert (first.nbytes, first.messages, second.nbytes, second.messages) == (300_000, 300, 48, 6)
    assert abs(first.done - 100_000 / RATE) < 1e-12, "each worker has a wire of its own"


def test_what_is_sent_in_an_operation_is_counted_in_it():
    def main(ctx):
        endpoint = ctx.datagrams(1000)
        with endpoint.operation("all_reduce", 5000, range(2)):
            endpoint.send([1 - ctx.rank], packets(5, 1000, ctx.rank))
            endpoint.receive()

    record = simulated(main)
    for log in record.logs:
        (op,) = log.ops
        assert (op.kind, op.nbytes, op.messages, op.size, op.peers) == ("all_reduce", 5000, 5, 5000, (0, 1))
        assert abs(op.done - (5000 / RATE + LATENCY)) < 1e-12
    assert record.logs[0].ops[0].key == record.logs[1].ops[0].key
