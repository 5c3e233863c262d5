"""When buckets that are encoded, sent and decoded are done: the closed form of a step with a codec.

The worker encodes in the middle of backward, which is longer by that; buckets use the wire one after another; what is
decoded is waited for in order:

    start_k = max(ready_k + what was encoded before, end_{k-1} of the wire),   end_k = start_k + wire_k
    after backward, for each k:  now <- max(now, end_k) + decode_k,   standing still is exposed
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from geartrain.cluster.placement import Placement
from geartrain.cluster.spec import Device
from geartrain.cost.compute import ComputeModel
from geartrain.exchange.pipeline import BucketCost
from geartrain.runtime.counting import Price, works_of


@dataclass(frozen=True)
class Timeline:
    """Seconds of a step beside forward, backward and update.

    Attributes:
        codec: encoding and decoding.
        wire: all transfers.
        exposed: standing still for them.
    """

    codec: float
    wire: float
    exposed: float


def price_on(place: Placement, model: ComputeModel) -> Price:
    """Seconds of tensor code on the worker that takes longest for it."""
    devices: set[tuple[Device, float]] = set()
    for rank in range(place.num_workers):
        devices.add((place.device(rank), place.speed(rank)))

    def price(run: Callable[[], object]) -> float:
        works = works_of(run)
        return max(sum(model.seconds(work, device) for work in works) / speed for device, speed in devices)

    return price


def timeline(ready: Sequence[float], begin: float, buckets: Sequence[BucketCost], *, blocks: bool = False) -> Timeline:
    """The times of one step.

    Args:
        ready: when the gradients of each bucket are there, without a codec.
        begin: when backward ends, without a codec.
        buckets: in the order in which they are started.
        blocks: an exchange is waited for where it starts.
    """
    now = free = codec = exposed = 0.0
    ends: list[float] = []
    for moment, bucket in zip(ready, buckets, strict=True):
        now = max(now, moment + codec + (exposed if blocks else 0.0))
        spent = bucket.encode if bucket.agree is None else bucket.agree
        now, codec = now + spent, codec + spent
        free = max(now, free) + (bucket.wire if bucket.agree is None else bucket.agreement)
        ends.append(free)
        if blocks:
            now, exposed = free, exposed + free - now
    now = max(now, begin + codec)
    for k, bucket in enumerate(buckets):
        if bucket.agree is not None:
            now, exposed = max(now, ends[k]), exposed + max(0.0, ends[k] - now)
            now, codec = now + bucket.encode, codec + bucket.encode
            free = ends[k] = max(now, free) + bucket.wire
    for end, bucket in zip(ends, buckets, strict=True):
        now, exposed = max(now, end), exposed + max(0.0, end - now)
        now, codec = now + bucket.decode, codec + bucket.decode
    return Timeline(codec, sum(bucket.wire + bucket.agreement for bucket in buckets), exposed)
