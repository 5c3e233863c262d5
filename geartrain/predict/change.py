"""A cluster with one of its constants changed: what sweeps vary, and what "twice the wire" would be worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from geartrain.cluster.spec import Cluster, Matrix
from geartrain.errors import UnknownName


def changed(cluster: Cluster, key: str, value: float) -> Cluster:
    """The cluster with another value at a place.

    Args:
        key: of KEYS.
        value: in SI units.
    """
    if key not in KEYS:
        raise UnknownName("place of a cluster", key, KEYS)
    return KEYS[key](cluster, value)


def _links(name: str) -> Callable[[Cluster, float], Cluster]:
    """Changes all wires between nodes; what overrides give single ones stays."""

    def change(cluster: Cluster, value: float) -> Cluster:
        topology = cluster.topology
        if isinstance(topology, Matrix):
            cells = tuple(tuple(None if cell is None else value for cell in row) for row in getattr(topology, name))
            return cluster.model_copy(update={"topology": topology.model_copy(update={name: cells})})
        wire = topology.wire.model_copy(update={name: value})
        return cluster.model_copy(update={"topology": topology.model_copy(update={"wire": wire})})

    return change


KEYS: Mapping[str, Callable[[Cluster, float], Cluster]] = {
    "links.rate": _links("rate"),
    "links.latency": _links("latency"),
}
"""Place -> what changes it."""
