"""`--vary KEY=VALUES` as values."""

import pytest

from geartrain.cluster import load_cluster
from geartrain.errors import ConfigurationError
from geartrain.sweep.axis import check_axis, parse_vary


def test_a_range_of_a_quantity_is_even_in_logarithms():
    axis = parse_vary("links.rate=1Gbit/s..100Gbit/s:5")
    assert (axis.key, axis.quantity, axis.log, axis.whole) == ("links.rate", "rate", True, False)
    assert axis.values == pytest.approx([1.25e8, 3.95285e8, 1.25e9, 3.95285e9, 1.25e10], rel=1e-6)
    assert (axis.values[0], axis.values[-1]) == (1.25e8, 1.25e10)
    assert [axis.text(value) for value in axis.values[::2]] == ["1 Gbit/s", "10 Gbit/s", "100 Gbit/s"]
    assert len(parse_vary("links.rate=1Gbit/s..100Gbit/s").values) == 25


def test_a_range_from_zero_is_even():
    axis = parse_vary("links.latency=0us..1ms:5")
    assert axis.values == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3])
    assert not axis.log


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ranks=2..1024", (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)),
        ("ranks=3..20", (3, 6, 12, 20)),
        ("ranks=1..5:5", (1, 2, 3, 5)),  # 1, 1.5, 2.2, 3.3, 5 as whole numbers
        ("batch=64,8,8", (8, 64)),
        ("device.flops=1..4:3", (1.0, 2.0, 4.0)),
        ("device.memory=8GiB,16GiB", (2**33, 2**34)),
        ("strategy.exchange=native,ring", ("native", "ring")),
        ("topology.wire.rate=1Gbit/s,2Gbit/s", (1.25e8, 2.5e8)),
    ],
)
def test_values(text, values):
    found = parse_vary(text).values
    assert found == (pytest.approx(values) if isinstance(values[0], float) else values)


def test_a_size_as_a_strategy_reads_it():
    axis = parse_vary("strategy.bucket_size=1MiB..4MiB:3")
    assert [axis.setting(value) for value in axis.values] == ["1MiB", "2MiB", "4MiB"]
    assert parse_vary("strategy.period=1..4").setting(4) == "4"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("links.rate", "varies nothing"),
        ("rank=2..4", "did you mean 'ranks'"),
        ("links.rate=1..100", "takes a rate with its unit"),
        ("links.rate=1ms..2ms", "takes a rate with its unit"),
        ("links.rate=1Gbit/s..100", "takes a rate with its unit"),
        ("links.rate=1Gbps..2Gbps", "unknown unit"),
        ("device.flops=1GFLOP/s..2GFLOP/s", "takes plain numbers"),
        ("links.rate=10Gbit/s..1Gbit/s", "a range rises"),
        ("links.rate=1Gbit/s..2Gbit/s:1", "no number of values"),
        ("ranks=0..4", "whole numbers from 1 on"),
        ("ranks=1.5,2", "whole numbers from 1 on"),
        ("strategy.period=1,two", "mixes numbers and words"),
        ("strategy.exchange=native..ring", "from a number to a number"),
        ("links.rate=fast,slow", "takes a rate with its unit"),
        ("device.flops=fast,slow", "takes numbers"),
    ],
)
def test_what_cannot_be_varied(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_vary(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("topology.wire.rate=1,2", "takes a rate with its unit"),
        ("topology.wire.latency=1Gbit/s,2Gbit/s", "takes a time with its unit"),
        ("topology.wire.mtuu=1,2", "has no place"),
        ("inner.rate=1Gbit/s..2Gbit/s", "no wires inside"),
    ],
)
def test_a_place_that_the_cluster_lacks(text, message):
    with pytest.raises(ConfigurationError, match=message):
        check_axis(parse_vary(text), load_cluster("ethernet-10g"))
