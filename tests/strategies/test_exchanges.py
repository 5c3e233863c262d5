"""The exchanges of `synchronous`: simulated steps take what the closed form says, also on unlike wires."""

import pytest

from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Collectives
from geartrain.cost.compute import Roofline
from geartrain.engines.simulated import SimulatedEngine
from geartrain.runtime.loop import Training
from geartrain.runtime.tracing import task_workload
from geartrain.strategies import parse
from tests.collectives.test_times import STAR, machines
from tests.strategies.test_ps_p2p_ring_card import Layers, step_time


def simulated_and_said(settings, cluster, workers):
    strategy, task, batch = parse(f"synchronous:{settings}"), Layers(), 16_384 * workers
    training = Training(strategy=strategy, task=task, steps=2, batch=batch)
    record = SimulatedEngine(Roofline()).run(training, cluster, workers=workers, meta=True)
    return step_time(record), strategy.cost(task_workload(task), Placement(cluster, workers), batch).step_time


@pytest.mark.parametrize("exchange", ["ring", "halving_doubling", "tree", "hierarchical"])
@pytest.mark.parametrize("settings", ["bucket_size=270kB", "overlap=false,bucket_size=none"])
@pytest.mark.parametrize("workers", [2, 4])
def test_steps_on_a_star_take_what_the_cost_says(exchange, settings, workers):
    simulated, said = simulated_and_said(f"{settings},exchange={exchange}", STAR, workers)
    assert simulated == pytest.approx(said, rel=1e-2)


@pytest.mark.parametrize("exchange", ["halving_doubling", "hierarchical"])
@pytest.mark.parametrize(("per_node", "workers"), [(2, 4), (4, 8)])
def test_steps_on_nodes_with_several_devices_take_what_the_cost_says(exchange, per_node, workers):
    settings = f"overlap=false,bucket_size=270kB,exchange={exchange}"
    simulated, said = simulated_and_said(settings, machines(per_node), workers)
    assert simulated == pytest.approx(said, rel=1e-2)


def test_the_hierarchical_one_wins_where_nodes_have_several_devices():
    steps = {
        exchange: simulated_and_said(f"overlap=false,bucket_size=270kB,exchange={exchange}", machines(4), 16)[0]
        for exchange in ("ring", "hierarchical")
    }
    assert steps["hierarchical"] < steps["ring"]


@pytest.mark.parametrize("algorithm", [None, "ring", "halving_doubling", "recursive_doubling", "tree"])
@pytest.mark.parametrize("settings", ["bucket_size=270kB", "overlap=false,bucket_size=none"])
@pytest.mark.parametrize("workers", [3, 4])
def test_steps_of_a_librarys_own_algorithm_take_what_the_cost_says(algorithm, settings, workers):
    """In some algorithms a rank's wire stands idle while others are at work, which is more than bytes and latencies."""
    cluster = STAR.model_copy(update={"collectives": Collectives(all_reduce=algorithm)})
    simulated, said = simulated_and_said(settings, cluster, workers)
    assert simulated == pytest.approx(said, rel=1e-2)
