"""The closed forms of DeAR: when each half of each all-reduce starts and ends.

    start RS(g)   = max(r_g, end RS(g+1))             start AG(1)    = max(end of backward, end RS(1))
    begin of g    = max(end of g-1, end AG(g))        start AG(g+1)  = begin of g
    T             = max(end of backward, end RS(1)) - start AG(1) of the step before

g a group of modules in forward order, r_g when its gradients are there; an update precedes the forward of its group.

Source: derived from the authors' code of Zhang et al., 2023, arXiv 2302.12445; the ideal forms too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from geartrain.models import get_workload
from geartrain.runtime.first_use import group_neighbours
from geartrain.strategies.closed_forms import one_after_another
from geartrain.workload.spec import UNUSED, Workload


@dataclass(frozen=True)
class Timeline:
    """One step in the middle of a run.

    Attributes:
        seconds: of the step.
        exposed: of them the worker stood still for.
    """

    seconds: float
    exposed: float


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Groups of parameters in forward order, in seconds.

    Attributes:
        layers: of each group, the layers that use its parameters; None for a parameter that no layer uses.
        scatter, gather, update: what the halves and the update of each group take.
    """

    layers: Sequence[Sequence[int | None]]
    scatter: Sequence[float]
    gather: Sequence[float]
    update: Sequence[float]


def timeline(forward: Sequence[float], backward: Sequence[float], groups: Groups) -> Timeline:
    """The rule at the top of this module.

    Args:
        forward, backward: seconds of each layer, both in forward order.
    """
    now, stood = _through_forward(forward, groups)
    arrived = [0.0] * len(backward)
    for layer in reversed(range(len(backward))):
        now += backward[layer]
        arrived[layer] = now
    ready = [max(now if layer is None else arrived[layer] for layer in layers) for layers in groups.layers]
    end = max(now, one_after_another(ready[::-1], groups.scatter[::-1]))
    return Timeline(end, stood + end - now)


def _through_forward(forward: Sequence[float], groups: Groups) -> tuple[float, float]:
    """The end of forward, from the start of AG(1), and how much of it was standing still."""
    needed = [-1] * len(forward)
    for group, layers in enumerate(groups.layers):
        for layer in layers:
            if layer is not None:
                needed[layer] = group
    now, stood, pending, gathered = 0.0, 0.0, 0, groups.gather[0]
    for last, seconds in [*zip(needed, forward, strict=True), (len(groups.layers) - 1, 0.0)]:
        while pending <= last:
            stood += max(0.0, gathered - now)
            now = max(now, gathered)
            if pending + 1 < len(groups.layers):
                gathered = now + groups.gather[pending + 1]
            now += groups.update[pending]
            pending += 1
        now += seconds
    return now, stood


def module_groups(workload: Workload, threshold: int | None, count: int | None) -> list[list[int]]:
    """Positions in `workload.parameters` of each group, see `group_neighbours`."""
    parameters, modules = workload.parameters, list[list[int]]()
    for index, parameter in enumerate(parameters):
        owner = parameter.name.rpartition(".")[0]
        if not modules or owner != parameters[modules[-1][0]].name.rpartition(".")[0]:
            modules.append([])
        modules[-1].append(index)
    sizes = [sum(parameters[index].numel for index in module) * workload.element_size for module in modules]
    groups = group_neighbours(sizes, [0] * len(sizes), threshold=threshold, count=count)
    return [[index for module in group for index in modules[module]] for group in groups]


def layers_of(workload: Workload, groups: Sequence[Sequence[int]]) -> list[list[int | None]]:
    """The layer that uses each parameter of each group."""
    used: dict[int, int | None] = {}
    for number, layer in enumerate(workload.layers):
        used.update({p.index: None if layer.name == UNUSED else number for p in layer.parameters})
    return [[used[workload.parameters[position].index] for position in group] for group in groups]


# Settings that are not a cluster: what the paper's figures are compared with.


def ideal_step(
    method: Literal["wfbp", "priority", "dear"], forward: float, backward: float, all_reduce: float
) -> float:
    """Seconds of a step whose transfers can be divided at will, halves of an all-reduce taking half of its time.

    wfbp      t_ff + max(t_bp, t_ar)
    priority  max(t_ff + t_bp, t_ar)
    dear      max(t_ff, t_ar / 2) + max(t_bp, t_ar / 2)
    """
    if method == "wfbp":
        return forward + max(backward, all_reduce)
    if method == "priority":
        return max(forward + backward, all_reduce)
    return max(forward, all_reduce / 2) + max(backward, all_reduce / 2)


def ideal_gain(all_reduce: float, forward: float = 1.0, backward: float = 2.0) -> float:
    """How many times faster than WFBP, by `ideal_step`."""
    times = (forward, backward, all_reduce)
    return ideal_step("wfbp", *times) / ideal_step("dear", *times)


def all_reduce_time(startup: float, per_byte: float, nbytes: float) -> float:
    """T = a + b * bytes, as it was measured for a cluster."""
    return startup + per_byte * nbytes


def fused_step(
    method: Literal["wfbp", "dear"],
    workload: str,
    alone: float,
    batch: int,
    startup: float,
    per_byte: float,
    threshold: float = 25e6,
) -> float:
    """Seconds of a step in which neighbouring modules are fused, with all-reduces of a + b * bytes.

    Both methods have the same groups; halves take half of an all-reduce. Computing, without updates, is in proportion
    to the layers' work.

    Args:
        method: "wfbp": whole all-reduces behind backward, wait-free backpropagation; "dear".
        workload: name of a preset.
        alone: samples per second of one worker alone.
        batch: samples of a worker.
        startup, per_byte: a in seconds and b in seconds per byte.
        threshold: bytes of a group.
    """
    shape = get_workload(workload)
    forward, backward = _layers_alone(workload, batch, batch / alone)
    groups = module_groups(shape, round(threshold), None)
    sizes = [sum(shape.parameters[i].numel for i in group) * shape.element_size for group in groups]
    whole = [all_reduce_time(startup, per_byte, size) for size in sizes]
    behind = {"wfbp": 1.0, "dear": 0.5}[method]
    rows = Groups(
        layers=layers_of(shape, groups),
        scatter=[behind * seconds for seconds in whole],
        gather=[(1 - behind) * seconds for seconds in whole],
        update=[0.0] * len(groups),
    )
    return timeline(forward, backward, rows).seconds


def gain_over_buckets(
    workload: str, alone: float, batch: int, startup: float, per_byte: float, threshold: float = 25e6
) -> float:
    """How many times faster than wait-free backpropagation with the same groups, see `fused_step`."""
    setting = (workload, alone, batch, startup, per_byte, threshold)
    return fused_step("wfbp", *setting) / fused_step("dear", *setting)


@lru_cache(maxsize=8)
def _layers_alone(workload: str, batch: int, seconds: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Forward and backward of each layer on a device that takes so long for all of them."""
    shape = get_workload(workload)
    forward = [layer.forward_fixed_flop + batch * layer.forward_flop for layer in shape.layers]
    backward = [layer.backward_fixed_flop + batch * layer.backward_flop for layer in shape.layers]
    scale = seconds / (sum(forward) + sum(backward))
    return tuple(scale * flop for flop in forward), tuple(scale * flop for flop in backward)
