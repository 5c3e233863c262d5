"""Kernels at any batch, their classes and extents, and the curves and fits that price them; by hand."""

import pytest

from geartrain.cost.compute import Measured, Work, forward_work, kernel_work, step_times
from geartrain.cost.curves import ProductFit, TimeCurve
from geartrain.cost.extents import Extents, attention_extents, convolution_extents, product_extents
from geartrain.cost.kernel_class import kernel_class
from geartrain.cost.table import Entry, Table
from geartrain.errors import ConfigurationError
from geartrain.workload.spec import Kernel, Layer, Lookup, Workload
from tests.cost.test_compute import DEVICE

MM = Kernel(
    op="aten.mm.default",
    shapes=(((0, 3), (4, 0)), ((4, 0), (5, 0)), ((0, 3), (5, 0))),
    dtypes=("float32",) * 3,
    flop=(0.0, 120.0),
    nbytes=(80.0, 108.0),
)


def test_a_kernel_at_some_batch():
    work = kernel_work(MM, 2)
    assert work.key == ("aten.mm.default", ((6, 4), (4, 5), (6, 5)), ("float32",) * 3)
    assert (work.flop, work.nbytes, work.num_kernels) == (240.0, 80.0 + 216.0, 1)
    found = kernel_work(Kernel("aten.embedding.default", (), (), (0, 0), (0, 0), lookup=Lookup(9, 2, 5.0, 1.0)), 4)
    assert found.lookup == Lookup(9, 2, 20.0, 1.0)


def test_a_run_of_kernels_has_them_as_parts_and_a_table_prices_each():
    relu = Kernel("aten.relu.default", (((0, 3),),), ("float32",), (0, 3), (0, 24), count=2)
    layer = Layer(name="fc", forward_flop=126, num_kernels=3, num_backward_kernels=0, forward_kernels=(MM, relu))
    workload = Workload(name="one layer", source="chosen", layers=(layer,))
    work = forward_work(workload, layer, 2)
    assert [part.name for part in work.parts] == ["aten.mm.default", "aten.relu.default", "aten.relu.default"]
    times = {
        part.key: Entry(seconds, part.flop, part.nbytes) for part, seconds in zip(work.parts, (7, 1, 1), strict=True)
    }
    table = Table(host="here", date="2030-01-02", num_threads=1, what="by hand", entries=times)
    assert Measured(table).seconds(work, DEVICE) == 9.0
    assert step_times(workload, DEVICE, 2, Measured(table)).forward == (9.0,)


@pytest.mark.parametrize(
    ("kind", "names"),
    {
        "product": "addmm bmm _addmm_activation",
        "convolution": "convolution convolution_backward",
        "attention": "_scaled_dot_product_flash_attention_for_cpu",
        "normalisation": "native_layer_norm native_batch_norm_backward _softmax_backward_data",
        "reduction": "sum mean nll_loss_forward",
        "elementwise": "add_ gelu relu_ threshold_backward sqrt",
        "copy": "clone _to_copy",
        "concatenation": "cat",
        "lookup": "embedding _embedding_bag",
        "scatter": "embedding_dense_backward index_put_",
        "update": "_foreach_add_ _fused_adamw_",
    }.items(),
)
def test_classes_of_operations(kind, names):
    assert {kernel_class(f"aten.{name}.default") for name in names.split()} == {kind}


def test_classes_of_work_without_operation():
    assert [kernel_class(name) for name in ("update", "copy", "reduce")] == ["update", "copy", "elementwise"]


def test_a_curve_is_straight_in_logarithms():
    curve = TimeCurve(((10.0, 2.0), (1000.0, 2.0), (4000.0, 8.0)))
    assert [curve.seconds(n) for n in (10, 100, 1000, 2000, 4000)] == pytest.approx([2, 2, 2, 4, 8])
    assert curve.seconds(40_000) == pytest.approx(80)  # the slope of its end
    assert curve.seconds(0) == pytest.approx(2)
    assert TimeCurve(((100.0, 1.0),)).seconds(300) == pytest.approx(3)


@pytest.mark.parametrize("points", [(), ((1.0, 2.0), (1.0, 3.0)), ((1.0, 2.0), (2.0, 1.0)), ((0.0, 1.0),)])
def test_a_curve_that_falls_or_stands_still_is_refused(points):
    with pytest.raises(ConfigurationError, match="both rising"):
        TimeCurve(points)


def test_a_fit_reaches_half_of_its_rate_at_its_halves():
    fit = ProductFit(rate=1000.0, halves=(8.0, 0.0, 0.0), overhead=0.5)
    assert fit.seconds(8, 5, 3) == pytest.approx(0.5 + 2 * 8 * 5 * 3 / 500)
    assert fit.seconds(8e9, 5, 3) == pytest.approx(2 * 8e9 * 5 * 3 / 1000, rel=1e-6)
    assert fit.seconds(8, 5, 3, count=7) == pytest.approx(0.5 + 7 * 2 * 8 * 5 * 3 / 500)
    assert fit.seconds(0, 5, 3) == 0.5
    with pytest.raises(ConfigurationError, match="rate above zero"):
        ProductFit(rate=0.0, halves=(0.0, 0.0, 0.0), overhead=0.0)


def test_extents_of_products():
    def of(op, *shapes):
        return product_extents((f"aten.{op}.default", shapes, ()))

    assert of("mm", (2, 3), (3, 4), (2, 4)) == Extents(2, 4, 3)
    assert of("addmm", (4,), (2, 3), (3, 4), (2, 4)) == Extents(2, 4, 3)
    assert of("bmm", (7, 2, 3), (7, 3, 4), (7, 2, 4)) == Extents(2, 4, 3, 7)
    assert of("mv", (2, 3), (3,), (2,)) == Extents(2, 1, 3)
    assert of("dot", (3,), (3,), ()) == Extents(1, 1, 3)
    assert of("relu", (3,), (3,)) is None


def test_extents_of_convolutions():
    given, weight, out = (8, 6, 10, 10), (4, 3, 5, 5), (8, 4, 6, 6)  # two groups
    forward = convolution_extents(("aten.convolution.default", (given, weight, (4,), out), ()))
    assert forward == Extents(8 * 36, 2, 75, 2, "5x5")
    assert forward.flop == 2 * 8 * 36 * 4 * 75
    backward = ("aten.convolution_backward.default", (out, given, weight, given, weight, (4,)), ())
    assert convolution_extents(backward) == forward


def test_extents_of_attention():
    shapes = ((2, 8, 16, 64), (2, 8, 32, 64), (2, 8, 32, 64), (2, 8, 16, 64))
    assert attention_extents(("aten._scaled_dot_product_attention.default", shapes, ())) == Extents(16, 32, 64, 16)


def test_work_that_no_class_knows_is_elementwise():
    assert kernel_class(Work("aten.unheard_of.default", 0.0, 0.0).name) == "elementwise"
