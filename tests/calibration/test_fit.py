"""From pairs to a topology: what counts as alike, and what is left to a matrix."""

import random

import pytest

from geartrain.calibration.collectives import asks
from geartrain.calibration.description import Found
from geartrain.calibration.devices import DeviceRates
from geartrain.calibration.fit import ANY, NOISY, REAL, Tolerance, fit_machines, fit_pairs, tolerance_for
from geartrain.calibration.pairs import FEW, PairTimes, Way, all_pairs, first_pairs, ways
from geartrain.calibration.surroundings import Surroundings


def same(value):
    return value


def star(ups, downs, latencies, spread=0.0):
    noise = random.Random(1)
    return {
        (a, b): Way(
            (latencies[a] + latencies[b]) / 2 * (1 + noise.uniform(0, spread)),
            min(ups[a], downs[b]) * (1 - noise.uniform(0, spread)),
        )
        for a, b in all_pairs(len(ups))
    }


def test_noise_makes_no_wires_of_their_own():
    fit = fit_pairs(star([1e9] * 5, [1e9] * 5, [1e-4] * 5, spread=0.04), 5, REAL, same)
    assert fit.topology.kind == "star" and fit.wires == () and fit.any_number
    assert fit.topology.wire.rate == pytest.approx(1e9, rel=0.04)


def test_a_slow_wire_is_found_in_noise():
    fit = fit_pairs(star([1e9, 1e9, 2e8, 1e9], [1e9, 1e9, 2e8, 1e9], [1e-4] * 4, spread=0.04), 4, REAL, same)
    (override,) = fit.wires
    assert (override.node, override.direction) == (2, "both")
    assert override.rate == pytest.approx(2e8, rel=0.04) and not fit.any_number


def test_one_slow_pair_is_no_star():
    pairs = star([1e9] * 4, [1e9] * 4, [1e-4] * 4)
    pairs[1, 2] = Way(1e-4, 5e8)
    fit = fit_pairs(pairs, 4, REAL, same)
    assert fit.topology.kind == "matrix" and fit.topology.rate[1][2] == 5e8
    assert fit_pairs({pair: way for pair, way in pairs.items() if pair != (0, 3)}, 4, REAL, same) is None


def test_two_ranks_whose_ways_differ():
    fit = fit_pairs({(0, 1): Way(1e-4, 1e9), (1, 0): Way(1e-4, 3e8)}, 2, REAL, same)
    assert fit.topology.kind == "star" and {wire.node for wire in fit.wires} == {0, 1}
    assert fit.residual == (0.0, 0.0)


def test_machines_need_as_many_ranks_each():
    pairs = star([1e9] * 4, [1e9] * 4, [1e-4] * 4)
    for nodes in ((0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 0, 0), (0, 1, 2, 3)):
        assert fit_machines(pairs, nodes, REAL, same, lambda: True) is None
    fit = fit_machines(pairs, (0, 0, 1, 1), REAL, same, lambda: False)
    assert (fit.topology.wire_per, fit.devices_per_node) == ("device", 2)


def test_tolerance_follows_the_spread_within_bounds():
    def of(spread, exact=False):
        return tolerance_for({(0, 1): Way(1.0, 1.0, spread, spread)}, exact)

    assert of(0.0) == REAL and of(9.0) == NOISY and of(0.0, exact=True) == Tolerance(1e-6, 1e-6)
    assert of(0.1).rate == 0.1 and of(0.1).latency == REAL.latency


def test_both_ways_have_a_rate_of_their_own():
    size, there, back, latency = 10**6 + FEW, 1e8, 2e7, 1e-3
    ping = 2 * latency + FEW / there + FEW / back
    times = {
        (0, 1): PairTimes(ping, ping, size, ping + 10**6 / there, 1.0, 1, 1),
        (1, 0): PairTimes(2 * ping, ping, size, 2 * ping + 10**6 / back, 1.0, 1, 1),
    }
    found = ways(times)
    assert (found[0, 1].rate, found[1, 0].rate) == pytest.approx((there, back))
    assert found[0, 1].latency == found[1, 0].latency == pytest.approx(latency)


def test_first_pairs_reach_every_rank_both_ways():
    assert first_pairs(8) == all_pairs(8)
    for ranks in (9, 16, 31):
        pairs = first_pairs(ranks)
        assert len(set(pairs)) == len(pairs) <= 4 * ranks and all((b, a) in pairs for a, b in pairs)
        assert {a for a, _ in pairs} == {b for _, b in pairs} == set(range(ranks))


def test_sizes_are_whole_shares_and_each_once():
    asked = asks([100, 97, 4096], 6)
    assert asked[0] == ("all_reduce", 4)
    assert [size for kind, size in asked[1:] if kind == "reduce"] == [120, 4104]
    assert len(asked) == 1 + 6 * 2


class Site:
    """Where two ranks are, as far as notes ask."""

    def __init__(self, exact=False, here=True, shaped=False):
        self.num_ranks, self.exact, self.here, self.shaped, self.engine, self.leads = 2, exact, here, shaped, "x", True


def found(site, hosts=("a", "a"), load=0.0, kind="cpu"):
    around = [Surroundings((0, 1), host, 2, 1 << 30, load, "gloo", "", "2026-01-01") for host in hosts]
    device = DeviceRates(kind, 0, 1, {"fp32": 1e9}, 1e9, 1e9, 0.0, 0.0)
    return Found(site, around, [device, device], None)


def test_what_is_one_host_and_what_is_its_loopback():
    assert found(Site()).loopback
    assert not found(Site(), kind="accelerator").loopback and found(Site(), kind="accelerator").one_host
    assert not found(Site(shaped=True)).loopback and found(Site(shaped=True)).one_host
    assert found(Site(here=False)).loopback and not found(Site(here=False), hosts=("a", "b")).one_host
    assert not found(Site(exact=True, shaped=True)).one_host


def test_a_busy_host_is_told():
    assert any("load 1.5 on 2 cores" in note for note in found(Site(), load=1.5).notes())
    assert not any("busy" in note for note in found(Site(), load=0.9).notes())
    assert not any("busy" in note for note in found(Site(exact=True), load=9.0).notes())


def test_pairs_of_a_loopback_make_a_star_whatever_they_got():
    pairs = star([1e9, 1e8, 3e9], [1e9, 3e9, 1e8], [1e-4, 3e-4, 1e-4])
    fit = fit_pairs(pairs, 3, ANY, same)
    assert fit.topology.kind == "star" and fit.wires == () and fit.residual[0] > 1
