"""A model and machines so simple that what a step takes can be worked out by hand."""

from geartrain.cluster import Cluster, Device, NodeGroup, Star, Wire
from geartrain.predict.question import Question
from geartrain.strategies import parse
from geartrain.workload.spec import Layer, Parameter, Workload

MEBI = 2**20
FLOPS = 1e12
RATE = 1e9


def workload(layers=4, numel=MEBI, forward=1e9, activation=1000.0, **more):
    """Equal layers of one tensor each; backward costs twice as much as forward, and the update nothing."""
    made = [
        Layer(
            name=f"l{index}",
            parameters=(Parameter(f"l{index}.weight", (numel,), index),),
            forward_flop=forward,
            backward_flop=2 * forward,
            activation=activation,
        )
        for index in range(layers)
    ]
    return Workload(name="small", source="chosen", layers=tuple(made), update_flop=0.0, update_traffic=0.0, **more)


def device(**more):
    """Its memory is so fast that only arithmetic takes time."""
    given = {"flops": {"fp32": FLOPS}, "memory": 2**34, "memory_rate": 1e30, **more}
    return Device(name="d", source="chosen", **given)


def cluster(rate=RATE, latency=0.0, *, per_node=1, inner=None, group=None, **more):
    """Nodes on a star; `more` is of the device, `group` of the nodes."""
    nodes = NodeGroup(count="any", device=device(**more), devices_per_node=per_node, **(group or {}))
    return Cluster(
        name="c",
        source="chosen",
        nodes=(nodes,),
        topology=Star(wire=Wire(rate=rate, latency=latency), inner=inner),
        collectives={"all_reduce": "ring"},
    )


def question(strategy="synchronous:bucket_size=none,overlap=false", ranks=4, batch=None, **more):
    """By default one all-reduce of everything after backward: nothing overlaps, all adds up."""
    given = {"workload": workload(), "cluster": cluster(), **more}
    return Question(strategy=parse(strategy), ranks=ranks, batch=batch or 8 * ranks, **given)
