"""Prices by hand, models as text, and the times of a step."""

import pytest

from geartrain.cluster.spec import Device
from geartrain.cost.compute import Constant, Measured, Roofline, Work, parse_compute, step_times, update_work
from geartrain.cost.table import Entry, Table
from geartrain.errors import ConfigurationError, UnitError, UnknownName
from geartrain.workload.spec import Layer, Parameter, Workload

DEVICE = Device(
    name="by hand",
    flops={"fp32": 100.0, "fp16": 400.0},
    memory=1000,
    memory_rate=10.0,
    launch_overhead=0.5,
    source="chosen",
)
TABLE = Table(
    host="here",
    date="2030-01-02",
    num_threads=1,
    what="by hand",
    entries={
        ("aten.mm.default", ((2, 3), (3, 4), (2, 4)), ("float32",) * 3): Entry(seconds=2.0, flop=48.0, nbytes=104.0),
        ("aten.relu.default", ((4,), (4,)), ("float32",) * 2): Entry(seconds=1.0, flop=4.0, nbytes=32.0),
    },
)


@pytest.mark.parametrize(
    ("work", "seconds"),
    [
        (Work("compute-bound", flop=200.0, nbytes=10.0), 0.5 + 2.0),
        (Work("memory-bound", flop=100.0, nbytes=30.0), 0.5 + 3.0),
        (Work("half precision", flop=200.0, nbytes=0.0, dtype="fp16"), 0.5 + 0.5),
        (Work("three kernels", flop=0.0, nbytes=10.0, num_kernels=3), 1.5 + 1.0),
        (Work("nothing", flop=0.0, nbytes=0.0, num_kernels=0), 0.0),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_roofline_by_hand(work, seconds):
    assert Roofline().seconds(work, DEVICE) == seconds


def test_efficiency_slows_arithmetic_only():
    assert Roofline(0.5).seconds(Work("mm", flop=200.0, nbytes=10.0), DEVICE) == 0.5 + 4.0
    assert Roofline(0.5).seconds(Work("copy", flop=0.0, nbytes=10.0), DEVICE) == 0.5 + 1.0


def test_unlisted_type_runs_at_fp32_and_says_so_once():
    work = Work("mm", flop=200.0, nbytes=0.0, dtype="fp8")
    with pytest.warns(UserWarning, match="'by hand' gives no compute rate for fp8"):
        assert Roofline().seconds(work, DEVICE) == 0.5 + 2.0
    assert Roofline().seconds(work, DEVICE) == 0.5 + 2.0  # a second warning would be an error here


def test_constant_counts_kernels():
    assert Constant(2.0).seconds(Work("mm", flop=1e9, nbytes=1e9, num_kernels=3), DEVICE) == 6.0


@pytest.mark.parametrize("text", ["roofline", "roofline:efficiency=0.5", "constant:10 us"])
def test_text_reads_back(text):
    assert str(parse_compute(text)) == text


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("rofline", UnknownName, "did you mean 'roofline'"),
        ("constant", UnknownName, "constant:10 us"),
        ("constant:10", UnitError, "bare number"),
        ("roofline:efficency=1", ConfigurationError, "efficiency=0.5"),
        ("roofline:efficiency=2", ConfigurationError, "at most 1"),
        ("measured", ConfigurationError, "table:FILE"),
        ("table:nowhere.json", ConfigurationError, "nowhere.json"),
    ],
)
def test_text_that_is_no_model(text, error, words, workdir):
    with pytest.raises(error, match=words):
        parse_compute(text)


def test_measured_is_what_measuring_returns():
    assert parse_compute("measured", lambda: TABLE) == Measured(TABLE)


def test_table_round_trip(workdir):
    TABLE.save("times.json")
    assert Table.load("times.json") == TABLE
    model = parse_compute("table:times.json")
    assert str(model) == "table:times.json"
    key = next(iter(TABLE.entries))
    assert model.seconds(Work("aten.mm.default", flop=48.0, nbytes=104.0, key=key), DEVICE) == 2.0
    assert len(model.report()) == 1


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "geartrain times 1", "entries": [{}]}'])
def test_file_that_is_no_table(text, workdir):
    (workdir / "times.json").write_text(text)
    with pytest.raises(ConfigurationError, match="no table of times"):
        Table.load("times.json")


def test_unmeasured_work_is_scaled_to_its_class_and_reported():
    # Best rates of the table: 24 FLOP/s, 52 B/s; the shortest time stands for the launch: 1 s.
    model = Measured(TABLE)
    product = Work("aten.mm.default", flop=96.0, nbytes=104.0, key=("aten.mm.default", ((4, 3),), ("float32",)))
    scale = 2.0 / (1.0 + max(48 / 24, 104 / 52))
    assert model.seconds(product, DEVICE) == model.seconds(product, DEVICE) == pytest.approx(scale * (1.0 + 96 / 24))
    convolution = Work("aten.convolution.default", flop=200.0, nbytes=0.0)
    assert model.seconds(convolution, DEVICE) == Roofline().seconds(convolution, DEVICE)
    assert "2 operations" in model.report()[1]


def test_step_times_by_hand():
    layer = Layer(
        name="fc",
        parameters=(Parameter("weight", (5, 2), 0),),
        forward_flop=100.0,
        backward_flop=200.0,
        forward_fixed_flop=50.0,
        backward_fixed_bytes=1000.0,
    )
    workload = Workload(name="one layer", source="chosen", layers=(layer,))
    times = step_times(workload, DEVICE, samples=2)
    assert times.forward == (0.5 + 2.5,)
    assert times.backward == (1.0 + 100.0,)
    assert times.update == 1.5 + 8 * 40 / 10
    assert times.total == 3.0 + 101.0 + 33.5
    assert update_work(workload, 5).nbytes == update_work(workload).nbytes / 2
