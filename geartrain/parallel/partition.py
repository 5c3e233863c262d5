"""Plans of pipelines: which parts of a chain form a stage, which workers compute it, and who has which samples.

A stage is a piece of the model, several with an interleaved schedule, on one worker or on several that share every
micro-batch: replicas. As text a stage is `parts@workers`, stages stand between slashes:

    2@0/1@1+2       two parts on worker 0, then one part on workers 1 and 2
    1.1@0/1.1@1     four parts in turn on workers 0, 1, 0, 1: two pieces per stage
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from geartrain.errors import StrategyError
from geartrain.runtime.buckets import even_cuts


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a pipeline.

    Attributes:
        parts: how many parts of the chain each of its pieces has, in the order of the pieces.
        ranks: the workers that compute it, ascending.
    """

    parts: tuple[int, ...]
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.parts))}@{'+'.join(map(str, self.ranks))}"


@dataclass(frozen=True)
class Plan:
    """Partition, replication and mapping.

    Piece p of the model is the (p div N)-th piece of stage p mod N.

    Args:
        stages: in the order of the model; each has as many pieces.

    Example:
        >>> plan = parse_plan("2@0/1@1+2")
        >>> plan.pieces, plan.stage_of(2), str(plan)
        ((range(0, 2), range(2, 3)), 1, '2@0/1@1+2')
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        ranks = [rank for stage in self.stages for rank in stage.ranks]
        if not self.stages or not all(stage.ranks and stage.parts for stage in self.stages):
            raise StrategyError(f"a plan has stages of parts on workers, not {str(self)!r}")
        if len(set(ranks)) != len(ranks) or min(ranks) < 0:
            raise StrategyError(f"a worker computes one stage; plan {str(self)!r} names one twice")
        if len({len(stage.parts) for stage in self.stages}) > 1 or min(min(stage.parts) for stage in self.stages) < 1:
            raise StrategyError(f"every stage has as many pieces, each of a part or more; plan {str(self)!r} has not")

    def __str__(self) -> str:
        return "/".join(map(str, self.stages))

    @property
    def num_pieces(self) -> int:
        return len(self.stages) * len(self.stages[0].parts)

    @property
    def num_parts(self) -> int:
        return sum(sum(stage.parts) for stage in self.stages)

    @property
    def pieces(self) -> tuple[range, ...]:
        """The parts of each piece, in the order of the model."""
        chunks = range(len(self.stages[0].parts))
        sizes = [stage.parts[chunk] for chunk in chunks for stage in self.stages]
        cuts = list(itertools.accumulate(sizes, initial=0))
        return tuple(range(begin, end) for begin, end in itertools.pairwise(cuts))

    def ranks_of(self, piece: int) -> tuple[int, ...]:
        """The workers that compute a piece."""
        return self.stages[piece % len(self.stages)].ranks

    def stage_of(self, rank: int) -> int | None:
        """The stage of a worker; None where it has none."""
        return next((index for index, stage in enumerate(self.stages) if rank in stage.ranks), None)

    def idle(self, num_workers: int) -> tuple[int, ...]:
        """The workers that have no stage."""
        return tuple(rank for rank in range(num_workers) if self.stage_of(rank) is None)


def parse_plan(text: str) -> Plan:
    """The plan that a text stands for."""
    try:
        stages = []
        for item in text.split("/"):
            parts, at, ranks = item.partition("@")
            if not at:
                raise ValueError
            stages.append(Stage(parts=_numbers(parts, "."), ranks=tuple(sorted(_numbers(ranks, "+")))))
    except ValueError:
        raise StrategyError(
            f"{text!r} is no plan; write parts@workers for each stage, with slashes between them, like 2@0/1@1+2"
        ) from None
    return Plan(tuple(stages))


def _numbers(text: str, separator: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(separator))


def shares(samples: int, count: int) -> tuple[range, ...]:
    """Samples 0, 1, ... dealt in stretches; the first `samples % count` get one more."""
    return tuple(range(begin, end) for begin, end in itertools.pairwise(even_cuts(samples, count)))


@dataclass(frozen=True)
class Delivery:
    """Samples of a micro-batch that one replica hands to one of the next piece.

    Attributes:
        sender, receiver: places among the replicas of their stages.
        begin, end: the samples, counted in the micro-batch.
    """

    sender: int
    receiver: int
    begin: int
    end: int

    @property
    def samples(self) -> int:
        return self.end - self.begin


def deliveries(samples: int, senders: int, receivers: int) -> tuple[Delivery, ...]:
    """Who hands which samples of a micro-batch to whom, where replicas on both sides share it in stretches."""
    found = []
    for j, given in enumerate(shares(samples, senders)):
        for k, taken in enumerate(shares(samples, receivers)):
            begin, end = max(given.start, taken.start), min(given.stop, taken.stop)
            if begin < end:
                found.append(Delivery(j, k, begin, end))
    return tuple(found)
