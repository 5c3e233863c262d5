"""Fits of kernels against times made from known constants."""

import math
import random
import time
from dataclasses import replace

import pytest
import torch

from geartrain.calibration import kernels
from geartrain.calibration.effort import QUICK
from geartrain.calibration.kernel_fits import Product, error_of, fit_curve, fit_product


def seconds(m, n, k, count, rate=5e10, halves=(8, 16, 0), overhead=4e-6):
    return overhead + 2 * m * n * k * count / (rate * m / (m + halves[0]) * n / (n + halves[1]) * k / (k + halves[2]))


def products():
    draw = random.Random(1)
    for _ in range(30):
        m, n, k = (round(8 * 256 ** draw.random()) for _ in range(3))
        count = draw.choice([1, 1, 8])
        yield m, n, k, count


def test_constants_of_products_are_found_again():
    fit = fit_product([Product(*extents, seconds(*extents)) for extents in products()])
    assert fit.halves == (8, 16, 0)
    assert fit.rate == pytest.approx(5e10, rel=1e-6) and fit.overhead == pytest.approx(4e-6, rel=1e-4)


def test_products_without_overhead_have_none():
    rows = [
        Product(*one, seconds(*one, overhead=0.0) * (0.9 if index % 2 else 1.1)) for index, one in enumerate(products())
    ]
    fit = fit_product(rows)
    assert fit.overhead >= 0 and fit.rate == pytest.approx(5e10, rel=0.2)


def test_a_curve_goes_through_what_was_measured():
    """Two operations at each size: the geometric mean of both."""
    curve = fit_curve([(1024, 1e-6), (1024, 4e-6), (4096, 8e-6), (4096, 8e-6)])
    assert curve.points == (pytest.approx((1024, 2e-6)), pytest.approx((4096, 8e-6)))


def test_times_that_fall_are_pooled():
    curve = fit_curve([(1024, 1e-6), (4096, 4e-6), (16384, 1e-6), (65536, 9e-6)])
    assert [round(x) for x, _ in curve.points] == [1024, 8192, 65536]
    assert curve.points[1][1] == pytest.approx(2e-6)


def test_error_is_relative_to_what_was_measured():
    assert error_of([(1.1, 1.0), (3.0, 4.0)]) == (2, pytest.approx((0.1 + 0.25) / 2), pytest.approx(0.25))
    assert error_of([]) == (0, 0.0, 0.0)
    assert math.isclose(error_of([(2.0, 1.0)])[2], 1.0)


def test_what_a_device_cannot_run_is_told():
    """A product of matrices that do not fit stands for one that a device has no kernel for."""
    whole = next(one for one in kernels._products(QUICK) if one.call.func is torch.ops.aten.mm.default)
    left, right = whole.call.args
    broken = replace(whole, call=replace(whole.call, args=[left, replace(right, shape=(right.shape[0] + 1, 1))]))
    timer = kernels._Timer(torch.device("cpu"), replace(QUICK, repeats=1, seconds=0.0), 1, time.perf_counter)
    assert len(timer.all([whole])) == 1 and timer.left_out == ""
    assert len(timer.all([broken, whole])) == 1 and timer.left_out == "; could not be run: aten.mm.default"
