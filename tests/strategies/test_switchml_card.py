"""What must hold of SwitchML (arXiv 1903.06701) on the engines; the protocol itself is tested beside its code.

n workers, wires of B bytes per second each way, round trip RTT to the switch and back.
"""

from dataclasses import replace

import pytest
import torch

from geartrain.cluster import Star, Wire
from geartrain.cluster.load import load_cluster
from geartrain.cluster.placement import Placement
from geartrain.collectives.aggregation import drive
from geartrain.collectives.aggregation.drive import Settings
from geartrain.collectives.aggregation.packets import HEADER_SIZE
from geartrain.collectives.aggregation.stream import extra_packets
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import PlacementError, RunError, StrategyError
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from geartrain.strategies.switchml import SwitchML
from geartrain.strategies.switchml_cost import Path, aggregation_time, elements_per_second, gain_over_ring
from tests.conformance.harness import Steps, plain_loop, run, train
from tests.conformance.tasks import Curve, Golden
from tests.emu.possible import cluster
from tests.strategies.switched import SWITCH, Sums, packets_sent
from tests.strategies.test_ps_p2p_ring_card import communication

CLUSTER = load_cluster("ethernet-10g")
B, RTT = 1.25e9, 50e-6  # the latency of the wire is that of a whole route: half of it to the switch
SETTINGS = Settings(slots=64, width=256, factor=None, timeout=1e-3, loss=0.0, burst=8)


def simulated(main, workers, seed=0):
    return SimulatedEngine().run(main, CLUSTER, workers=workers, services=SWITCH, seed=seed)


def seconds(settings, numel, workers=4):
    """Of the second sum: in the first one workers begin with their groups."""
    results = simulated(Sums(settings, (numel, numel)), workers).results
    return max(took[1] for _, took in results[:workers])


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_integers_are_exact_under_loss_for_any_length(workers):
    settings = replace(SETTINGS, slots=3, width=8, loss=0.05, burst=2)
    main = Sums(settings, (1, 8, 24, 25, 100), torch.int32)
    for tensors, _ in simulated(main, workers).results[:workers]:
        assert all(torch.equal(found, exact) for found, exact in zip(tensors, main.exact(workers), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_all_workers_get_the_same_bits(dtype):
    main = Sums(replace(SETTINGS, loss=0.02, width=16, slots=8), (1000,), dtype)
    results = [tensors[0] for tensors, _ in simulated(main, 3).results[:3]]
    assert all(torch.equal(results[0], other) for other in results[1:])
    coarse = 0.05 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(results[0], main.exact(3)[0], rtol=coarse, atol=coarse)


@pytest.mark.parametrize("factor", [None, 2.0**20])
def test_bytes_of_a_worker_are_packets_times_their_size_whatever_n(factor):
    numel = 10_000
    chunks = -(-numel // SETTINGS.width)
    short = extra_packets(chunks, SETTINGS.slots, ahead=factor is None)
    wanted = chunks * SETTINGS.packet_size + short * HEADER_SIZE, chunks + short
    for workers in (2, 3, 7):
        record = simulated(Sums(replace(SETTINGS, factor=factor), (numel,)), workers)
        assert {packets_sent(record, rank) for rank in range(workers)} == {wanted}
        assert packets_sent(record, workers) == (workers * wanted[0], workers * wanted[1])


def test_loss_is_drawn_from_the_seed():
    main = Sums(replace(SETTINGS, loss=0.02), (50_000,))
    first, again, other = simulated(main, 2, 1), simulated(main, 2, 1), simulated(main, 2, 2)
    assert first.logs == again.logs
    assert packets_sent(first, 0) != packets_sent(other, 0)
    assert torch.equal(first.results[0][0][0], other.results[0][0][0]), "what is lost changes no sum"


def test_what_is_lost_and_when_does_not_depend_on_numbers():
    main = Steps(parse("switchml:payload=8B,slots=2,loss=0.1"), Golden(), steps=2, batch=8)
    shapes, numbers = run(SimulatedEngine(), main, 3, meta=True), run(SimulatedEngine(), main, 3)
    assert [log.ops for log in shapes.logs] == [log.ops for log in numbers.logs]


def test_time_grows_with_loss():
    times = [seconds(replace(SETTINGS, loss=loss), 60_000, 2) for loss in (0.0, 0.003, 0.05)]
    assert times[0] < times[1] < times[2]


# Time


def test_time_is_flat_in_workers_linear_in_length_and_that_of_the_closed_form():
    by_workers = [seconds(SETTINGS, 100_000, workers) for workers in (2, 4, 8)]
    assert by_workers == pytest.approx([by_workers[0]] * 3, rel=1e-6)
    many = replace(SETTINGS, slots=128)
    for settings in (SETTINGS, many):  # too few to fill the wire, and enough
        for numel in (300, 10_000, 100_000):
            predicted = aggregation_time(
                Path(round_trip=RTT, rate=B),
                num_packets=-(-numel // settings.width),
                packet=settings.packet_size,
                slots=settings.slots,
                burst=settings.burst,
                ahead=True,
            )
            assert seconds(settings, numel, 2) == pytest.approx(predicted, rel=0.02)
    longer = seconds(many, 300_000, 2) - seconds(many, 100_000, 2)
    assert longer == pytest.approx(200_000 * many.packet_size / many.width / B, rel=0.02)


def test_throughput_falls_with_fewer_slots_than_fill_the_wire():
    large = replace(SETTINGS, width=1024, burst=1)
    times = {slots: seconds(replace(large, slots=slots), 200_000, 2) for slots in (2, 4, 8, 32)}
    window = B * RTT / large.packet_size  # packets that are under way on a full wire: 15
    assert times[4] / times[32] == pytest.approx((window + 2) / 4, rel=0.15)
    assert times[2] / times[4] == pytest.approx(2, rel=0.05)
    assert times[4] / times[8] == pytest.approx(2, rel=0.1)


def test_a_ring_takes_twice_n_minus_one_over_n_times_as_long():
    numel, workers = 1_000_000, 8
    ring = communication("synchronous:overlap=false,bucket_size=none,exchange=ring", workers, numel)
    mine = seconds(replace(SETTINGS, slots=256, width=2048, burst=16), numel, workers)
    assert ring / mine > gain_over_ring(workers), "a ring has 14 latencies besides"
    assert (ring - 2 * (workers - 1) * RTT) / mine == pytest.approx(gain_over_ring(workers), rel=0.08)


def test_elements_per_second_of_the_paper():
    assert elements_per_second(100e9 / 8, 1024, 76) == pytest.approx(2.89e9, rel=0.01)
    assert gain_over_ring(2) == 1 and gain_over_ring(10**6) == pytest.approx(2, rel=1e-5)


# The strategy


def test_equals_one_process_to_what_integers_can_hold():
    for text in ("switchml", "switchml:factor=1048576.0,loss=0.05,slots=4,payload=8B"):
        result = train(SimulatedEngine(), parse(text), Curve(), 3, steps=20, batch=12)
        for mine, plain in zip(result[0]["weights"], plain_loop(Curve(), steps=20, batch=12), strict=True):
            torch.testing.assert_close(mine, plain, rtol=2e-3, atol=2e-3)
        for other in result[1:3]:
            assert all(torch.equal(a, b) for a, b in zip(result[0]["weights"], other["weights"], strict=True))


def test_the_packet_is_what_the_cluster_takes():
    def payload(mtu):
        wire = Wire(rate="1 Gbit/s", latency="1 us", mtu=mtu) if mtu else Wire(rate="1 Gbit/s", latency="1 us")
        place = Placement(cluster(Star(wire=wire)), 2, SWITCH)
        return SwitchML().planned(None, place, 2).payload

    assert [payload(mtu) for mtu in ("1500 B", "9000 B", "65536 B", None)] == [1456, 8956, 65_488, 8956]
    assert SwitchML(payload=256).planned(None, Placement(CLUSTER, 2, SWITCH), 2) == SwitchML(payload=256)


def test_what_cannot_be_is_refused():
    for bad in ("payload=6B", "payload=1MiB", "slots=0", "factor=0.0", "timeout=0.0", "loss=0.6", "burst=0"):
        with pytest.raises(StrategyError):
            parse(f"switchml:{bad}")
    with pytest.raises(StrategyError, match="needs 1 service"):
        SwitchML().cost(task_workload(Curve()), Placement(CLUSTER, 2), 2)
    with pytest.raises(PlacementError, match="has none"):
        Placement(load_cluster("examples/clusters/two-sites.toml"), 2, SwitchML().roles(2).services)


def test_who_sends_nothing_is_named(monkeypatch):
    """With losses everybody would send again for ever."""
    monkeypatch.setattr(drive, "PATIENCE", 5.0)
    with pytest.raises(RunError, match=r"waited [56] s for worker\(s\) 1, from which"):
        simulated(Sums(replace(SETTINGS, loss=0.01), (500,), absent=1), 3)


@pytest.mark.parametrize(("pause", "loss"), [(20.0, 0.01), (100.0, 0.0)])
def test_nobody_is_named_for_a_pause_of_all_or_where_nothing_gets_lost(monkeypatch, pause, loss):
    """Patience is for those who wait for others: 2 and 4 s here, and 10 and 20 s where the simulator watches."""
    monkeypatch.setattr(drive, "PATIENCE", 5.0)
    main = Sums(replace(SETTINGS, loss=loss), (500, 500), torch.int32, pause=pause)
    for tensors, _ in simulated(main, 3).results[:3]:
        assert all(torch.equal(found, exact) for found, exact in zip(tensors, main.exact(3), strict=True))


def test_without_losses_the_simulator_knows_that_nobody_can_go_on():
    with pytest.raises(RunError, match="packets of datagrams"):
        simulated(Sums(SETTINGS, (500,), absent=1), 3)


# Sockets


@pytest.mark.multi
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_real_processes_sum_over_udp(loss):
    from geartrain.engines.real import RealEngine  # its processes need what only this engine imports

    main = Sums(replace(SETTINGS, loss=loss, slots=16), (1, 3000, 60_000))
    record = RealEngine().run(main, load_cluster("local"), workers=3, services=SWITCH)
    for tensors, _ in record.results[:3]:
        for found, mine, exact in zip(tensors, record.results[0][0], main.exact(3), strict=True):
            assert torch.equal(found, mine)
            torch.testing.assert_close(found, exact, rtol=1e-6, atol=1e-6)
    least = sum(-(-numel // 256) + min(16, -(-numel // 256)) for numel in main.numels)
    assert packets_sent(record, 0)[1] >= least


@pytest.mark.emu
@pytest.mark.xdist_group("processes")
def test_an_emulated_switch_sums_at_the_rate_of_the_wires():
    from geartrain.engines.emulated import EmulatedEngine

    wire = Wire(rate="50 Mbit/s", latency="0 s", mtu="9000 B")
    main = Sums(replace(SETTINGS, width=2239, timeout=0.1), (500_000,) * 3)
    record = EmulatedEngine().run(main, cluster(Star(wire=wire)), workers=3, services=SWITCH)
    for tensors, _ in record.results[:3]:
        assert torch.equal(tensors[2], record.results[0][0][2])
        torch.testing.assert_close(tensors[2], main.exact(3)[2], rtol=1e-6, atol=1e-6)
    best = min(max(times) for times in zip(*[took for _, took in record.results[:3]], strict=True))
    assert best >= 0.9 * 2e6 / wire.goodput, "not faster than the wire"
    carried = record.link_bytes["node-1.up"]
    assert 3 * 2e6 <= carried <= 3 * 2e6 * 1.5, "what was sent again is counted, too"
    assert record.link_bytes["node-1.down"] >= 3 * 2e6
