"""What figures are predicted by, on models and machines small enough to know the answer."""

import math

import pytest

from geartrain.errors import ClusterError, ConfigurationError, StrategyError, UnknownName
from geartrain.validation.quantities import (
    bus_bandwidth,
    bytes_per_step,
    communication_time,
    compute_ratio,
    efficiency,
    efficiency_ratio,
    exposed_share,
    load_table,
    messages_per_step,
    speedup,
    step_time,
    throughput,
    throughput_ratio,
    time_ratio,
    traffic_factor,
    workload_of,
)

# 10 Gbit/s = 1.25 GB/s and no latency: 4 MB a gradient; forward and backward of a sample take 1 and 2 ms.
WIRE = {"base": "ethernet-10g", "topology": {"wire": {"latency": "0 s"}}}
MODEL = {"parameters": 1_000_000, "tensors": 4, "forward": "15.7 GFLOP"}
RING = {"strategy": "synchronous:bucket_size=none,overlap=false", "cluster": WIRE, "workload": MODEL}
SETTING = {**RING, "ranks": 4, "batch": 16}
SECONDS = 2 * 3 / 4 * 4e6 / 1.25e9


@pytest.mark.parametrize("simulate", [False, True])
def test_a_step_that_can_be_written_down(simulate):
    setting = {**SETTING, "simulate": simulate}
    computing = step_time(**setting) - SECONDS
    assert 0.012 < computing < 0.0121  # and a little for moving gradients and the update
    assert communication_time(**setting) == pytest.approx(SECONDS, rel=1e-9)
    assert exposed_share(**setting) == pytest.approx(SECONDS / step_time(**setting), rel=1e-9)
    assert throughput(**setting) == pytest.approx(16 / step_time(**setting), rel=1e-12)
    assert bytes_per_step(**setting) == 6e6
    assert messages_per_step(**setting) == 6
    assert bytes_per_step(of="all", **setting) == 24e6


@pytest.mark.parametrize("simulate", [False, True])
def test_the_busiest_rank_may_be_a_server(simulate):
    setting = {**SETTING, "strategy": "parameter_server", "simulate": simulate}
    assert bytes_per_step(of="worker", **setting) == 4e6
    assert bytes_per_step(of="busiest", **setting) == 16e6


def test_speedups():
    alone = {**SETTING, "strategy": "single", "ranks": 1}
    weak = throughput(**SETTING) / throughput(**{**alone, "batch": 4})
    assert speedup(**SETTING) == pytest.approx(weak)
    assert efficiency(**SETTING) == pytest.approx(weak / 4)
    strong = step_time(**alone) / step_time(**SETTING)
    assert speedup(scaling="strong", **SETTING) == pytest.approx(strong)
    other = {**SETTING, "strategy": "parameter_server"}
    against = step_time(**other) / step_time(**SETTING)
    assert speedup(against="parameter_server", **SETTING) == pytest.approx(against)
    assert time_ratio(a=other, b=SETTING) == pytest.approx(against)
    assert throughput_ratio(a=other, b=SETTING) == pytest.approx(1 / against)
    assert efficiency_ratio(a=SETTING, b=SETTING) == 1


@pytest.mark.parametrize("simulate", [False, True])
def test_computing_is_calibrated_by_one_worker_alone(simulate):
    setting = {**SETTING, "alone": 50.0, "simulate": simulate}
    assert step_time(**setting) - SECONDS == pytest.approx(4 / 50, rel=0.01)
    assert speedup(**setting) == pytest.approx(throughput(**setting) / 50, rel=1e-6)


def test_strategies_may_be_tables():
    table = {"name": "synchronous", "bucket_size": "none", "overlap": False}
    assert step_time(**{**SETTING, "strategy": table}) == step_time(**SETTING)


def test_clusters_may_be_tables():
    faster = load_table({"base": "ethernet-10g", "topology": {"wire": {"rate": "25 Gbit/s"}}})
    assert faster.topology.wire.rate == 3.125e9 and faster.topology.wire.latency == 50e-6
    other = load_table({"base": "ethernet-10g", "nodes": [{"device": {"flops": {"fp32": "1 TFLOP/s"}}}]})
    assert other.nodes[0].device.flops_of("fp32") == 1e12 and other.nodes[0].device.flops_of("fp64") == 7.8e12
    assert compute_ratio(a="ethernet-10g", b={"base": "ethernet-10g"}) == 1
    matrix = {"kind": "matrix", "rate": [["-", "1 GB/s"], ["1 GB/s", "-"]], "latency": [["-", "0 s"], ["0 s", "-"]]}
    sites = load_table({"base": "ethernet-10g", "nodes": [{"count": 2}], "topology": matrix})
    assert sites.topology.kind == "matrix"
    with pytest.raises(ClusterError, match=r"topology.wire.rat: unknown key \(did you mean 'rate'"):
        load_table({"base": "ethernet-10g", "topology": {"wire": {"rat": "25 Gbit/s"}}})
    with pytest.raises(ClusterError, match="nodes: missing"):
        load_table({"name": "half"})


def test_workloads_may_be_tables():
    workload = workload_of({"parameters": 10, "tensors": 3, "forward": "6 FLOP", "backward": "9 FLOP"})
    assert [p.numel for p in workload.parameters] == [4, 3, 3]
    assert sum(layer.backward_flop for layer in workload.layers) == 9
    with pytest.raises(UnknownName, match="did you mean 'parameters'"):
        workload_of({"parameter": 10})
    with pytest.raises(ConfigurationError, match="whole numbers"):
        workload_of({"parameters": 1.5})


def test_collectives():
    assert traffic_factor(collective="all_reduce", ranks=8, size=8000, algorithm="ring") == 1.75
    given = {"collective": "all_reduce", "cluster": WIRE, "algorithm": "ring", "size": 8_000_000}
    assert bus_bandwidth(ranks=8, **given) == pytest.approx(1.25e9)
    assert bus_bandwidth(ranks=2, **given) == pytest.approx(1.25e9)
    slow = {**given, "cluster": "ethernet-10g", "size": 8}
    assert bus_bandwidth(ranks=2, **slow) == pytest.approx(8 / (2 * 50e-6), rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rank": 4}, UnknownName, "no key of a setting is called 'rank'; did you mean 'ranks'"),
        ({"strategy": "synchronos"}, UnknownName, "did you mean 'synchronous'"),
        ({"workload": "resnet51"}, UnknownName, "did you mean 'resnet50'"),
        ({"strategy": "single"}, StrategyError, "one process"),
    ],
)
def test_what_cannot_be_is_refused(changes, error, words):
    with pytest.raises(error, match=words):
        step_time(**{**SETTING, **changes})


def test_what_is_missing_is_named():
    with pytest.raises(ConfigurationError, match="missing: ranks, batch"):
        step_time(**RING)
    with pytest.raises(UnknownName, match="no scaling is called 'week'"):
        speedup(scaling="week", **SETTING)
    with pytest.raises(UnknownName, match="part of the traffic"):
        bytes_per_step(of="server", **SETTING)
    assert not math.isnan(step_time(**SETTING))
