"""Sweeps of a model so simple that crossings can be worked out by hand, and the warnings along axes."""

from dataclasses import replace

import pytest

from geartrain.cost.compute import Constant
from geartrain.predict.change import value_of
from geartrain.predict.closed import predict
from geartrain.sweep.axis import parse_vary
from geartrain.sweep.points import ONE_NODE
from geartrain.sweep.run import sweep
from geartrain.sweep.words import verdict
from geartrain.units import format_rate
from tests.predict.small import FLOPS, MEBI, cluster, question, workload

SIZE = 16 * MEBI
COMPUTE = 8 * 4 * 3e9 / FLOPS
PLAIN = "synchronous:overlap=false,bucket_size=none"


def swept(*vary, strategies=(PLAIN,), weak=True, **more):
    return sweep([question(name, **more) for name in strategies], [parse_vary(text) for text in vary], weak=weak)


def test_every_point_is_the_prediction_there():
    """step = C + 1.5 S / rate, for 4 ranks on a ring."""
    found = swept("links.rate=1Gbit/s,10Gbit/s")
    times = [point.predictions[0].step_time for point in found.points]
    assert times == pytest.approx([COMPUTE + 1.5 * SIZE / 1.25e8, COMPUTE + 1.5 * SIZE / 1.25e9])
    assert [dict(point.at) for point in found.points] == [{"links.rate": 1.25e8}, {"links.rate": 1.25e9}]


def test_more_ranks_bring_their_samples_or_share_a_batch():
    weak = [point.predictions[0].question for point in swept("ranks=2..8").points]
    assert [(one.ranks, one.batch) for one in weak] == [(2, 16), (4, 32), (8, 64)]
    strong = [point.predictions[0].question for point in swept("ranks=2..8", weak=False).points]
    assert [(one.ranks, one.batch) for one in strong] == [(2, 32), (4, 32), (8, 32)]
    both = [point.predictions[0].question for point in swept("batch_per_rank=1,2", "ranks=2,4").points]
    assert [(one.ranks, one.batch) for one in both] == [(2, 2), (4, 4), (2, 4), (4, 8)]


def test_the_rate_at_which_machines_begin_to_pay():
    """Four are as fast as one where 4 / (C + 1.5 S / r) = 1 / C: r = S / (2 C)."""
    crossings = swept("links.rate=10Mbit/s..100Gbit/s:9").crossings
    assert [(one.before, one.after) for one in crossings] == [(ONE_NODE, PLAIN)]
    assert crossings[0].at == pytest.approx(SIZE / (2 * COMPUTE), rel=1e-3)


def test_where_two_strategies_change_places():
    """Of period 2 half is sent, 0.75 S / r less, for more work in memory: equal where that takes 0.75 S / r more."""
    names = ("local_sgd:period=2", PLAIN)
    found = swept("links.rate=1Mbit/s..1000Gbit/s:9", strategies=names, cluster=cluster(memory_rate=1e9))
    local, plain = (one.compute for one in found.points[0].predictions)
    assert local > plain
    (crossing,) = [one for one in found.crossings if ONE_NODE not in (one.before, one.after)]
    assert (crossing.before, crossing.after) == names
    assert crossing.at == pytest.approx(0.75 * SIZE / (local - plain), rel=1e-3)
    told = [line for line in verdict(found) if line.startswith("fastest")]
    assert told == [f"fastest: {names[0]} up to links.rate {format_rate(crossing.at)}, {found.strategies[1]} beyond."]


def test_whole_numbers_cross_at_the_first_that_is_faster():
    """One worker's batch beats four below b samples: C grows with b, the wire's 1.5 S / r does not."""
    found = swept("batch_per_rank=1..1024", cluster=cluster(rate=1e8))
    (crossing,) = found.crossings
    assert (crossing.before, crossing.after) == (ONE_NODE, PLAIN)
    # 4 b / (c b + W) > b / c  <=>  3 c b > W
    wire, each = 1.5 * SIZE / 1e8, COMPUTE / 8
    assert crossing.at == int(wire / (3 * each)) + 1


def test_two_axes_and_a_cell_that_cannot_be():
    found = swept("batch=2,64", "ranks=2,4", strategies=(PLAIN, "single"))
    assert len(found.points) == 4
    errors = [[isinstance(one, str) for one in point.predictions] for point in found.points]
    assert errors == [[False, True], [True, True], [False, True], [False, True]]
    assert [point.winner for point in found.points] == [0, None, 0, 0]
    assert any(line.startswith("At ranks 2: ") for line in verdict(found))


def test_a_winner_fits():
    heavy = workload(activation=1e9)
    found = swept(
        "device.memory=1GiB,64GiB", strategies=("local_sgd:period=64", PLAIN), workload=heavy, cluster=cluster(rate=1e7)
    )
    assert [point.winner for point in found.points] == [0, 0]
    assert not found.points[0].predictions[0].fits


@pytest.mark.parametrize(
    ("vary", "strategies", "more", "message"),
    [
        ("links.rate=1Gbit/s,2Gbit/s", ("single",), {"ranks": 1}, "all ranks are on one node"),
        ("links.rate=1Tbit/s,2Tbit/s", ("pipe_sgd",), {}, "exposed communication is 0 on the whole axis"),
        ("device.memory_rate=1TB/s,2TB/s", (PLAIN,), {"model": Constant(1e-3)}, "does not ask the device"),
        ("strategy.period=2,4", ("local_sgd", PLAIN), {}, "it has no such setting"),
        ("device.memory=1GiB,2GiB", (PLAIN,), {}, "it decides only whether a run fits"),
    ],
)
def test_a_change_without_effect(vary, strategies, more, message):
    warnings = swept(vary, strategies=strategies, **more).warnings
    assert any("had no effect on" in line and message in line for line in warnings), warnings


def test_where_more_hardly_helps():
    (line,) = swept("links.rate=1Gbit/s..1000000Gbit/s:13").warnings
    assert line.startswith("from links.rate ") and "100% of the step is compute there" in line


def test_the_wrong_way():
    """A machine on which a faster wire made steps longer: its closed form would be wrong, or it would wait."""

    def odd(asked):
        one, more = predict(asked), value_of(asked.cluster, "links.rate") / 1e7
        return replace(one, step_time=one.step_time + more, wait=more)

    found = sweep([question(PLAIN)], [parse_vary("links.rate=1Gbit/s,2Gbit/s")], by=odd)
    (line,) = [line for line in found.warnings if "against what one expects" in line]
    assert "links.rate from 1 Gbit/s to 2 Gbit/s" in line and "its wait grows" in line
