"""What is worked out once: the same for the same question, and nothing forgotten that matters."""

from geartrain.cluster.load import load_cluster
from geartrain.cluster.overrides import NodeOverride, Overrides
from geartrain.cluster.placement import Placement
from geartrain.cost.compute import Constant, Measured, step_times
from geartrain.cost.memo import Memo, Same
from geartrain.cost.placed import native_collective
from geartrain.cost.table import Table
from geartrain.cost.terms import Traffic, summed
from geartrain.workload.spec import Layer, Workload

CLUSTER = load_cluster("ethernet-10g")
DEVICE = CLUSTER.nodes[0].device


def workload(name):
    return Workload(name=name, source="chosen", layers=(Layer(name="a", forward_flop=1.0),))


def test_a_memo_makes_each_value_once_until_it_is_full():
    made = []
    memo = Memo[int](2)

    def get(key):
        return memo.get(key, lambda: made.append(key) or len(made))

    assert [get("a"), get("b"), get("a")] == [1, 2, 1]
    assert [get("c"), get("a")] == [3, 4]  # the third one made it forget


def test_the_same_is_not_what_is_equal():
    one, other = Constant(1.0), Constant(1.0)
    assert one == other
    assert Same(one) == Same(one) != Same(other)


def test_a_step_is_priced_once_for_a_model_and_for_each_model_that_counts():
    first, second = (Measured(Table("here", "today", 1, "empty", {})) for _ in range(2))
    assert step_times(workload("w"), DEVICE, 3, first) is step_times(workload("w"), DEVICE, 3, first)
    assert step_times(workload("w"), DEVICE, 3, first) == step_times(workload("w"), DEVICE, 3, second)
    assert first.report()[1] == second.report()[1]  # what is not in the table is counted by both


def test_equal_collectives_of_a_placement_are_one_and_others_are_not():
    place = Placement(CLUSTER, 4)
    found = native_collective(place, "all_reduce", 4000, 4)
    assert native_collective(place, "all_reduce", 4000, 4) is found
    assert native_collective(place, "all_reduce", 8000, 4) != found
    assert native_collective(place, "all_gather", 4000, 4) != found
    assert native_collective(place, "all_reduce", 4000, 4, ranks=(0, 1)) != found
    assert native_collective(Placement(CLUSTER, 4), "all_reduce", 4000, 4) == found


def test_traffic_of_repeated_exchanges_is_exact():
    part = (Traffic(nbytes=3, messages=1), Traffic(nbytes=10**15 + 1, messages=2))
    other = (Traffic(nbytes=1, messages=0), Traffic())
    sent = summed([part, other, part, part], 2)
    assert sent == (Traffic(nbytes=10, messages=3), Traffic(nbytes=3 * 10**15 + 3, messages=6))
    assert summed([], 2) == (Traffic(), Traffic())


def test_unlike_workers_are_those_of_another_speed():
    slow = Overrides(nodes=(NodeOverride(node=2, speed=0.5), NodeOverride(node=3, speed=0.5)))
    assert Placement(CLUSTER, 5).unlike == (0,)
    assert Placement(CLUSTER.model_copy(update={"overrides": slow}), 5).unlike == (0, 2)
