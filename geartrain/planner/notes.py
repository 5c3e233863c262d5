"""How batch, workers and servers of a plan were found, and what a reader must know of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from geartrain.cluster.placement import Placement
from geartrain.errors import PlacementError
from geartrain.planner import lemmas
from geartrain.planner.ask import AS_GIVEN, Candidate
from geartrain.planner.batch import BatchPlan, reference, sizes, tightest
from geartrain.planner.convolutions import conv_choices, convolutions
from geartrain.planner.knapsack import choose
from geartrain.planner.predictor import Predictor
from geartrain.predict.prediction import Prediction
from geartrain.strategies import parse
from geartrain.units import format_rate, format_size, format_time

_OFF = 0.02
"""Relative difference of simulation and closed form that is told."""


def overhead(prediction: Prediction) -> float:
    """R of lemma 1: what a step has beside computing, over the computing of all workers by one.

    R = T_O / T_C,    T_O = step - compute,    T_C = workers * compute
    """
    rest = prediction.step_time - prediction.compute
    return rest / (prediction.question.ranks * prediction.compute)


def servers(predict: Predictor, ranks: int, batch: int, checkpointing: str = AS_GIVEN) -> int | None:
    """Lemma 2's number of servers, whose pushes and pulls hide behind computing; None where none do."""
    alone = predict(reference(ranks), ranks, batch, checkpointing)
    if alone is None:
        return None
    size = predict.ask.workload.gradient_bytes
    return lemmas.servers_for(size, ranks, _server_rate(predict, ranks), alone.compute)


def _server_rate(predict: Predictor, ranks: int) -> float:
    """Bytes per second of a server's wire: on a node of its own, or, where there is none, of the last worker's."""
    strategy = parse("parameter_server")
    try:
        place = Placement(predict.ask.cluster, ranks, strategy.roles(ranks).services)
    except PlacementError:
        place = Placement(predict.ask.cluster, ranks)
    return place.rate(0, place.num_ranks - 1)


def notes(predict: Predictor, best: Candidate, most: Candidate, tried: Sequence[BatchPlan]) -> Iterator[str]:
    """All of them, in the order of the search.

    Args:
        most: the best with all workers.
        tried: batches with as many workers as the best has.
    """
    yield from _batch(predict, best, tried)
    yield from _convolutions(best)
    yield from _workers(best, most)
    yield from _servers(predict, best)
    yield from _learning(predict, best)
    yield from _simulation(best)
    yield from dict.fromkeys(best.closed.notes)


def _batch(predict: Predictor, best: Candidate, tried: Sequence[BatchPlan]) -> Iterator[str]:
    memory = tightest(best.closed)
    room = f"{format_size(memory.total)} of {format_size(memory.limit)}" if memory.limit else format_size(memory.total)
    each = f"batch: {best.batch // best.ranks} sample(s) for each worker need {room}"
    if predict.ask.batch is not None:
        yield f"{each}; the global batch was given"
        return
    larger = next((one for one in tried if one.batch > best.batch), None)
    if larger is not None:
        again = f" with checkpointing={larger.checkpointing}" if larger.checkpointing else ""
        yield f"{each}; {larger.samples}{again} fit, too, and larger batches gain little or nothing"
        return
    size = next((size for size in sizes() if size * best.ranks > best.batch), None)
    over = predict(best.strategy, best.ranks, size * best.ranks, best.checkpointing) if size else None
    yield f"{each}; {size} do not fit ({format_size(tightest(over).total)})" if over else f"{each}; more were not tried"


def _convolutions(best: Candidate) -> Iterator[str]:
    """What the memory that is left could be used for."""
    question, memory = best.closed.question, tightest(best.closed)
    layers = list(convolutions(question.workload, -(-best.batch // best.ranks)))
    if not layers or memory.limit is None:
        return
    device = question.place().device(memory.rank)
    chosen = choose([conv_choices(one, device, question.model) for one in layers], memory.limit - memory.total)
    plain = sum(conv_choices(one, device, question.model)[0].seconds for one in layers)
    if chosen is None or not chosen.memory:
        return
    counts = Counter(choice.name for choice in chosen.choices)
    told = ", ".join(f"{name} {count}" for name, count in counts.most_common())
    yield (
        f"convolutions: the memory left has room for faster algorithms ({told}; {format_size(chosen.memory)}), at best "
        f"{format_time(plain - chosen.seconds)} less in forward; by counts of operations, and not in the times here"
    )


def _workers(best: Candidate, most: Candidate) -> Iterator[str]:
    if best.ranks < most.ranks:
        yield (
            f"workers: {best.ranks} of {most.ranks}; with all of them {most.strategy} is best, "
            f"{most.closed.efficiency:.0%} efficient, "
            f"with {most.closed.throughput:.4g} samples per second in place of {best.closed.throughput:.4g}"
        )
    if best.ranks == 1:
        return
    share = overhead(best.closed)
    told = f"workers: {best.closed.efficiency:.0%} efficient with {best.ranks}"
    if share > 0:
        twice = lemmas.efficiency(2 * best.ranks, share) / lemmas.efficiency(best.ranks, share)
        told += f"; by lemma 1, R = {share:.2g}: for the same work twice as many would be {twice:.0%} as efficient"
    yield told


def _servers(predict: Predictor, best: Candidate) -> Iterator[str]:
    if best.ranks == 1:
        return
    count = servers(predict, best.ranks, best.batch, best.checkpointing)
    if count is None:
        return
    size, rate = predict.ask.workload.gradient_bytes, _server_rate(predict, best.ranks)
    more = ", more than there are workers: the wires are too slow for servers" if count > best.ranks else ""
    yield (
        f"servers: by lemma 2, {count} would hide pushes and pulls of {format_size(size)} by {best.ranks} workers "
        f"behind {format_time(best.closed.compute)} of computing, on wires of {format_rate(rate)}{more}"
    )


def _learning(predict: Predictor, best: Candidate) -> Iterator[str]:
    if best.steps_factor != 1.0 or predict.ask.statistics:
        assert predict.ask.statistics is not None, "a factor is measured"
        yield f"learning: {predict.ask.statistics.origin}"
    if predict.ask.batch is None:
        yield "learning: how many more steps a smaller batch needs, or a larger one saves, is not weighed; see --batch"


def _simulation(best: Candidate) -> Iterator[str]:
    if best.confirmed is None:
        return
    if best.confirmed.question.ranks < best.ranks:
        messages = best.closed.messages_per_rank * best.ranks
        yield (
            f"simulated with {best.confirmed.question.ranks} of {best.ranks} workers: a step of all has "
            f"{messages:,.0f} messages; the command below simulates every one of them, which may take long, and "
            "`geartrain predict` with the same arguments none"
        )
    if abs(best.correction - 1) > _OFF:
        yield f"simulated, a step takes {best.correction:.3g} times what the closed form says"
