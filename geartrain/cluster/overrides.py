"""What is different for single nodes and links of a cluster: slow devices, jitter, stragglers, other wires."""

from typing import Annotated, Literal

from pydantic import Field

from geartrain.cluster.fields import Index, NodeRef, Spec, Time, WireRate


class Straggler(Spec):
    """With `probability`, drawn anew for every step, a step takes `factor` times as long."""

    probability: Annotated[float, Field(ge=0, le=1)]
    factor: Annotated[float, Field(ge=1)]


class NodeOverride(Spec):
    """What is different for some nodes; where several match, the later one decides each key that it gives.

    Args:
        node: an index from 0 over all nodes, a node's name ("node-3"), a group's name, or "all".
        device: only this device of the node; left out: all of them.
        speed: factor on the compute rate: 0.5 is half as fast.
        jitter: standard deviation of a step's compute time, relative to its mean.
        straggler: now and then a step is slower by a factor.
    """

    node: NodeRef
    device: Index | None = None
    speed: Annotated[float, Field(gt=0)] | None = None
    jitter: Annotated[float, Field(ge=0)] | None = None
    straggler: Straggler | None = None


class WireOverride(Spec):
    """A different wire for some nodes (star, two_level): one way or both. Half of the latency counts each way."""

    node: NodeRef
    direction: Literal["up", "down", "both"] = "both"
    rate: WireRate | None = None
    latency: Time | None = None


class PairOverride(Spec):
    """A different wire between two nodes of a matrix, given by index or name; `both_ways` unless false."""

    pair: tuple[NodeRef, NodeRef]
    both_ways: bool = True
    rate: WireRate | None = None
    latency: Time | None = None


class Overrides(Spec):
    """What is different for single nodes, wires (star, two_level) and pairs (matrix)."""

    nodes: tuple[NodeOverride, ...] = ()
    wires: tuple[WireOverride, ...] = ()
    pairs: tuple[PairOverride, ...] = ()
