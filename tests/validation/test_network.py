"""The check of the network: it passes on the network there is, and sees one that is not fair, too slow or overfull."""

import pytest

import geartrain.sim.network as network_module
from geartrain.sim.fairness import fair_rates
from geartrain.validation.network import BAR, Certificate, Transfer, check_network, drive


def test_the_network_passes_and_the_same_loads_give_the_same_section():
    section = check_network(quick=True)
    assert section.missed == 0 and section.notes == []
    assert all(row[4] <= BAR and row[-1] for row in section.rows)
    assert len(section.rows) == 13 and min(row[3] for row in section.rows) > 10
    assert check_network(quick=True).as_json() == section.as_json()


def overfull(group, capacities):
    return [1.001 * rate for rate in fair_rates(group, capacities)]


def timid(group, capacities):
    return [0.999 * rate for rate in fair_rates(group, capacities)]


def narrowest_share(group, capacities):
    """Each link is shared equally among its flows, whether or not they can use their share."""
    counts = {}
    for flow in group:
        for link in flow.links:
            counts[link] = counts.get(link, 0) + 1
    return [
        min(capacities[k] / counts[k] / weight for k, weight in zip(flow.links, flow.weights, strict=True))
        for flow in group
    ]


@pytest.mark.parametrize("wrong", [overfull, timid, narrowest_share])
def test_wrong_rates_are_seen(wrong, monkeypatch):
    monkeypatch.setattr(network_module, "fair_rates", wrong)
    section = check_network(quick=True)
    assert section.missed > 0
    assert len(section.notes) == section.missed
    failed = {row[1] for row in section.rows if not row[-1]}
    assert "fair at every change" in failed
    assert any(row[4] > 1e-4 for row in section.rows)


def test_the_certificate_knows_fair_rates_from_unfair_ones():
    # Links of 10 and 30; flow 0 on both, 1 on the first, 2 on the second: fair are 5, 5 and 25.
    transfers = [Transfer(0.0, {0: 1.0, 1: 1.0}), Transfer(0.0, {0: 1.0}), Transfer(0.0, {1: 1.0})]

    def error(*rates):
        certificate = Certificate([10.0, 30.0])
        certificate.look(dict(enumerate(rates)), transfers)
        return certificate.error

    assert error(5.0, 5.0, 25.0) == 0.0
    assert error(4.0, 6.0, 26.0) == pytest.approx(0.5)  # feasible and full, but flow 0 is slower than flow 1
    assert error(5.0, 5.0, 20.0) == pytest.approx(1 / 6)  # flow 2 could be faster
    assert error(5.0, 6.0, 25.0) == pytest.approx(0.2)  # the first link is overfull, and flow 0 is the slower one there


def test_bytes_that_are_missing_at_the_end_are_seen():
    certificate = Certificate([10.0])
    certificate.ended(100.0, 99.0, 0.5)
    assert certificate.error == pytest.approx(0.005)


def test_drive_gives_the_ends():
    transfers = [Transfer(0.5, {0: 100.0}), Transfer(0.0, {0: 100.0})]
    assert drive([100.0], transfers) == [2.0, 1.5]
