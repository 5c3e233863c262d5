"""The lemmas as programs, against the planner's formulas and numbers worked by hand."""

import pytest

from geartrain.errors import ConfigurationError
from geartrain.planner import lemmas
from geartrain.validation import servers
from geartrain.validation.servers import efficiency, fewest_servers, parameter_bytes, round_time, speedup


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("overhead", [0.0, 0.25])
def test_a_serial_part_costs_what_the_lemma_says(devices, overhead):
    hand = (1 + overhead) / (1 / devices + overhead)
    assert speedup(devices=devices, overhead=overhead) == pytest.approx(hand, rel=1e-9)
    assert efficiency(devices=devices, overhead=overhead) == pytest.approx(hand / devices, rel=1e-9)
    assert lemmas.speedup(devices, overhead) == pytest.approx(hand, rel=1e-12)


def test_servers_hide_behind_computing_exactly_where_the_lemma_says(monkeypatch):
    size = 4_000_000 * 4
    monkeypatch.setattr(servers, "parameter_bytes", lambda workload: float(size))
    given = {"workload": "made", "workers": 3, "rate": 1e8}
    for count in (1, 2, 3):
        hand = 2 * size * 3 / (count * 1e8)
        assert round_time(servers=count, compute=0.0, **given) == pytest.approx(hand, rel=1e-6)
        assert round_time(servers=count, compute=0.4, **given) == pytest.approx(max(0.4, hand), rel=1e-6)
    for compute in (0.35, 0.5, 1.0):
        assert fewest_servers(compute=compute, **given) == lemmas.servers_for(size, 3, 1e8, compute)
    with pytest.raises(ConfigurationError, match="bound by the network"):
        fewest_servers(compute=0.1, **given)


def test_parameters_in_bytes():
    assert parameter_bytes(workload="resnet18") == 4 * 11_689_512
