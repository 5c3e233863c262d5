"""Unmodified programs on PyTorch's own parallelisms give on simulated ranks the losses and weights that gloo gives.

With two ranks to the bit. With four, gloo adds in the order of its ring and the simulator in rank order: sums of four
float32 numbers differ by at most three roundings (3 * 6e-8 of the largest partial sum), and a few steps carry that on.
1e-6 relative plus 1e-7 absolute is ten times what was found. Where a hook sends 16-bit numbers a rounding is 2^-11 of a
gradient, and 5e-4 is ten times what was found.
"""

import pytest

from tests.sim.programs import PROGRAMS
from tests.sim.same import assert_same

pytestmark = [pytest.mark.multi, pytest.mark.filterwarnings("ignore")]  # some of PyTorch's own parts are deprecated

COARSE = {"ddp_hook_fp16": 5e-4}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_ranks_equal_gloo_bit_for_bit(name, gloo_results, simulated_results):
    for got, expected in zip(simulated_results(2, name), gloo_results(2, name), strict=True):
        assert not isinstance(expected, str), expected
        assert_same(got, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_four_ranks_equal_gloo_to_a_tolerance(name, gloo_results, simulated_results):
    for got, expected in zip(simulated_results(4, name), gloo_results(4, name), strict=True):
        assert not isinstance(expected, str), expected
        assert_same(got, expected, rtol=COARSE.get(name, 1e-6), atol=COARSE.get(name, 1e-7))
