"""Profiles: kept to the last bit, priced in order of what is known, on one lane and on two; by hand."""

import pytest

from geartrain.cluster.spec import Device
from geartrain.cost.compute import Launch, Roofline, Work, parse_compute, step_times
from geartrain.cost.curves import ProductFit, TimeCurve
from geartrain.cost.lookup import lookup_seconds
from geartrain.cost.profile import Overheads, Profile, Profiled, load_profile
from geartrain.cost.table import Entry, Table
from geartrain.errors import ConfigurationError, UnknownName
from geartrain.workload.spec import Kernel, Layer, Lookup, Workload

DEVICE = Device(
    name="by hand", flops={"fp32": 100.0}, memory=1000, memory_rate=10.0, launch_overhead=0.25, source="chosen"
)
RELU = ("aten.relu.default", ((4,), (4,)), ("float32",) * 2)
MM = ("aten.mm.default", ((2, 3), (3, 4), (2, 4)), ("float32",) * 3)


def profile(**changed):
    given = {
        "name": "by-hand",
        "host": "here",
        "date": "2030-01-02",
        "num_threads": 1,
        "source": "chosen",
        "device": DEVICE,
        "curves": {"elementwise": TimeCurve(((10.0, 1.0), (100.0, 10.0))), "update": TimeCurve(((10.0, 2.0),))},
        "fits": {"product/fp32": ProductFit(rate=48.0, halves=(0.0, 0.0, 0.0), overhead=0.5)},
        "overheads": Overheads(between=0.1, before={"default": 0.2}, after={}, inside={}, launch=0.3),
        "errors": {"elementwise": (4, 0.1, 1 / 3)},
        "origins": {"device": "given: by hand"},
    }
    return Profile(**{**given, **changed})


def seconds(work, **changed):
    return Profiled(profile(**changed)).seconds(work, DEVICE)


BARE = {"overheads": Overheads(between=0.0, before={}, after={}, inside={}, launch=0.0)}


def test_a_saved_profile_is_the_same_to_the_last_bit(workdir):
    table = Table("here", "2030-01-02", 1, "by hand", {RELU: Entry(1 / 3, 4.0, 32.0)})
    mine = profile(table=table, cache=1 << 20, cache_rate=1e11 / 3, queued=True)
    mine.save("mine.json")
    assert Profile.load("mine.json") == load_profile("./mine.json") == mine
    assert str(parse_compute("profile:mine.json")) == "profile:mine.json"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "geartrain profile 1"}'])
def test_file_that_is_no_profile(text, workdir):
    (workdir / "mine.json").write_text(text)
    with pytest.raises(ConfigurationError, match="no profile of a device"):
        parse_compute("profile:mine.json")


def test_profiles_that_do_not_exist():
    with pytest.raises(ConfigurationError, match="no profile can be read"):
        load_profile("nowhere/mine.json")
    with pytest.raises(UnknownName, match="profile"):
        load_profile("no-such-device")


def test_the_table_comes_first_then_fit_or_curve_then_the_roofline():
    relu = Work("aten.relu.default", 4.0, 50.0, key=RELU)
    table = Table("here", "2030-01-02", 1, "by hand", {RELU: Entry(7.0, 4.0, 32.0)})
    assert seconds(relu, table=table, **BARE) == 7.0
    assert seconds(relu, **BARE) == pytest.approx(5.0)
    assert seconds(Work("aten.mm.default", 48.0, 0.0, key=MM), **BARE) == pytest.approx(0.5 + 1.0)
    model = Profiled(profile(**BARE))
    copy = Work("aten.clone.default", 0.0, 50.0, key=("aten.clone.default", ((4,),), ("float32",)))
    assert model.seconds(copy, DEVICE) == 5.0  # bytes over memory rate; launches are among the overheads
    assert "1 kernels or layers, aten.clone.default (1)" in model.report()[1]


def test_other_types_have_fits_of_their_own():
    half = Work("aten.mm.default", 48.0, 0.0, "bf16", key=MM)
    fits = {"product/fp32": ProductFit(48.0, (0, 0, 0), 0.5), "product/bf16": ProductFit(96.0, (0, 0, 0), 0.5)}
    assert seconds(half, fits=fits, **BARE) == pytest.approx(0.5 + 0.5)


def test_a_convolution_takes_the_fit_of_the_nearest_kernel_and_its_backward_pass_twice_that():
    fits = {f"convolution{n}x{n}/fp32": ProductFit(float(n), (0, 0, 0), 0.0) for n in (1, 3, 7)}
    shapes = ((1, 2, 5, 5), (4, 2, 3, 3), (1, 4, 3, 3))
    flop = 2.0 * 9 * 4 * 18
    forward = Work("aten.convolution.default", flop, 0.0, key=("aten.convolution.default", shapes, ()))
    assert seconds(forward, fits=fits, **BARE) == pytest.approx(flop / 3)
    key = ("aten.convolution_backward.default", (shapes[2], *shapes[:2], *shapes[:2], (4,)), ())
    backward = Work("aten.convolution_backward.default", 2 * flop, 0.0, key=key)
    assert seconds(backward, fits=fits, **BARE) == pytest.approx(2 * flop / 3)
    own = {**fits, "convolution_backward3x3/fp32": ProductFit(6.0, (0, 0, 0), 0.0)}
    assert seconds(backward, fits=own, **BARE) == pytest.approx(2 * flop / 6)
    wide = ((1, 2, 5, 15), (4, 2, 1, 11), (1, 4, 5, 5))  # 11 is nearer to 9 than to 49
    flop = 2.0 * 25 * 4 * 22
    key = ("aten.convolution.default", wide, ())
    assert seconds(Work("aten.convolution.default", flop, 0.0, key=key), fits=fits, **BARE) == pytest.approx(flop / 3)


def test_look_ups_use_the_cache_where_it_is_known():
    key = ("aten.embedding.default", ((100, 128), (10,), (10, 128)), ("float32", "int64", "float32"))
    work = Work("aten.embedding.default", 0.0, 80.0 + 2 * 5120, key=key, lookup=Lookup(100, 128, 10.0))
    curve = {"curves": {"lookup": TimeCurve(((100.0, 1.0),))}}
    assert seconds(work, **curve, **BARE) == pytest.approx((80.0 + 2 * 5120) / 100)
    expected = lookup_seconds(work.lookup, 1, cache=10**6, cache_rate=1e3, memory_rate=10.0, rest=80.0 + 5120)
    assert seconds(work, cache=10**6, cache_rate=1e3, **curve, **BARE) == pytest.approx(expected)


def test_on_one_lane_the_host_s_time_is_added_by_operation():
    relu = Work("aten.relu.default", 4.0, 50.0, key=RELU)
    assert seconds(relu) == pytest.approx(0.1 + 0.2 + 0.3 + 5.0)
    known = Overheads(between=0.1, before={"aten.relu.default": 1.0}, after={"default": 2.0}, inside={}, launch=0.0)
    assert seconds(relu, overheads=known) == pytest.approx(0.1 + 1.0 + 5.0 + 2.0)
    run = Work("run", 0.0, 0.0, num_kernels=2, parts=(relu, relu))
    assert seconds(run, overheads=known) == pytest.approx(2 * (0.1 + 1.0 + 5.0 + 2.0))
    assert seconds(Work("update", 9.0, 60.0, num_kernels=3), **BARE) == pytest.approx(3 * 4.0)


def test_on_two_lanes_the_host_runs_ahead():
    relu = Work("aten.relu.default", 4.0, 50.0, key=RELU)
    known = Overheads(between=1.0, before={}, after={"default": 0.5}, inside={}, launch=0.0)
    model = Profiled(profile(queued=True, overheads=known))
    run = Work("run", 0.0, 0.0, num_kernels=2, parts=(relu, relu))
    assert model.launches(run, DEVICE) == (Launch(1.0, 5.0), Launch(1.5, 5.0), Launch(0.5, 0.0))
    assert model.seconds(run, DEVICE) == 11.0


def layered(kernels, backward, name="fc"):
    kernel = Kernel("aten.relu.default", (((0, 4),), ((0, 4),)), ("float32",) * 2, (0, 4), (0, 50.0))
    return Layer(
        name=name,
        num_kernels=kernels,
        num_backward_kernels=backward,
        forward_kernels=(kernel,) * kernels,
        backward_kernels=(kernel,) * backward,
    )


def test_step_times_walk_both_lanes():
    """Forward a, forward b, backward b, backward a, update; host 4 s a kernel, device 5, 5, 5, 5 and 2 s."""
    workload = Workload(name="two", source="chosen", layers=(layered(1, 1, "a"), layered(1, 1, "b")), update_kernels=1)
    known = Overheads(between=4.0, before={}, after={}, inside={}, launch=0.0)
    times = step_times(workload, DEVICE, 1, Profiled(profile(queued=True, overheads=known)))
    # The first kernel starts at 4 s; from then on the device is behind: the host is never waited for.
    assert (times.forward, times.backward) == ((9.0, 5.0), (5.0, 5.0))
    assert times.update == pytest.approx(0.2)  # of no parameters: what one byte takes
    slow = Profiled(profile(queued=True, overheads=Overheads(between=6.0, before={}, after={}, inside={}, launch=0.0)))
    # Bound by the host: a kernel every 6 s.
    assert step_times(workload, DEVICE, 1, slow).backward == (6.0, 6.0)


def test_without_overheads_two_lanes_are_one():
    workload = Workload(name="two", source="chosen", layers=(layered(3, 5, "a"), layered(2, 2, "b")), update_kernels=2)
    two = step_times(workload, DEVICE, 2, Profiled(profile(queued=True, **BARE)))
    one = step_times(workload, DEVICE, 2, Profiled(profile(**BARE)))
    assert two.forward == pytest.approx(one.forward)
    assert two.backward == pytest.approx(one.backward)


def test_layers_of_sums_only_are_priced_by_the_roofline_with_its_launches():
    layer = Work("fc forward", 200.0, 10.0, num_kernels=2)
    model = Profiled(profile())
    assert model.seconds(layer, DEVICE) == Roofline().seconds(layer, DEVICE) == 2 * 0.25 + 2.0
    assert "fc forward (1)" in model.report()[1]
