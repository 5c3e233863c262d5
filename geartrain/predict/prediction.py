"""`Prediction`: what a step takes by part, and what follows from it: throughput, MFU, memory, energy, money."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from geartrain.predict.memory import RankMemory
from geartrain.predict.question import Question

How = Literal["closed form", "simulated"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A step of a run, seen from the slowest worker. SI units.

    Attributes:
        question: what was asked.
        how: by which means it was answered.
        step_time: seconds; the five that follow, and `codec`, add up to it.
        compute: the worker's device computes.
        exposed_communication: the worker stands still while bytes are in flight.
        wait: it stands still for another rank.
        bubble: it stands still because of the order of a pipeline.
        codec: it encodes and decodes what is sent.
        hidden_communication: communication beside computing.
        bytes_per_rank, messages_per_rank: sent by a worker, the mean over all.
        busiest: bytes sent by the rank, services included, that sends most.
        memory: of each rank.
        fits: all of them have room.
        throughput: samples per second of all workers together.
        mfu: operations of the model per second, as a share of the peak of all devices for the workload's type; None
            where the cluster does not give that peak.
        efficiency: throughput per worker over that of one worker alone with its share of the batch.
        energy: joules per step; None where the cluster does not say what its devices draw.
        price: USD per step; None where the cluster gives no price.
        notes: what a reader must know.
    """

    question: Question
    how: How
    step_time: float
    compute: float
    exposed_communication: float
    wait: float
    bubble: float
    codec: float
    hidden_communication: float
    bytes_per_rank: float
    messages_per_rank: float
    busiest: float
    memory: tuple[RankMemory, ...]
    fits: bool
    throughput: float
    mfu: float | None
    efficiency: float
    energy: float | None
    price: float | None
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values under the keys of `geartrain predict --json`, without the explanation."""
        question = self.question
        return {
            "workload": question.workload.name,
            "strategy": str(question.strategy),
            "cluster": question.cluster.name,
            "ranks": question.ranks,
            "batch": question.batch,
            "compute_model": str(question.model),
            "how": self.how,
            "step_time": self.step_time,
            "compute": self.compute,
            "exposed_communication": self.exposed_communication,
            "wait": self.wait,
            "bubble": self.bubble,
            "codec": self.codec,
            "hidden_communication": self.hidden_communication,
            "bytes_sent_per_rank": self.bytes_per_rank,
            "messages_per_rank": self.messages_per_rank,
            "busiest_rank_sends": self.busiest,
            "throughput": self.throughput,
            "efficiency": self.efficiency,
            "mfu": self.mfu,
            "memory": list(_alike(self.memory)),
            "fits": self.fits,
            "energy": self.energy,
            "price": self.price,
            "notes": list(self.notes),
        }


def _alike(memory: Iterable[RankMemory]) -> Iterable[dict[str, Any]]:
    """Ranks in a row that need the same on the same devices, told once with their count."""
    last: dict[str, Any] | None = None
    for one in memory:
        told = asdict(one)
        if last is not None and all(last[key] == told[key] for key in ("role", "kinds", "limit")):
            last["count"] += 1
            continue
        if last is not None:
            yield last
        last = {**told, "count": 1}
    if last is not None:
        yield last
