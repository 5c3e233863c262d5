"""Steps on devices with measured peaks: the two fitted constants, and what follows from them."""

import pytest

from geartrain.errors import UnknownName
from geartrain.validation.measured_devices import fitted, step_time


def test_the_fit_meets_what_it_was_fitted_on_and_is_of_a_sane_size():
    efficiency, launch = fitted()
    assert 0.3 < efficiency < 1 and 0 < launch < 1e-4
    for batch, seconds in ((16, 66.6e-3), (64, 214.5e-3)):
        assert step_time(device="v100", workload="resnet50", batch=batch) == pytest.approx(seconds, rel=1e-6)


def test_slower_devices_take_longer():
    times = [step_time(device=name, workload="resnet50", batch=32) for name in ("v100", "titan-xp", "p100")]
    assert times[0] < times[1] < times[2]


def test_unknown_device():
    with pytest.raises(UnknownName, match="k80"):
        step_time(device="k80", workload="resnet50", batch=16)
