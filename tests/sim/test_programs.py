"""Unmodified programs on PyTorch's own parallelisms give on simulated ranks the losses and weights that gloo gives.

With two ranks to the bit. With four, gloo adds in the order of its ring and the simulator in rank order: a sum of
four float32 numbers differs by at most three roundings (3 * 6e-8 of the largest partial sum), which a few steps and
cancellation in the gradients enlarge; 1e-5 relative or 1e-6 absolute holds everywhere with more than a factor of ten
to spare. Where a hook sends 16-bit numbers a rounding is 2^-11 and the tolerance 2e-3.
"""

import pytest

from tests.sim.programs import PROGRAMS
from tests.sim.same import assert_same

pytestmark = [pytest.mark.multi, pytest.mark.filterwarnings("ignore")]  # some of PyTorch's own parts are deprecated

COARSE = {"ddp_hook_fp16": 2e-3}


@pytest.mark.parametrize("name", PROGRAMS)
def test_two_ranks_equal_gloo_bit_for_bit(name, gloo_results, simulated_results):
    for got, expected in zip(simulated_results(2, name), gloo_results(2, name), strict=True):
        assert not isinstance(expected, str), expected
        assert_same(got, expected)


@pytest.mark.parametrize("name", PROGRAMS)
def test_four_ranks_equal_gloo_to_a_tolerance(name, gloo_results, simulated_results):
    for got, expected in zip(simulated_results(4, name), gloo_results(4, name), strict=True):
        assert not isinstance(expected, str), expected
        assert_same(got, expected, rtol=COARSE.get(name, 1e-5), atol=COARSE.get(name, 1e-6))
