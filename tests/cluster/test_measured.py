"""Origins: which texts and places a cluster file may have, and what stands in for what."""

import pytest

from geartrain.cluster import Cluster, bus_factor, dump_cluster, load_cluster, origin_of, parse_cluster
from geartrain.cluster.measured import CollectiveTime, Measurements
from geartrain.errors import ClusterError

GOOD = dump_cluster(load_cluster("ethernet-10g"))


def with_origins(*lines):
    return GOOD + "\n[origins]\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("text", ["measured", "measured: today, 20 repeats", "given by a data sheet", "default: 50 us"])
def test_an_origin_says_how_it_is_known(text):
    cluster = parse_cluster(with_origins(f'"topology.wire.rate" = "{text}"'))
    assert cluster.origins == {"topology.wire.rate": text}
    assert parse_cluster(dump_cluster(cluster)) == cluster


@pytest.mark.parametrize("text", ["", "chosen", "measuredly", "Measured: x", "from a data sheet, measured"])
def test_other_texts_are_no_origins(text):
    with pytest.raises(ClusterError, match=r"is no origin: it begins with measured, given or default"):
        parse_cluster(with_origins(f'"topology.wire.rate" = "{text}"'))


def test_a_misspelt_word_is_told():
    with pytest.raises(ClusterError, match="did you mean 'measured'"):
        parse_cluster(with_origins('"topology.wire.rate" = "mesured: x"'))


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("topology.wire.rte", "'topology.wire.rate'"),
        ("nodes[1].device.flops.fp32", r"'nodes\[0\].device.flops.fp32'"),
        ("node[0].count", r"'nodes\[0\].count'"),
    ],
)
def test_a_place_must_be_there(key, near):
    with pytest.raises(ClusterError, match=rf"is no key of this file; did you mean {near}\?"):
        parse_cluster(with_origins(f'"{key}" = "given"'))


def test_other_problems_come_first():
    broken = with_origins('"overrides.wires[0]" = "given"') + '\n[[overrides.wires]]\nnode = "node-0"\n'
    with pytest.raises(ClusterError, match="changes nothing") as error:
        parse_cluster(broken)
    assert "origins" not in str(error.value)


def test_a_table_speaks_for_what_stands_in_it():
    origins = {"topology": "given", "topology.rate": "measured", "topology.rate[0][1]": "default"}
    assert origin_of("topology.rate[0][1]", origins) == "default"
    assert origin_of("topology.rate[1][0]", origins) == "measured"
    assert origin_of("topology.latency[0][1]", origins) == "given"
    assert origin_of("nodes[0].count", origins) is None


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("all_gather", 8, 0.875),
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
    ],
)
def test_factors_of_bus_bandwidth(kind, ranks, factor):
    assert bus_factor(kind, ranks) == factor
    took = CollectiveTime(kind=kind, size=1000, time=2.0, least=1.0)
    assert took.algorithm_bandwidth() == 500
    assert took.bus_bandwidth(ranks) == 500 * factor


def test_what_was_measured_is_kept_and_found():
    took = CollectiveTime(kind="all_reduce", size=1024, time=1e-3, least=5e-4)
    measured = Measurements(ranks=2, backend="gloo", tiny_all_reduce=1e-4, reduction_rate=1e9, collectives=(took,))
    cluster = Cluster.model_validate({**parse_cluster(GOOD).model_dump(), "measured": measured.model_dump()})
    again = parse_cluster(dump_cluster(cluster))
    assert again == cluster and hash(again) == hash(cluster)
    assert again.measured.time_of("all_reduce", 1024) == 1e-3
    assert again.measured.time_of("all_reduce", 2048) is None


def test_unknown_keys_of_measurements_are_refused():
    text = GOOD + '\n[measured]\nranks = 2\nbackend = "gloo"\nreductionrate = "1 GB/s"\n'
    with pytest.raises(ClusterError, match=r"measured\.reductionrate: unknown key \(did you mean 'reduction_rate'\?\)"):
        parse_cluster(text)
