"""ABS-SGD on processes whose devices are unequal: the issue's three, at speeds 1, 1 and 0.5."""

import pytest

from geartrain.cluster import Star, Wire
from geartrain.cluster.overrides import NodeOverride, Overrides
from geartrain.cost.compute import Roofline
from geartrain.engines.emulated import EmulatedEngine
from geartrain.record.split import split
from geartrain.runtime.loop import Training
from geartrain.strategies import parse
from geartrain.tasks.digits import Digits
from tests.emu.possible import cluster

pytestmark = [pytest.mark.emu, pytest.mark.xdist_group("processes")]

UNEQUAL = cluster(
    Star(wire=Wire(rate="100 Mbit/s", latency="50 us", mtu="1500 B")),
    count=3,
    overrides=Overrides(nodes=(NodeOverride(node=2, speed=0.5),)),
    flops=1e8,
)


@pytest.fixture(scope="module", autouse=True)
def networks_are_taken_away():
    yield
    EmulatedEngine().close()


def idle(text, steps):
    """The share of its time that each worker stands still, without the first steps, and its samples."""
    training = Training(strategy=parse(text), task=Digits(), steps=steps, batch=48, evaluate=False)
    record = EmulatedEngine(Roofline()).run(training, UNEQUAL, workers=3)
    found = []
    for rank in split(record).ranks:
        still = sum(step.shares.wait + step.shares.exposed_communication for step in rank.steps[2:])
        found.append(still / sum(step.shares.time for step in rank.steps[2:]))
    samples = [sum(step.values["samples"] for step in log.steps[2:]) for log in record.logs]
    return found, samples


def test_unequal_devices_hardly_wait_where_synchronous_ones_wait_for_the_slowest():
    """A busy host makes all of it slower, so both run here, one after the other, and are compared."""
    (*waiting, _), samples = idle("synchronous", 4)
    assert min(waiting) > 0.3 and len(set(samples)) == 1
    open_batches, samples = idle("abs_sgd:micro_batch=2,least=4", 5)
    assert max(open_batches) < min(waiting) / 3
    assert all(1.5 < samples[fast] / samples[2] < 2.5 for fast in (0, 1))
