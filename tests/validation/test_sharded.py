"""Sharded training of large models: the closed form by hand, against the program simulated, and what must hold."""

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from geartrain.errors import ConfigurationError, UnknownName
from geartrain.validation import llm_scaling
from geartrain.validation.published import load_figures
from geartrain.validation.sharded import (
    DOUBLING,
    SIZES,
    TREE_RATE,
    Generation,
    Layout,
    Transformer,
    layer_times,
    sharded_step,
    tree_all_reduce,
)
from geartrain.validation.sharded_program import simulated_step

ROOT = Path(__file__).parents[2]
# Four layers of 4 million parameters: gathers among 16 take longer than computing.
SMALL = Transformer(layers=4, width=1000, inner=0, keys=1000, vocabulary=0)
DEVICES = Generation(peak=36e12, inner=100e9, wire=10e9, hop=1e-4, inner_hop=1e-6)


def test_a_step_by_hand():
    assert SMALL.parameters == 16_000_000
    flop = 6 * 16e6 + 12 * 4 * 1000 * 500
    assert SMALL.flop_per_token(500) == flop
    compute = flop * 1000 / 4 / 36e12  # a layer's, of two sequences of 500
    gather = 15 * 1e-4 + 15 / 16 * 8e6 / 10e9
    forward, backward = compute / 3, compute * 2 / 3
    assert forward < gather and backward < gather
    step = sharded_step(SMALL, DEVICES, Layout(ranks=16), batch=32, length=500)
    assert step.time == pytest.approx(8 * gather + forward + backward, rel=1e-12)
    assert step.compute == pytest.approx(4 * compute, rel=1e-12)
    assert step.exposed == pytest.approx(step.time - step.compute, rel=1e-12)
    assert step.communication == pytest.approx(8 * gather, rel=1e-12)
    assert step.mfu == pytest.approx(4 * compute / step.time, rel=1e-12)
    again = sharded_step(SMALL, DEVICES, Layout(ranks=16, reshard=True), batch=32, length=500)
    assert again.time == pytest.approx(11 * gather + forward, rel=1e-12)


@pytest.mark.parametrize("hop", [1e-5, 1e-3])
@pytest.mark.parametrize(
    "layout",
    [
        Layout(ranks=8),
        Layout(ranks=16),
        Layout(ranks=16, reshard=True),
        Layout(ranks=16, tensor=2),
        pytest.param(Layout(ranks=64), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_closed_form_is_the_simulated_program(layout, hop):
    model = replace(SIZES["7b"], layers=4)
    devices = replace(llm_scaling.generation("h100"), hop=hop)
    closed = sharded_step(model, devices, layout, batch=2 * layout.ranks)
    simulated = simulated_step(model, devices, layout, batch=2 * layout.ranks)
    assert simulated == pytest.approx(closed.time, rel=1e-6)  # a shard of a whole number of elements


def test_parts_add_up_and_one_device_waits_for_nobody():
    devices = llm_scaling.generation("h100")
    alone = sharded_step(SIZES["7b"], devices, Layout(ranks=1), batch=2)
    assert alone.exposed == 0 and alone.communication == 0 and alone.time == alone.compute
    assert alone.mfu == pytest.approx(devices.efficiency)
    for layout in (Layout(ranks=512), Layout(ranks=512, tensor=4), Layout(ranks=512, tensor=4, pipeline=2)):
        step = sharded_step(SIZES["7b"], devices, layout, batch=1024)
        assert step.compute + step.exposed + step.bubble == pytest.approx(step.time, rel=1e-12)
        assert 0 <= step.exposed <= step.communication
    assert step.bubble > 0


def weak(ranks, **layout):
    return sharded_step(SIZES["7b"], llm_scaling.generation("h100"), Layout(ranks=ranks, **layout), batch=2 * ranks).mfu


def test_weak_scaling_is_flat_until_gathers_show_and_falls_then():
    rates = [weak(ranks) for ranks in (8, 16, 32, 64, 128, 256, 512, 1024, 2048)]
    assert rates == sorted(rates, reverse=True)
    assert rates[4] > 0.98 * rates[0] and all(b < 0.8 * a for a, b in pairwise(rates[4:]))


def test_tensor_parallelism_has_an_optimum_in_the_middle_at_scale():
    assert weak(8) > weak(8, tensor=2) > weak(8, tensor=4)
    at_scale = [weak(512, tensor=degree) for degree in (1, 2, 4, 8, 16)]
    assert max(at_scale) == at_scale[2] and at_scale[3] > at_scale[4]


def test_strong_scaling_is_concave():
    ranks = (16, 32, 64, 128, 256)
    rates = [llm_scaling.strong_mfu(ranks=n) for n in ranks]
    assert rates == sorted(rates, reverse=True)
    total = [rate * n for rate, n in zip(rates, ranks, strict=True)]
    slopes = [(b - a) / n for a, b, n in zip(total, total[1:], ranks, strict=False)]
    assert slopes == sorted(slopes, reverse=True) and slopes[-1] > 0


def test_more_peak_alone_gives_less_than_it_promises():
    devices = llm_scaling.generation("h100")
    layout = Layout(ranks=128)
    slow, fast = (
        sharded_step(SIZES["7b"], one, layout, batch=256) for one in (devices, replace(devices, peak=2 * devices.peak))
    )
    assert slow.time / 2 < fast.time < slow.time and fast.mfu < slow.mfu


def test_shards_within_a_node_hide_what_shards_over_all_do_not():
    assert weak(2048, shards="node") > 0.9 * weak(8) > 5 * weak(2048)
    times = layer_times(
        SIZES["7b"],
        llm_scaling.generation("h100"),
        Layout(ranks=64, shards="node"),
        batch=128,
        length=4096,
    )
    nbytes = 2 * SIZES["7b"].parameters / 32
    assert times.gather == pytest.approx(7 * 3e-6 + 7 / 8 * nbytes / (450e9 * 350 / 400), rel=1e-12)
    assert times.scatter == pytest.approx(times.gather + tree_all_reduce(nbytes, 8), rel=1e-12)


def test_parameters_of_llama():
    # Published counts, less norms of 2 width a layer and one more.
    for name, count in (("7b", 6_738_415_616), ("13b", 13_015_864_320), ("70b", 68_976_648_192)):
        model = SIZES[name]
        assert model.parameters == count - (2 * model.layers + 1) * model.width


def test_constants_of_the_tree_are_the_fit_that_they_are_said_to_be():
    figures = [
        figure
        for figure in load_figures(ROOT / "validation" / "hw-scaling.toml").figure
        if figure.name.endswith("(fitted column)")
    ]
    assert len(figures) == 18

    def squares(doubling, rate):
        total = 0.0
        for figure in figures:
            size, nodes = figure.given["size"], figure.given["nodes"]
            moved = 2 * (8 * nodes - 1) / (8 * nodes) * size
            time = (math.sqrt(doubling * math.log2(nodes)) + math.sqrt(moved / rate)) ** 2
            total += math.log(moved / time / figure.published) ** 2
        return total

    best = squares(DOUBLING, TREE_RATE)
    for factor in (0.97, 1.03):
        assert squares(DOUBLING * factor, TREE_RATE) > best and squares(DOUBLING, TREE_RATE * factor) > best


def test_both_fits_meet_the_figures_they_are_fitted_on():
    for fit in ("threshold", "loss"):
        assert llm_scaling.best_mfu(devices="h100", fitted_on=fit) == pytest.approx(0.4077, rel=1e-6)
    assert llm_scaling.exposed_beyond() == 128
    change = llm_scaling.throughput_change(ranks=2048, base=128, fitted_on="loss")
    assert change == pytest.approx(-0.3722, rel=1e-6)


def test_what_cannot_be():
    with pytest.raises(ConfigurationError, match="3 x 1 ranks"):
        Layout(ranks=8, tensor=3)
    with pytest.raises(ConfigurationError, match="32 layers"):
        sharded_step(SIZES["7b"], DEVICES, Layout(ranks=32, pipeline=32), batch=32)
    with pytest.raises(UnknownName, match="h200"):
        llm_scaling.generation("h200")
    with pytest.raises(UnknownName, match="nothing"):
        llm_scaling.generation("h100", "nothing")
