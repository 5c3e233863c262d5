"""Workloads and clusters made by hand: no model is traced."""

from geartrain.cluster.load import parse_cluster
from geartrain.planner.ask import Ask
from geartrain.workload.spec import Layer, Parameter, Workload

MIB, GIB = 2**20, 2**30


def blocks(count=4, *, numel=2**20, flop=1e9, activation=64 * MIB):
    """Blocks of two layers and a head; a block keeps `activation` bytes a sample and its input is a quarter of it."""
    layers = []
    for place in range(count):
        weight = Parameter(f"block{place}.linear.weight", (numel,), place)
        layers += [
            Layer(
                name=f"block{place}.linear",
                parameters=(weight,),
                forward_flop=flop,
                backward_flop=2 * flop,
                activation=activation / 4,
            ),
            Layer(
                name=f"block{place}.act", forward_flop=flop / 10, backward_flop=flop / 10, activation=activation * 3 / 4
            ),
        ]
    head = Parameter("head.weight", (1024,), count)
    layers.append(Layer(name="head", parameters=(head,), forward_flop=1e6, backward_flop=2e6))
    return Workload(name="made", source="made for tests", layers=tuple(layers))


def cluster(rate="10 Gbit/s", memory="1 GiB"):
    """Nodes of one device of 1 TFLOP/s that moves bytes for nothing, on one switch."""
    return parse_cluster(f"""
name = "made"
source = "made for tests"
[[nodes]]
name = "node"
count = "any"
[nodes.device]
name = "one"
source = "made for tests"
memory = "{memory}"
memory_rate = "1000000 GB/s"
flops = {{ fp32 = "1 TFLOP/s", fp16 = "2 TFLOP/s" }}
[topology]
kind = "star"
wire = {{ rate = "{rate}", latency = "10 us" }}
""")


def ask(**changes):
    return Ask(**{"workload": blocks(), "cluster": cluster(), "ranks": 4, "confirm": 0, **changes})
