"""Clusters: machines, devices and wires as plain values; their links and routes; who runs where."""

from geartrain.cluster.load import (
    Preset,
    dump_cluster,
    list_devices,
    list_presets,
    load_cluster,
    load_device,
    local_cluster,
    parse_cluster,
)
from geartrain.cluster.measured import CollectiveTime, Measurements, PairTime, bus_factor, origin_of
from geartrain.cluster.overrides import NodeOverride, Overrides, PairOverride, Straggler, WireOverride
from geartrain.cluster.placement import Pace, Placement, ServicePlace
from geartrain.cluster.spec import Cluster, Collectives, Device, Matrix, NodeGroup, Star, TwoLevel, Wire
from geartrain.cluster.topology import SWITCH, Link, Route, Topology, build

__all__ = [
    "Cluster",
    "CollectiveTime",
    "Collectives",
    "Device",
    "Link",
    "Matrix",
    "Measurements",
    "NodeGroup",
    "NodeOverride",
    "Overrides",
    "Pace",
    "PairOverride",
    "PairTime",
    "Placement",
    "Preset",
    "Route",
    "SWITCH",
    "ServicePlace",
    "Star",
    "Straggler",
    "Topology",
    "TwoLevel",
    "Wire",
    "WireOverride",
    "build",
    "bus_factor",
    "dump_cluster",
    "list_devices",
    "list_presets",
    "load_cluster",
    "load_device",
    "local_cluster",
    "origin_of",
    "parse_cluster",
]
