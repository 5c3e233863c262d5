"""A step of a large language model whose parameters are sharded over all ranks, by closed form.

    gather of a layer    G = (n - 1) hop + (n - 1) / n * bytes / rate          n ranks that share a layer; a ring
    forward              G + (L - 1) max(F, G) + F                             the next layer's gather beside computing
    backward             B + (L - 1) max(B, S) + S                             the last layer's scatter beside computing
    with reshard         max(B, G) + (L - 2) max(B, S + G) + max(B, S) + S     backward gathers once more

F and B are a layer's forward and backward, S the scatter of its gradients, as long as a gather. Tensor parallelism of
degree m cuts layers m ways: each data-parallel ring is m times as short and carries 1/m of the bytes, m rings share the
wires of a node, and four all-reduces of activations a layer stand in the way of computing. Pipelines cut the model into
stages. Sharding within a node gathers there, and all-reduces the shards of gradients between nodes.

Source: the closed form is derived, from the workload that Fernandez and others, 2024, arXiv 2411.13055, measured.
Simplified: embedding and scores are spread evenly over the layers, stages hand on activations in no time, a pipeline
gathers once a step, and nothing but products computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from geartrain.errors import ConfigurationError

BYTES = 2  # of a parameter, a gradient, an activation on the wire: bf16


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """A decoder like Llama 2: gated maps, no biases, scores of their own.

    Args:
        layers, width, inner: blocks, width, width between the gated maps.
        keys: width of keys and values, less than `width` where heads share them.
        vocabulary: tokens known.
    """

    layers: int
    width: int
    inner: int
    keys: int
    vocabulary: int = 32_000

    @property
    def parameters(self) -> int:
        """Of products: norms, a few thousand, are left out."""
        block = 2 * self.width * (self.width + self.keys) + 3 * self.width * self.inner
        return self.layers * block + 2 * self.vocabulary * self.width

    def flop_per_token(self, length: int) -> float:
        """Forward and backward of a token among `length`: 6 N + 12 layers * width * length."""
        return 6.0 * self.parameters + 12.0 * self.layers * self.width * length


SIZES: Mapping[str, Transformer] = {
    "1b": Transformer(layers=22, width=2048, inner=5632, keys=2048),
    "7b": Transformer(layers=32, width=4096, inner=11_008, keys=4096),
    "13b": Transformer(layers=40, width=5120, inner=13_824, keys=5120),
    "70b": Transformer(layers=80, width=8192, inner=28_672, keys=1024),
}
"""Shapes of Llama 2 (Touvron et al. 2023, arXiv 2307.09288); it has none of 1 billion, whose shape is chosen."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """Nodes of eight devices of one kind.

    Attributes:
        peak: dense half-precision FLOP per second of a device.
        efficiency: share of it that products reach.
        inner: bytes per second of a device to the others of its node, one way.
        wire: bytes per second of a node to the others, one way, that collectives reach.
        hop, inner_hop: seconds that a step of a ring takes whatever its size, between nodes and within one.
        devices: of a node.
        power: watts of a device that computes or waits in a collective.
    """

    peak: float
    inner: float
    wire: float
    efficiency: float = 1.0
    hop: float = 5e-6
    inner_hop: float = 3e-6
    devices: int = 8
    power: float = 700.0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model lies on ranks.

    Args:
        ranks: all of them; ranks / (tensor * pipeline) replicas.
        tensor, pipeline: degrees of tensor and of pipeline parallelism.
        reshard: give up gathered parameters after forward, and gather them again in backward.
        shards: "all": over all replicas; "node": over those of a node, and copies in every node.
    """

    ranks: int
    tensor: int = 1
    pipeline: int = 1
    reshard: bool = False
    shards: Literal["all", "node"] = "all"

    def __post_init__(self) -> None:
        if min(self.ranks, self.tensor, self.pipeline) < 1 or self.ranks % (self.tensor * self.pipeline):
            raise ConfigurationError(
                f"{self.ranks} ranks cannot be cut into replicas of {self.tensor} x {self.pipeline} ranks; "
                "give degrees whose product divides the ranks"
            )

    @property
    def replicas(self) -> int:
        return self.ranks // (self.tensor * self.pipeline)


@dataclass(frozen=True, kw_only=True)
class ShardedStep:
    """What a step takes, in seconds; compute, exposed and bubble add up to `time`.

    Attributes:
        compute: devices compute.
        exposed: they stand still for communication.
        bubble: they stand still because of the order of the pipeline.
        communication: gathers, scatters and all-reduces, exposed or not.
        tokens: of the whole step.
        mfu: model FLOP per second over the peak of all devices.
    """

    time: float
    compute: float
    exposed: float
    bubble: float
    communication: float
    tokens: float
    mfu: float


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """Seconds of one layer.

    Attributes:
        forward, backward: computing and the all-reduces of activations in it.
        compute: computing alone, both ways.
        gather, scatter: of its parameters and its gradients.
    """

    forward: float
    backward: float
    compute: float
    gather: float
    scatter: float


def sharded_step(
    model: Transformer, generation: Generation, layout: Layout, *, batch: float, length: int = 4096
) -> ShardedStep:
    """One step.

    Args:
        batch: global, in sequences.
        length: of a sequence, in tokens.
    """
    stages, layers = layout.pipeline, model.layers // layout.pipeline
    if model.layers % stages or layers < 2:
        raise ConfigurationError(f"{model.layers} layers cannot be cut into {stages} stages of two layers or more")
    one = layer_times(model, generation, layout, batch=batch, length=length)
    time = _forward(one, layers) + _backward(one, layers, layout.reshard)
    compute = layers * one.compute
    samples = batch / layout.replicas
    bubble = (stages - 1) / max(1.0, samples) * layers * (one.forward + one.backward)
    gathers = 2 if layout.reshard else 1
    activations = layers * (one.forward + one.backward - one.compute)
    total = time + bubble
    tokens = batch * length
    return ShardedStep(
        time=total,
        compute=compute,
        exposed=time - compute,
        bubble=bubble,
        communication=layers * (gathers * one.gather + one.scatter) + activations,
        tokens=tokens,
        mfu=model.flop_per_token(length) * tokens / (layout.ranks * generation.peak * total),
    )


def _forward(one: LayerTimes, layers: int) -> float:
    return one.gather + (layers - 1) * max(one.forward, one.gather) + one.forward


def _backward(one: LayerTimes, layers: int, reshard: bool) -> float:
    if not reshard:
        return one.backward + (layers - 1) * max(one.backward, one.scatter) + one.scatter
    middle = (layers - 2) * max(one.backward, one.scatter + one.gather)
    return max(one.backward, one.gather) + middle + max(one.backward, one.scatter) + one.scatter


def layer_times(model: Transformer, generation: Generation, layout: Layout, *, batch: float, length: int) -> LayerTimes:
    """What each layer takes."""
    tokens = batch / layout.replicas * length
    flop = model.flop_per_token(length) / model.layers * tokens / layout.tensor
    compute = flop / (generation.peak * generation.efficiency)
    activations = _activations(model, generation, layout, tokens)
    nbytes = BYTES * model.parameters / model.layers / layout.tensor
    gather = _ring(generation, layout, nbytes, within=layout.shards == "node")
    across = _between_nodes(generation, layout, nbytes) if layout.shards == "node" else 0.0
    return LayerTimes(
        forward=compute / 3 + activations,
        backward=compute * 2 / 3 + activations,
        compute=compute,
        gather=gather,
        scatter=gather + across,
    )


def _activations(model: Transformer, generation: Generation, layout: Layout, tokens: float) -> float:
    """Two all-reduces of activations among the ranks of a layer."""
    m = layout.tensor
    inside = m <= generation.devices
    rate, hop = (generation.inner, generation.inner_hop) if inside else (generation.wire, generation.hop)
    return 2 * (2 * (m - 1) * hop + 2 * (m - 1) / m * BYTES * tokens * model.width / rate) if m > 1 else 0.0


def _ring(generation: Generation, layout: Layout, nbytes: float, *, within: bool) -> float:
    """A gather or a scatter among the replicas, or among those of a node."""
    n = layout.replicas
    here = max(1, generation.devices // layout.tensor)  # replicas of a node
    if within:
        n = min(n, here)
    if n == 1:
        return 0.0
    if n <= here:
        return (n - 1) * generation.inner_hop + (n - 1) / n * nbytes / generation.inner
    groups = min(layout.tensor, generation.devices)  # of them that share the wires of a node
    return (n - 1) * generation.hop + (n - 1) / n * nbytes * groups / generation.wire


def _between_nodes(generation: Generation, layout: Layout, nbytes: float) -> float:
    """The all-reduce of shards of gradients among the copies of the model."""
    here = max(1, generation.devices // layout.tensor)
    copies = layout.replicas // here
    if copies <= 1:
        return 0.0
    carried = nbytes * min(layout.tensor, generation.devices)  # all shards together leave a node by its wires
    return tree_all_reduce(carried, copies)


DOUBLING, TREE_RATE = 37.5e-6, 434e9
"""Seconds per doubling of nodes, and bytes per second: fitted together to all-reduces of six sizes on 4, 32 and 512
nodes of eight H100 (least squares of logarithms of times). Such a fit knows no wires: its rate is above their 400 GB/s.
"""


def tree_all_reduce(nbytes: float, nodes: int, copies: int = 1) -> float:
    """Seconds of an all-reduce by a tree over nodes whose messages are cut into as many pieces as is best.

        (sqrt(d) + sqrt(s / rate))^2,    d = DOUBLING * log2(nodes),   s = 2 (n - 1) / n * bytes

    d is what the first piece waits for and s / rate what all bytes take; each cut trades one for the other.

    Args:
        nodes: machines.
        copies: devices of each.
    """
    n = nodes * copies
    return (math.sqrt(DOUBLING * math.log2(nodes)) + math.sqrt(2 * (n - 1) / n * nbytes / TREE_RATE)) ** 2
