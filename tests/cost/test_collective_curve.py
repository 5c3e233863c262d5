"""Curves of collectives: the three pieces, and what a cluster that has one makes of it."""

import math

import pytest
import torch
import torch.distributed as dist

from geartrain.calibration import calibrate
from geartrain.cluster import Placement, load_cluster
from geartrain.cluster.measured import CollectiveCurve, CollectiveTime, Measurements, Sharing
from geartrain.cost.collective_curve import fit_curve
from geartrain.cost.placed import native_collective
from geartrain.engines.simulated import SimulatedEngine
from geartrain.errors import ConfigurationError

SIZES = [1 << power for power in range(6, 27)]
CURVE = CollectiveCurve(
    kind="all_reduce",
    ranks=2,
    overhead="100 us",
    size_flat="4 KiB",
    size_full="1 MiB",
    rate="8 Gbit/s",
    sigmoid=(2.0, 14.0, 0.5, 7.0),
)


def times(seconds, kind="all_reduce"):
    return [CollectiveTime(kind=kind, size=size, time=seconds(size), least=seconds(size)) for size in SIZES]


def test_three_pieces_by_hand():
    """Of two ranks the busiest link carries the size once. In the middle of the sigmoid it is at half of its height."""
    assert CURVE.seconds(1) == CURVE.seconds(4096) == 1e-4
    assert CURVE.seconds(1 << 14) == pytest.approx((1 << 14) / 10**8)
    assert CURVE.seconds(1 << 20) == pytest.approx((1 << 20) / 1e9 + 1e-4)
    assert CURVE.seconds(1 << 30) == pytest.approx((1 << 30) / 1e9 + 1e-4)


@pytest.mark.parametrize("sigmoid", [(2.0, 14.0, 0.5, 7.0), (9.0, 12.0, 3.0, 2.0), (0.0, 0.0, 1.0, 30.0)])
def test_more_bytes_never_take_less_time_at_the_seams(sigmoid):
    curve = CURVE.model_copy(update={"sigmoid": sigmoid})
    for seam in (4096, 1 << 20):
        assert curve.seconds(seam - 1) <= curve.seconds(seam) <= curve.seconds(seam + 1)
        assert 1e-4 <= curve.seconds(seam + 1) <= curve.seconds(1 << 21)


@pytest.mark.parametrize(
    ("kind", "ranks", "factor"), [("all_reduce", 4, 1.5), ("all_gather", 4, 0.75), ("reduce", 3, 1)]
)
def test_a_line_is_found_again(kind, ranks, factor):
    """alpha + f s / rate: the tenth by which the flat piece may move is the worst; large sizes are exact."""
    curve = fit_curve(kind, ranks, times(lambda size: 8e-5 + factor * size / 2e9, kind))
    errors = [abs(curve.seconds(size) / (8e-5 + factor * size / 2e9) - 1) for size in SIZES]
    assert max(errors) <= 0.12 and errors[-1] < 1e-9
    assert curve.rate == pytest.approx(2e9, rel=1e-2)
    seconds = [curve.seconds(size) for size in range(1, 1 << 22, 4097)]
    assert seconds == sorted(seconds)


def test_a_step_in_the_middle_is_followed():
    """Another protocol from 64 KiB on costs as much again: no line has that."""

    def seconds(size):
        return 1e-4 + size / 1e9 + (1e-4 if size > 1 << 16 else 0.0)

    curve = fit_curve("all_reduce", 2, times(seconds))
    errors = [abs(curve.seconds(size) / seconds(size) - 1) for size in SIZES]
    assert max(errors) <= 0.2 and sum(errors) / len(errors) <= 0.06


def test_too_few_sizes():
    with pytest.raises(ConfigurationError, match=r"all_reduce among 2 rank\(s\).* 3 size\(s\); measure at least 4"):
        fit_curve("all_reduce", 2, times(lambda size: 1e-4)[:3])


def with_measured(**more):
    measured = Measurements(ranks=2, backend="gloo", **more)
    return load_cluster("ethernet-10g").model_copy(update={"measured": measured})


def test_a_collective_takes_what_its_curve_says():
    place = Placement(with_measured(curves=(CURVE,)), 2)
    for nbytes in (4, 1 << 14):
        assert native_collective(place, "all_reduce", nbytes)[0] == pytest.approx(CURVE.seconds(nbytes))
    plain = Placement(load_cluster("ethernet-10g"), 2)
    assert native_collective(place, "all_gather", 4096) == native_collective(plain, "all_gather", 4096)
    three = Placement(with_measured(curves=(CURVE,)), 3)
    assert native_collective(three, "all_reduce", 4)[0] != CURVE.seconds(4)
    assert math.isclose(native_collective(three, "all_reduce", 4, ranks=(0, 2))[0], CURVE.seconds(4))


def test_ranks_that_share_a_host_are_slower():
    cluster = with_measured(sharing=(Sharing(ranks=4, slowdown=2.5, steals=0.3),))
    assert [Placement(cluster, ranks).speed(0) for ranks in (2, 4)] == [1.0, 0.4]
    assert [Placement(cluster, ranks).steals for ranks in (2, 4)] == [0.0, 0.3]


def test_the_simulator_takes_what_the_closed_form_takes():
    """A small, a middle and a large all-reduce of 2 ranks, each from when both are there."""
    sizes = (4, 1 << 14, 1 << 22)

    def program(ctx):
        ends = []
        for size in sizes:
            begin = ctx.clock.now()
            dist.all_reduce(torch.zeros(size // 4, device=ctx.device), group=ctx.workers)
            ends.append(ctx.clock.now() - begin)
        return ends

    cluster = with_measured(curves=(CURVE,))
    found = SimulatedEngine().run(program, cluster, workers=2, meta=True).results[0]
    place = Placement(cluster, 2)
    assert found == pytest.approx([native_collective(place, "all_reduce", size, 4)[0] for size in sizes])
    assert found == pytest.approx([CURVE.seconds(size) for size in sizes])


def test_bare_collectives_are_predicted_by_links():
    """A curve says what an all-reduce adds to computing, and is not held against what one takes after a barrier."""
    times = (CollectiveTime(kind="all_reduce", size=1 << 14, time=1.0, least=1.0),)
    (plain,) = calibrate.predict(with_measured(collectives=times))
    (curved,) = calibrate.predict(with_measured(collectives=times, curves=(CURVE,)))
    assert curved == plain and plain.simulated != CURVE.seconds(1 << 14)
