"""A cluster with one of its constants changed: what sweeps vary, and what "twice the wire" would be worth.

    links.rate, links.latency     all wires between nodes
    inner.rate, inner.latency     the wires that join the devices of a node
    device.flops                  factor on the compute rates of all devices, whatever the type
    device.memory_rate, device.memory, device.launch_overhead
    core.oversubscription         of a two-level network
    topology.wire.rate, ...       any other place of a cluster file, as in its `origins`

What overrides give single nodes and wires stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from geartrain.cluster.measured import places
from geartrain.cluster.overrides import NodeOverride
from geartrain.cluster.spec import Cluster, Device, Matrix, TwoLevel
from geartrain.errors import ClusterError, nearest

Change = Callable[[Cluster, float], Cluster]


def changed(cluster: Cluster, key: str, value: float | str) -> Cluster:
    """The cluster with another value at a place; ClusterError where it has no such place or cannot have the value.

    Args:
        key: of KEYS, or a place like "topology.wire.rate" or "nodes[0].device.memory".
        value: in SI units, or a text where the place takes one.
    """
    if key not in KEYS:
        return _at_place(cluster, key, value)
    if isinstance(value, str):
        raise ClusterError(f"{key} is a number, not {value!r}")
    if value < 0 or (value == 0 and key not in _MAY_BE_ZERO):
        raise ClusterError(f"{key} cannot be {value:g}; give a number above zero")
    return KEYS[key](cluster, value)


def faster(cluster: Cluster, factor: float) -> Cluster:
    """The cluster with all devices so many times as fast, whatever prices their work."""
    given = cluster.overrides.nodes
    every = (NodeOverride(node="all", speed=factor), *(_sped_up(one, factor) for one in given))
    return cluster.model_copy(update={"overrides": cluster.overrides.model_copy(update={"nodes": every})})


def _sped_up(override: NodeOverride, factor: float) -> NodeOverride:
    return override if override.speed is None else override.model_copy(update={"speed": override.speed * factor})


def _links(name: str) -> Change:
    def change(cluster: Cluster, value: float) -> Cluster:
        topology = cluster.topology
        if isinstance(topology, Matrix):
            rows = getattr(topology, name)
            cells = tuple(tuple(None if cell is None else value for cell in row) for row in rows)
            return _with_topology(cluster, **{name: cells})
        return _with_topology(cluster, wire=topology.wire.model_copy(update={name: value}))

    return change


def _inner(name: str) -> Change:
    def change(cluster: Cluster, value: float) -> Cluster:
        inner = cluster.topology.inner
        if inner is None:
            raise ClusterError(f"inner.{name}: the nodes of cluster {cluster.name!r} have no wires inside")
        return _with_topology(cluster, inner=inner.model_copy(update={name: value}))

    return change


def _oversubscription(cluster: Cluster, value: float) -> Cluster:
    topology = cluster.topology
    if not isinstance(topology, TwoLevel) or topology.nodes_per_switch is None:
        raise ClusterError(f"core.oversubscription: cluster {cluster.name!r} has no core; take a two_level topology")
    if value < 1:
        raise ClusterError(f"core.oversubscription: {value:g} is below 1, at which a core never blocks")
    return _with_topology(cluster, oversubscription=value)


def _with_topology(cluster: Cluster, **update: Any) -> Cluster:
    return cluster.model_copy(update={"topology": cluster.topology.model_copy(update=update)})


def _device(update: Callable[[Device, float], dict[str, Any]]) -> Change:
    def change(cluster: Cluster, value: float) -> Cluster:
        groups = tuple(
            group.model_copy(update={"device": group.device.model_copy(update=update(group.device, value))})
            for group in cluster.nodes
        )
        return cluster.model_copy(update={"nodes": groups})

    return change


KEYS: Mapping[str, Change] = {
    "links.rate": _links("rate"),
    "links.latency": _links("latency"),
    "inner.rate": _inner("rate"),
    "inner.latency": _inner("latency"),
    "device.flops": _device(lambda device, factor: {"flops": {k: v * factor for k, v in device.flops.items()}}),
    "device.memory_rate": _device(lambda _, value: {"memory_rate": value}),
    "device.memory": _device(lambda _, value: {"memory": int(value)}),
    "device.launch_overhead": _device(lambda _, value: {"launch_overhead": value}),
    "core.oversubscription": _oversubscription,
}
"""Place -> what changes it, all nodes or wires at once."""

_MAY_BE_ZERO = ("links.latency", "inner.latency", "device.launch_overhead")


def value_of(cluster: Cluster, key: str) -> float | None:
    """What the cluster has at one of KEYS, of its first node or wire; 1 for a factor, None where it has no such place.

    Args:
        key: of KEYS.
    """
    topology, device = cluster.topology, cluster.nodes[0].device
    where, _, name = key.partition(".")
    if where == "links":
        if isinstance(topology, Matrix):
            return next((cell for row in getattr(topology, name) for cell in row if cell is not None), None)
        return float(getattr(topology.wire, name))
    if where == "inner":
        return None if topology.inner is None else float(getattr(topology.inner, name))
    if where == "core":
        return topology.oversubscription if isinstance(topology, TwoLevel) and topology.nodes_per_switch else None
    return 1.0 if name == "flops" else float(getattr(device, name))


def _at_place(cluster: Cluster, key: str, value: float | str) -> Cluster:
    data = cluster.model_dump(exclude_none=True, exclude={"origins", "measured"})
    known = [*KEYS, *places(data)]
    steps = list(_steps(key))
    holder: Any = data
    try:
        for step in steps[:-1]:
            holder = holder[step]
        holder[steps[-1]]  # only what is there can be another
    except (KeyError, IndexError, TypeError):
        near = nearest(key, known)
        hint = f"; did you mean {near!r}?" if near else f"; known are {', '.join(KEYS)} and the places of its file"
        raise ClusterError(f"cluster {cluster.name!r} has no place {key!r}{hint}") from None
    if isinstance(holder, tuple):
        raise ClusterError(f"{key!r} is one of a list of numbers; give links.rate or links.latency for all of them")
    holder[steps[-1]] = value
    try:
        other = Cluster.model_validate(data)
    except ValidationError as error:
        raise ClusterError(f"{key} = {value}: {error.errors()[0]['msg']}") from error
    return other.model_copy(update={"measured": cluster.measured})


def _steps(key: str) -> Iterator[str | int]:
    """ "nodes[0].device" -> "nodes", 0, "device"."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
        yield int(index) if index else name
