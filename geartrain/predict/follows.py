"""What follows from the parts of a step: throughput, MFU, efficiency, energy and money."""

from __future__ import annotations

from geartrain.cluster.placement import Placement
from geartrain.cluster.topology import SWITCH
from geartrain.errors import UnknownName
from geartrain.predict.question import Question


def mfu(question: Question, place: Placement, step_time: float) -> float | None:
    """Model FLOP utilisation: FLOP of the model per second over the peak of all workers' devices.

        model_flop * batch / (sum of the workers' peaks for the workload's type * step_time)

    None where a device gives no peak for that type.
    """
    try:
        peak = sum(place.device(rank).flops_of(question.workload.dtype) for rank in range(place.num_workers))
    except UnknownName:
        return None
    return question.workload.model_flop * question.batch / (peak * step_time) if step_time else None


def energy(
    place: Placement, step_time: float, computing: float, exposed: float
) -> tuple[float | None, tuple[str, ...]]:
    """Joules of a step on all nodes that the run uses, and what a reader must know; None where no power is given.

        step_time * sum over nodes (power of the node + sum over its devices (busy * power + (1 - busy) * idle_power))

    A worker's device is busy while it computes. Without an idle power it also draws its whole power while it stands
    still in a collective, which is busy waiting on an accelerator, and nothing less is known of other idle times.

    Args:
        computing, exposed: seconds of the step in which a worker computes, and stands still for communication.
    """
    workers = {(place.node(rank), place.device_index(rank)) for rank in range(place.num_workers)}
    busy = min(1.0, computing / step_time) if step_time else 0.0
    joules, notes = 0.0, dict[str, None]()
    for node in _nodes(place):
        group, _ = place.cluster.node(node)
        device = group.device
        if device.power is None:
            return None, ()
        if group.power is None:
            notes["energy is that of devices: the cluster gives no power of a node beside them"] = None
        idle = device.power if device.idle_power is None else device.idle_power
        if device.idle_power is None and exposed:
            notes["no idle power is given, so a device that waits draws as much as one that computes"] = None
        watts = group.power or 0.0
        for index in range(group.devices_per_node):
            share = busy if (node, index) in workers else 0.0
            watts += share * device.power + (1 - share) * idle
        joules += step_time * watts
    return joules, tuple(notes)


def price(place: Placement, step_time: float) -> float | None:
    """USD of a step on all nodes that the run uses; None where one of them has no price."""
    prices = [place.cluster.node(node)[0].price for node in _nodes(place)]
    known = [one for one in prices if one is not None]
    return step_time * sum(known) if len(known) == len(prices) else None


def _nodes(place: Placement) -> list[int]:
    """The nodes that workers and services are on."""
    return sorted(set(place.nodes) - {SWITCH})
