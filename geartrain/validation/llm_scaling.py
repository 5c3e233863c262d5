"""What figures of HWScaling are predicted by: sharded training of Llama-like models on three generations of devices.

    fitted     three constants on three points
               efficiency of H100    MFU 40.77 % of the best degree of tensor parallelism on 256
               hop of all            "threshold": gathers of a 7B model are as long as its forward on 128 H100;
                                     or "loss": 37.22 % less throughput per device on 2,048 than on 128
               efficiency of A100    MFU 59.67 % of the best degree of tensor parallelism on 256
    predicted  everything else

Source of the figures: Fernandez and others, 2024, arXiv 2411.13055. Peaks and rates of links: data sheets, recalled;
wires between nodes reach the share of their rate that all-reduces of 16 GiB have on the H100 cluster, 350 of 400 GB/s,
and links within nodes the same share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Literal, get_args

from geartrain.errors import UnknownName
from geartrain.validation.sharded import (
    SIZES,
    Generation,
    Layout,
    ShardedStep,
    Transformer,
    layer_times,
    sharded_step,
    tree_all_reduce,
)

_REACHED = 350 / 400
_DATA_SHEETS: Mapping[str, Generation] = {
    "v100": Generation(peak=125e12, inner=_REACHED * 150e9, wire=_REACHED * 100e9, power=300.0),
    "a100": Generation(peak=312e12, inner=_REACHED * 300e9, wire=_REACHED * 200e9, power=400.0),
    "h100": Generation(peak=990e12, inner=_REACHED * 450e9, wire=_REACHED * 400e9, power=700.0),
}
_SAMPLES = 2  # sequences of a device, weak scaling of 7B
_DEGREES = (1, 2, 4, 8)
_FITTED_RANKS, _MFU_H100, _MFU_A100 = 256, 0.4077, 0.5967
_THRESHOLD, _LOSS_RANKS, _LOSS = 128, 2048, 0.3722

Fit = Literal["threshold", "loss"]
"""The figure that the hop is fitted on; the other one is predicted."""


def generation(name: str, fitted_on: Fit = "threshold") -> Generation:
    """A generation with its fitted constants; V100, of which no figure is known, has the efficiency of A100."""
    if name not in _DATA_SHEETS:
        raise UnknownName("generation", name, _DATA_SHEETS)
    if fitted_on not in get_args(Fit):
        raise UnknownName("figure that is fitted", fitted_on, get_args(Fit))
    h100 = _fit_h100(fitted_on)
    efficiency = h100.efficiency if name == "h100" else _fit_a100(fitted_on)
    return replace(_DATA_SHEETS[name], efficiency=efficiency, hop=h100.hop)


@lru_cache
def _fit_h100(fitted_on: Fit) -> Generation:
    """Efficiency and hop together: to each efficiency belongs a hop, and the MFU grows with both."""
    with_hop = _hop_of_threshold if fitted_on == "threshold" else _hop_of_loss

    def made(efficiency: float) -> Generation:
        one = replace(_DATA_SHEETS["h100"], efficiency=efficiency)
        return replace(one, hop=with_hop(one))

    return made(_bisect(lambda value: _best(made(value)).mfu - _MFU_H100, 0.05, 1.0))


def _hop_of_threshold(devices: Generation) -> float:
    layout = Layout(ranks=_THRESHOLD)
    without = replace(devices, hop=0.0)
    times = layer_times(SIZES["7b"], without, layout, batch=_SAMPLES * _THRESHOLD, length=4096)
    return (times.forward - times.gather) / (_THRESHOLD - 1)


def _hop_of_loss(devices: Generation) -> float:
    def lost(hop: float) -> float:
        one = replace(devices, hop=hop)
        return 1 - _weak(one, _THRESHOLD).time / _weak(one, _LOSS_RANKS).time

    return _bisect(lambda hop: lost(hop) - _LOSS, 0.0, 1e-3)


@lru_cache
def _fit_a100(fitted_on: Fit) -> float:
    sheet = replace(_DATA_SHEETS["a100"], hop=_fit_h100(fitted_on).hop)
    return _bisect(lambda value: _best(replace(sheet, efficiency=value)).mfu - _MFU_A100, 0.05, 1.0)


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is zero."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2


def _best(devices: Generation, ranks: int = _FITTED_RANKS) -> ShardedStep:
    """The fastest of the degrees of tensor parallelism."""
    return max((_weak(devices, ranks, tensor=tensor) for tensor in _DEGREES), key=lambda step: step.mfu)


def _weak(devices: Generation, ranks: int, model: Transformer = SIZES["7b"], tensor: int = 1) -> ShardedStep:
    layout = Layout(ranks=ranks, tensor=tensor)
    return sharded_step(model, devices, layout, batch=_SAMPLES * ranks)


# Quantities


def flop_per_token(*, size: str = "7b", length: int = 4096) -> float:
    """Forward and backward of a token."""
    return SIZES[size].flop_per_token(length)


def token_rate(*, mfu: float, devices: str, size: str = "7b", length: int = 4096) -> float:
    """Tokens per second of a device at an MFU."""
    return mfu * _DATA_SHEETS[devices].peak / flop_per_token(size=size, length=length)


def best_mfu(
    *, devices: str, ranks: int = 256, efficiency_of: str | None = None, fitted_on: Fit = "threshold"
) -> float:
    """MFU of the best degree of tensor parallelism, 7B, two sequences a device.

    Args:
        efficiency_of: another generation, whose share of the peak is taken.
    """
    one = generation(devices, fitted_on)
    if efficiency_of is not None:
        one = replace(one, efficiency=generation(efficiency_of, fitted_on).efficiency)
    return _best(one, ranks).mfu


def exposed_beyond(*, devices: str = "h100", size: str = "7b", fitted_on: Fit = "threshold") -> float:
    """The most ranks, of powers of two, on which gathers are hidden behind forward."""
    one, ranks = generation(devices, fitted_on), 8
    while ranks < 1 << 20:
        layout = Layout(ranks=2 * ranks)
        times = layer_times(SIZES[size], one, layout, batch=2 * ranks * _SAMPLES, length=4096)
        if times.gather > times.forward * (1 + 1e-9):
            break
        ranks *= 2
    return float(ranks)


def throughput_change(*, ranks: int, base: int, devices: str = "h100", fitted_on: Fit = "threshold") -> float:
    """Tokens per second and device on `ranks` over those on `base`, minus 1; 7B, sharded over all."""
    one = generation(devices, fitted_on)
    return _weak(one, base).time / _weak(one, ranks).time - 1


def throughput_gain(*, ranks: int, base: int, devices: str = "h100", fitted_on: Fit = "threshold") -> float:
    """Tokens per second of all `ranks` devices over those of `base`."""
    return ranks / base * (1 + throughput_change(ranks=ranks, base=base, devices=devices, fitted_on=fitted_on))


def power_ratio() -> float:
    """Watts of a device on more ranks over those on fewer: one that waits in a collective draws as much as at work."""
    return 1.0


def tokens_per_joule(*, ranks: int, base: int, devices: str = "h100", fitted_on: Fit = "threshold") -> float:
    """On `ranks` devices over those on `base`."""
    return (1 + throughput_change(ranks=ranks, base=base, devices=devices, fitted_on=fitted_on)) / power_ratio()


def tensor_gain(
    *, tensor: int, ranks: int, over: int = 1, devices: str = "h100", fitted_on: Fit = "threshold"
) -> float:
    """Tokens per second with a degree of tensor parallelism over those with another, 7B, the same ranks and batch."""
    one = generation(devices, fitted_on)
    return _weak(one, ranks, tensor=over).time / _weak(one, ranks, tensor=tensor).time


def strong_mfu(
    *, ranks: int, batch: int = 32, devices: str = "h100", size: str = "7b", fitted_on: Fit = "threshold"
) -> float:
    """MFU of the best layout of a fixed global batch of sequences."""
    one, model = generation(devices, fitted_on), SIZES[size]
    degrees = [(t, p) for t in _DEGREES for p in _DEGREES if t * p <= ranks and ranks // (t * p) <= batch]
    layouts = [Layout(ranks=ranks, tensor=t, pipeline=p) for t, p in degrees]
    return max(sharded_step(model, one, layout, batch=batch).mfu for layout in layouts)


def all_reduce_bandwidth(*, size: int, nodes: int) -> float:
    """Bus bandwidth of an all-reduce among the eight devices of each node, bytes per second."""
    n = 8 * nodes
    return 2 * (n - 1) / n * size / tree_all_reduce(size, nodes, 8)
