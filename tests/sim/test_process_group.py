"""Each call of torch.distributed gives on simulated ranks what it gives on gloo.

With two ranks the numbers are random and equal to the bit. With four they are whole, so that sums do not depend on
the order in which a backend adds, and equal to the bit again.
"""

import pytest

from tests.sim.calls import CASES
from tests.sim.same import assert_same

pytestmark = [pytest.mark.multi, pytest.mark.filterwarnings("ignore")]  # some calls are deprecated; they still must run


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [2, 4])
def test_call_gives_what_gloo_gives(size, name, gloo_results, simulated_results):
    for got, expected in zip(simulated_results(size, name), gloo_results(size, name), strict=True):
        assert_same(got, expected)
        assert not (isinstance(got, str) and "Traceback" in got), got
