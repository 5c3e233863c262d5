"""Predictions against values worked out by hand."""

from dataclasses import replace

import pytest

from geartrain.cluster import Wire
from geartrain.cluster.measured import Measurements, Sharing
from geartrain.cost.compute import Constant
from geartrain.errors import ConfigurationError, PlacementError, StrategyError, TaskError
from geartrain.predict.closed import cost_of, predict
from geartrain.predict.simulated import simulate
from tests.predict.small import FLOPS, MEBI, RATE, cluster, question, workload

SIZE = 4 * MEBI * 4  # bytes of four tensors
COMPUTE = 8 * 4 * 3e9 / FLOPS  # a worker's 8 samples, 4 layers, 3 GFLOP each
WIRE = 2 * 3 / 4 * SIZE / RATE  # a ring of four


def test_parts_of_a_step():
    one = predict(question())
    assert one.compute == pytest.approx(COMPUTE)
    assert one.exposed_communication == pytest.approx(WIRE)
    assert one.step_time == pytest.approx(COMPUTE + WIRE)
    parts = one.compute + one.exposed_communication + one.wait + one.bubble + one.codec
    assert parts == pytest.approx(one.step_time)
    assert one.bytes_per_rank == one.busiest == pytest.approx(1.5 * SIZE)
    assert one.messages_per_rank == 6
    assert one.how == "closed form"


def test_what_follows():
    one = predict(question())
    step = COMPUTE + WIRE
    assert one.throughput == pytest.approx(32 / step)
    assert one.mfu == pytest.approx(COMPUTE / step)  # alone, every operation runs at the peak
    assert one.efficiency == pytest.approx(COMPUTE / step)
    assert (one.energy, one.price) == (None, None)


def test_repeated_operations_are_no_work_of_the_model():
    layers = [replace(one, backward_flop=3e9, recomputed_flop=1e9) for one in workload().layers]
    again = predict(question(workload=replace(workload(), layers=tuple(layers))))
    assert again.compute == pytest.approx(COMPUTE * 4 / 3)
    assert again.mfu == pytest.approx(COMPUTE / again.step_time)


def test_no_peak_for_the_type_leaves_out_mfu():
    assert predict(question("single", ranks=1, workload=workload(dtype="bf16"), model=Constant(1e-3))).mfu is None


@pytest.mark.parametrize(
    ("per_node", "power", "idle", "node", "watts"),
    [
        (1, 300.0, 100.0, 50.0, "4 * (50 + busy * 300 + (1 - busy) * 100)"),
        (1, 300.0, None, 50.0, "4 * (50 + 300)"),
        (1, 300.0, 100.0, None, "4 * (busy * 300 + (1 - busy) * 100)"),
        (8, 300.0, 100.0, 50.0, "50 + 4 * (busy * 300 + (1 - busy) * 100) + 4 * 100"),
    ],
)
def test_energy(per_node, power, idle, node, watts):
    inner = Wire(rate=RATE, latency=0.0) if per_node > 1 else None
    machines = cluster(per_node=per_node, inner=inner, power=power, idle_power=idle, group={"power": node})
    one = predict(question(cluster=machines))
    expected = one.step_time * eval(watts, {"busy": COMPUTE / one.step_time})
    assert one.energy == pytest.approx(expected)
    assert any("no idle power" in note for note in one.notes) == (idle is None)
    assert any("power of a node" in note for note in one.notes) == (node is None)


def test_price_counts_nodes_of_servers_too():
    machines = cluster(group={"price": 36.0 / 3600})
    assert predict(question(cluster=machines)).price == pytest.approx(4 * 0.01 * (COMPUTE + WIRE))
    served = predict(question("parameter_server:servers=2", cluster=machines))
    assert served.price == pytest.approx(6 * 0.01 * served.step_time)


def test_memory_and_whether_it_fits():
    one = predict(question())
    assert one.fits
    assert [memory.rank for memory in one.memory] == [0, 1, 2, 3]
    assert all(memory.total == sum(memory.kinds.values()) and memory.limit == 2**34 for memory in one.memory)
    assert one.memory[0].kinds["parameters"] == SIZE
    tight = predict(question(cluster=cluster(memory=SIZE)))
    assert not tight.fits
    told = tight.as_json()["memory"]
    assert [(entry["rank"], entry["count"], entry["fits"]) for entry in told] == [(0, 4, False)]


def test_what_communication_steals_from_computing():
    asked = question("synchronous:bucket_size=4MiB")
    sharing = Measurements(ranks=4, backend="gloo", sharing=(Sharing(ranks=4, slowdown=1.0, steals=0.5),))
    shared = asked.cluster.model_copy(update={"measured": sharing})
    alone, together = predict(asked), predict(replace(asked, cluster=shared))
    assert alone.hidden_communication > 0
    assert together.compute - alone.compute == pytest.approx(alone.hidden_communication / 2)
    assert together.step_time - alone.step_time == pytest.approx(alone.hidden_communication / 2)


def test_json_has_every_key_and_plain_values():
    told = predict(question()).as_json()
    assert (told["workload"], told["cluster"], told["ranks"], told["batch"]) == ("small", "c", 4, 32)
    assert told["compute_model"] == "roofline"
    assert told["bytes_sent_per_rank"] == pytest.approx(1.5 * SIZE)
    assert (told["energy"], told["price"], told["notes"]) == (None, None, list(predict(question()).notes))


@pytest.mark.parametrize(
    ("changed", "error", "text"),
    [
        ({"ranks": 4, "batch": 3}, TaskError, "cannot be dealt to 4 workers"),
        ({"ranks": 0, "batch": 3}, PlacementError, "0 workers cannot train"),
        ({"strategy": "single"}, StrategyError, "trains in one process"),
        ({"strategy": "spp"}, StrategyError, "chain of parts"),
        ({"strategy": "single", "ranks": 1, "model": Constant(0.0)}, ConfigurationError, "takes no time"),
    ],
)
def test_what_cannot_be_predicted(changed, error, text):
    with pytest.raises(error, match=text):
        predict(question(**changed))


@pytest.mark.parametrize("name", ["spp", "gear"])
def test_what_shapes_cannot_simulate(name):
    with pytest.raises(StrategyError, match="shapes alone have none"):
        simulate(question(name))


def test_cost_is_that_of_the_planned_strategy():
    asked = question("mg_wfbp", cluster=cluster(latency=1e-3))
    place = asked.place()
    planned = asked.strategy.planned(asked.workload, place, asked.batch, asked.model)
    assert cost_of(asked, place) == planned.cost(asked.workload, place, asked.batch, asked.model)
